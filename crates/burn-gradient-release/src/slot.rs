//! Where an armed parameter lives between arming and the end of its optimizer step.

use std::{
    mem,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use burn::{
    module::ParamId,
    tensor::{
        DType, Shape, TensorMetadata,
        backend::{AutodiffBackend, Backend},
        ops::FloatTensor,
    },
};
use burn_autodiff::{Autodiff, grads::Gradients};

use crate::{
    pass,
    tap::{self, TapSite, Use},
    tensor::{AdTensor, Live, at_order},
};

/// Steps one parameter: takes the weight and its gradient, returns the new weight.
pub(crate) type Release<B> =
    Box<dyn FnOnce(FloatTensor<B>, FloatTensor<B>) -> FloatTensor<B> + Send>;

/// What a slot does with the complete gradient, after adding it to what it holds.
pub(crate) enum Action<B: Backend> {
    /// Steps the parameter.
    Step(Release<B>),
    /// Holds it for a later micro-batch.
    Hold,
}

/// What arming a leaf takes.
pub(crate) struct Arming<B: Backend> {
    pub(crate) param: ParamId,
    /// Stands for the weight in the tap's own tensor.
    pub(crate) placeholder: FloatTensor<B>,
    /// What [`Slot::next_depth`] said after the previous step.
    pub(crate) depth_hint: Option<usize>,
    pub(crate) progress: Arc<Progress>,
    pub(crate) action: Action<B>,
    /// The sum of the gradients of earlier micro-batches.
    pub(crate) held: Option<FloatTensor<B>>,
}

impl<B: Backend> Arming<B> {
    /// Arms a leaf. Returns the slot and the one owner of its value.
    pub(crate) fn arm(self, leaf: AdTensor<B>) -> (Arc<Slot<B>>, Live<B>) {
        let presence = Arc::new(());
        let slot = Arc::new(Slot {
            param: self.param,
            shape: leaf.shape(),
            dtype: leaf.dtype(),
            progress: self.progress,
            fate: Arc::new(Fate {
                param: self.param,
                is_finished: AtomicBool::new(false),
            }),
            owner: Arc::downgrade(&presence),
            state: Mutex::new(State {
                leaf: Some(leaf),
                site: TapSite::new(self.placeholder, self.depth_hint),
                phase: Phase::Waiting(self.action),
                held: self.held,
                claimed: false,
            }),
        });
        let live = Live::new(slot.clone(), presence);
        (slot, live)
    }
}

/// One armed parameter.
pub(crate) struct Slot<B: Backend> {
    param: ParamId,
    shape: Shape,
    dtype: DType,
    progress: Arc<Progress>,
    fate: Arc<Fate>,
    owner: Weak<()>,
    state: Mutex<State<B>>,
}

struct State<B: Backend> {
    /// The parameter's leaf with its current value. Taken only while the step runs.
    leaf: Option<AdTensor<B>>,
    site: TapSite<B>,
    phase: Phase<B>,
    /// The sum of the gradients of earlier micro-batches, until it is stepped with.
    held: Option<FloatTensor<B>>,
    /// Whether anybody has asked for the gradient, as the caller of an optimizer does.
    claimed: bool,
}

enum Phase<B: Backend> {
    /// Armed, no gradient yet.
    Waiting(Action<B>),
    /// The action is running, or panicked.
    Acting,
    /// Acted inside backward.
    Acted(When),
    /// The step is over without this parameter: an ordinary leaf again.
    Disarmed,
    /// The optimizer has finished the step and handed the value on.
    Closed,
}

/// When a slot acted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    /// The moment its gradient was complete.
    Complete,
    /// At the end of backward, because the tap came before the last contribution.
    Late,
}

/// What becomes of a step, for copies of a parameter that were taken in the middle of it.
#[derive(Debug)]
pub(crate) struct Fate {
    param: ParamId,
    is_finished: AtomicBool,
}

impl Fate {
    /// # Panics
    ///
    /// Once the step is finished: in plain Burn the copy would have the weights from before it.
    pub(crate) fn check(&self) {
        assert!(
            !self.is_finished.load(Ordering::Relaxed),
            "gradient release: parameter {} is read from a copy of the model that was taken after \
             backward had stepped it and before `step`: without gradient release the copy would \
             have the weights from before the step; take a copy that is to be kept before backward, \
             or of the model that `step` returns",
            self.param
        );
    }
}

/// How far the slots armed together have come.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    acted: AtomicUsize,
    interrupted: AtomicBool,
}

impl Progress {
    pub(crate) fn acted(&self) -> usize {
        self.acted.load(Ordering::Relaxed)
    }

    pub(crate) fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }

    pub(crate) fn interrupt(&self) {
        self.interrupted.store(true, Ordering::Relaxed);
    }
}

impl<B: Backend> Slot<B> {
    fn state(&self) -> MutexGuard<'_, State<B>> {
        // A panic of the optimizer leaves `Phase::Acting` behind, which says all there is to say.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn param(&self) -> ParamId {
        self.param
    }

    pub(crate) fn shape(&self) -> Shape {
        self.shape.clone()
    }

    pub(crate) fn dtype(&self) -> DType {
        self.dtype
    }

    pub(crate) fn is_waiting(&self) -> bool {
        matches!(self.state().phase, Phase::Waiting(_))
    }

    /// When the slot acted inside backward, if it did.
    pub(crate) fn acted(&self) -> Option<When> {
        match self.state().phase {
            Phase::Acted(when) => Some(when),
            _ => None,
        }
    }

    /// The leaf with the current value.
    ///
    /// # Panics
    ///
    /// After the optimizer handed the value on to another copy of the model, and after a panic in
    /// the middle of the parameter's step: there is no value then that could be passed off as good.
    pub(crate) fn leaf(&self) -> AdTensor<B> {
        let state = self.state();
        match (&state.leaf, &state.phase) {
            (_, Phase::Closed) => panic!(
                "parameter {} is read from a model that was armed, while a copy of that model was \
                 passed to `step`, which returned the stepped weights; use the model returned by \
                 `step`, and clone a model that is to be kept before or after it is armed and \
                 stepped",
                self.param
            ),
            (Some(leaf), _) => leaf.clone(),
            (None, _) => panic!(
                "the step of parameter {} panicked and its value is lost; go back to the last \
                 checkpoint",
                self.param
            ),
        }
    }

    /// The fate of the step, if the parameter was stepped already.
    pub(crate) fn fate(&self) -> Option<Arc<Fate>> {
        self.acted().map(|_| self.fate.clone())
    }

    /// The node that an operation consuming the parameter has for a parent, with `value`.
    ///
    /// `order` is the highest order among the operation's other operands, `operation` tells apart
    /// two operands of one operation from two operations. `None` if the parameter does not wait
    /// for a gradient: then it is an ordinary leaf.
    pub(crate) fn tap(
        self: &Arc<Self>,
        value: FloatTensor<B>,
        order: usize,
        usage: Use,
        operation: u64,
    ) -> Option<AdTensor<B>> {
        let (leaf, placeholder, depth) = {
            let mut state = self.state();
            if !matches!(state.phase, Phase::Waiting(_)) {
                return None;
            }
            if let Some(tap) = state.site.consume(order, usage, operation) {
                return Some(at_order::<B>(&tap, value, order));
            }
            let leaf = state.leaf.clone()?;
            (
                leaf,
                state.site.placeholder(),
                state.site.depth(order, usage),
            )
        };
        // Registering a node takes the graph's lock, which a backward on another thread holds
        // while it waits for this slot: never hold both.
        let tap = tap::register(&leaf, placeholder, depth, Arc::downgrade(self));
        let mut state = self.state();
        state.site.set(tap, depth);
        let tap = state.site.consume(order, usage, operation)?;
        Some(at_order::<B>(&tap, value, order))
    }

    /// Called from the tape when the tap's turn has come.
    pub(crate) fn fire(&self, grads: &mut Gradients) {
        let complete = {
            let mut state = self.state();
            state.site.fired = true;
            state.site.is_complete()
        };
        if complete {
            self.act(grads, When::Complete);
        }
    }

    /// Acts on the gradient accumulated so far, if there is one.
    pub(crate) fn act(&self, grads: &mut Gradients, when: When) {
        let mut state = self.state();
        if !matches!(state.phase, Phase::Waiting(_)) || self.owner.strong_count() == 0 {
            // Nobody owns the value any more (the model was mapped or dropped after arming): the
            // gradient stays where an ordinary one would be.
            return;
        }
        let Some(tap) = state.site.tap() else { return };
        let Some(grad) = grads.remove::<B>(&tap) else {
            return;
        };
        let Phase::Waiting(action) = mem::replace(&mut state.phase, Phase::Acting) else {
            unreachable!("only a waiting slot acts")
        };
        // Only a pass that has changed something leaves it half done.
        pass::touch(&self.progress);
        let grad = match state.held.take() {
            // The order in which Burn's accumulator adds.
            Some(held) => B::float_add(held, grad),
            None => grad,
        };
        match action {
            Action::Step(release) => {
                let mut leaf = state
                    .leaf
                    .take()
                    .expect("a waiting parameter has its value");
                leaf.primitive = release(leaf.primitive, grad);
                state.leaf = Some(leaf);
            }
            Action::Hold => state.held = Some(grad),
        }
        state.phase = Phase::Acted(when);
        self.progress.acted.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes the gradient an ordinary step has to apply.
    pub(crate) fn grad_remove(
        &self,
        leaf: &AdTensor<B>,
        grads: &mut Gradients,
    ) -> Option<FloatTensor<B>> {
        let tap = {
            let mut state = self.state();
            state.claimed = true;
            state.site.tap()
        };
        let tapped = tap.and_then(|tap| Autodiff::<B>::grad_remove(&tap, grads));
        sum::<B>(tapped, Autodiff::<B>::grad_remove(leaf, grads))
    }

    /// Whether the slot acted on a gradient that was never asked for.
    pub(crate) fn is_unclaimed(&self) -> bool {
        let state = self.state();
        matches!(state.phase, Phase::Acted(_)) && !state.claimed
    }

    /// Ends the wait of a parameter that was not stepped; takes the sum of gradients it holds.
    pub(crate) fn withdraw(&self) -> Option<FloatTensor<B>> {
        self.disarm();
        let mut state = self.state();
        state.phase = Phase::Disarmed;
        state.held.take()
    }

    /// Reads the gradient an ordinary step has to apply.
    pub(crate) fn grad(&self, leaf: &AdTensor<B>, grads: &Gradients) -> Option<FloatTensor<B>> {
        let tap = self.state().site.tap();
        let tapped = tap.and_then(|tap| Autodiff::<B>::grad(&tap, grads));
        sum::<B>(tapped, Autodiff::<B>::grad(leaf, grads))
    }

    /// Ends the step of a parameter that was stepped inside backward: takes its value.
    pub(crate) fn close(&self) -> FloatTensor<B> {
        let mut state = self.state();
        state.phase = Phase::Closed;
        self.fate.is_finished.store(true, Ordering::Relaxed);
        let leaf = state
            .leaf
            .take()
            .expect("an interrupted step is refused before it is closed");
        leaf.primitive
    }

    /// Ends the wait of a parameter that was not stepped inside backward.
    pub(crate) fn disarm(&self) {
        {
            let mut state = self.state();
            if !matches!(state.phase, Phase::Waiting(_)) {
                return;
            }
            state.phase = Phase::Disarmed;
        }
        self.discard_unused_graph();
    }

    /// Frees the graphs of forward passes that no backward came back from: they hold the old
    /// weights.
    fn discard_unused_graph(&self) {
        let unused = {
            let state = self.state();
            state.site.tap().filter(|_| !state.site.fired)
        };
        if let Some(tap) = unused {
            tap::discard::<B>(tap);
        }
    }

    /// At which depth the tap should have been, for the next step.
    pub(crate) fn next_depth(&self) -> Option<usize> {
        self.state().site.next_depth()
    }
}

fn sum<B: Backend>(
    lhs: Option<FloatTensor<B>>,
    rhs: Option<FloatTensor<B>>,
) -> Option<FloatTensor<B>> {
    match (lhs, rhs) {
        (Some(lhs), Some(rhs)) => Some(B::float_add(lhs, rhs)),
        (one, other) => one.or(other),
    }
}

impl<B: Backend> std::fmt::Debug for Slot<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Slot")
            .field("param", &self.param)
            .finish_non_exhaustive()
    }
}

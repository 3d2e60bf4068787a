//! A `Learner` of Burn that a strategy can open: Burn keeps its optimizer and its scheduler
//! private.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Weak};

use burn::backend::autodiff::NodeId;
use burn::lr_scheduler::module_lr_scheduler::ModuleLrScheduler;
use burn::lr_scheduler::{LrScheduler, LrSchedulerRecord};
use burn::module::{Module, ModuleVisitor, Param, ParamGroup, ParamId};
use burn::optim::{
    DynOptimizer, DynState, LearningRate, ModuleOptimizer, OptimizerRecord, SgdConfig, StateSink,
    StateSource,
};
use burn::store::ModuleRecord;
use burn::tensor::kind::BridgeTensor;
use burn::tensor::{Device, Tensor, TensorData};
use burn::train::checkpoint::{
    AsyncCheckpointer, Checkpoint, Checkpointer, CheckpointerError, CheckpointingAction,
    CheckpointingStrategy,
};
use burn::train::metric::store::EventStoreClient;
use burn::train::{Learner, LearnerModel, LearningCheckpointer};

use crate::error::expect;
use crate::gradients::PATH_IN_CHECKPOINT as DOOR;
use crate::optimizer::step_one;
use crate::tape::node_of;
use crate::{GradientRecord, ReleaseOptimizer};

/// Creates the learner for a training with gradient release, and is otherwise `Learner::new`.
///
/// `optim` is Burn's `ModuleOptimizer`, or a [`ReleaseOptimizer`] with all its settings. Checkpoints
/// have the state of its clipping rules and loss scaler, too, as a part of the optimizer's record.
///
/// [`GradientReleaseStrategy`](crate::train::GradientReleaseStrategy) trains no other. For every
/// other strategy the learner is that of `Learner::new`: its optimizer has one more group, to which
/// no parameter belongs. Settings that Burn's optimizer does not have are refused there.
///
/// # Example
///
/// ```
/// # use burn::train::{Learner, LearnerModel};
/// use burn::optim::AdamWConfig;
/// use burn_lean::train::release_learner;
/// use burn_lean::{AutoClipConfig, NormClipping, WithGradientRelease};
///
/// # fn learner<M: LearnerModel>(model: M) -> Learner<M> {
/// let optim = AdamWConfig::new()
///     .init()
///     .with_gradient_release()
///     .with_norm_clipping(NormClipping::AutoClip(AutoClipConfig::new()))
///     .with_grad_norm();
/// release_learner(model, optim, 1e-3)
/// # }
/// ```
///
/// # Panics
///
/// If the optimizer is in the middle of a step, or has a
/// [reduction](ReleaseOptimizer::with_reduction): the strategy takes replicas.
///
/// A learner that was stepped by hand, or into which something was loaded, is read through Burn's
/// records: training panics with a scheduler that makes none.
pub fn release_learner<M: LearnerModel>(
    model: M,
    optim: impl Into<ReleaseOptimizer>,
    lr_scheduler: impl Into<ModuleLrScheduler>,
) -> Learner<M> {
    let (release, scheduler) = (optim.into(), lr_scheduler.into());
    assert!(
        !release.has_reduction(),
        "gradient release: the Learner takes replicas from its strategy, as it saves and validates \
         once; leave out `with_reduction`, and use `GradientReleaseStrategy::with_replicas`"
    );
    let optim = expect(release.own_optimizer());
    let device = model.devices().into_iter().next().unwrap_or_default();
    let state = Arc::new(());
    let made = Arc::new(Made {
        leaves: leaves(&model),
        state: Arc::downgrade(&state),
        has_moved: AtomicBool::new(false),
        parts: Parts {
            optim: release,
            scheduler: scheduler.clone(),
        },
    });
    let optim = with_state(optim, Door::Of(made.clone()), &device);
    let scheduler = scheduler.with_group(ParamGroup::from_path(DOOR), Watch(made));
    Learner::new(model, optim, scheduler)
}

/// The parts of a learner that a strategy needs, beside its model.
pub(super) struct Parts {
    pub(super) optim: ReleaseOptimizer,
    pub(super) scheduler: ModuleLrScheduler,
}

impl Parts {
    /// Takes the parts out of a learner that trains no more. `None` if [`release_learner`] has not
    /// made it.
    pub(super) fn of<M: LearnerModel>(
        learner: &mut Learner<M>,
        store: &EventStoreClient,
        device: &Device,
    ) -> Option<Self> {
        // Of a learner that another strategy has trained on this thread.
        OPENED.take();
        learner.clone().load_optim(knock(device));
        let made = OPENED.take().upgrade()?;
        let Self { optim, scheduler } = &made.parts;
        let own = expect(optim.own_optimizer());
        if made.is_unchanged(learner) {
            return Some(Self {
                optim: optim.with_optimizer(own),
                scheduler: scheduler.clone(),
            });
        }
        let (optim_record, scheduler_record) = records(learner, store);
        // Those of the record take the place of the learner's states.
        learner.load_optim(OptimizerRecord::default());
        let loaded = own.with_group(ParamGroup::from_path(DOOR), Door::Load, None);
        let mut optim = optim.with_optimizer(loaded.load_record(optim_record));
        if let Some(record) = LOADED.take() {
            optim = optim.load_gradient_record(record);
        }
        // A scheduler of the user's may load none.
        let scheduler = match made.has_moved.load(Ordering::Relaxed) {
            false => scheduler.clone(),
            true => scheduler.clone().load_record(scheduler_record),
        };
        Some(Self { optim, scheduler })
    }
}

/// What a learner was made of. As long as it has nothing else, it needs no records of it: they copy
/// the model and all states, and do not keep their types.
struct Made {
    parts: Parts,
    /// The model's: a step makes others.
    leaves: Vec<Option<NodeId>>,
    /// Held by the state at the door. Loading a record drops it.
    state: Weak<()>,
    /// The scheduler of some clone of the learner has moved.
    has_moved: AtomicBool,
}

impl Made {
    fn is_unchanged<M: LearnerModel>(self: &Arc<Self>, learner: &Learner<M>) -> bool {
        // One is here, one at the door, and one with the scheduler of each clone of the learner. Clones
        // share the state at the door, which does not tell into which of them a record was loaded.
        let is_only_one = Arc::strong_count(self) == 3;
        is_only_one
            && self.state.strong_count() > 0
            && !self.has_moved.load(Ordering::Relaxed)
            && self.leaves == leaves(&learner.model())
    }
}

/// The leaves of parameters that are initialized.
fn leaves<M: Module>(model: &M) -> Vec<Option<NodeId>> {
    struct Leaves(Vec<Option<NodeId>>);
    impl ModuleVisitor for Leaves {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let leaf = || node_of(&param.base().into_dispatch());
            self.0.push(param.is_initialized().then(leaf).flatten());
        }
    }
    let mut leaves = Leaves(Vec::new());
    model.visit(&mut leaves);
    leaves.0
}

/// Sees that a learner's scheduler moves. Stops a strategy that would train without a setting of the
/// optimizer.
#[derive(Clone)]
struct Watch(Arc<Made>);

impl LrScheduler for Watch {
    fn step(&mut self) -> LearningRate {
        self.0.has_moved.store(true, Ordering::Relaxed);
        match self.0.parts.optim.not_burns() {
            None => 0.0,
            Some(what) => panic!(
                "gradient release: this strategy would train without the {what} of the optimizer; \
                 use `GradientReleaseStrategy`"
            ),
        }
    }

    fn to_record(&self) -> LrSchedulerRecord {
        LrSchedulerRecord::new()
    }

    fn load_record(&mut self, _: LrSchedulerRecord) {
        self.0.has_moved.store(true, Ordering::Relaxed);
    }
}

/// The optimizer of a checkpoint. The state of clipping and loss scaling is that of a parameter that
/// no model has.
pub(super) fn to_save(
    optim: ModuleOptimizer,
    record: GradientRecord,
    device: &Device,
) -> ModuleOptimizer {
    match record == GradientRecord::default() {
        true => optim,
        false => with_state(optim, Door::Save(record), device),
    }
}

thread_local! {
    /// Of the learner that is being opened.
    static OPENED: RefCell<Weak<Made>> = const { RefCell::new(Weak::new()) };
    /// The state of clipping and loss scaling in the record that is being loaded.
    static LOADED: RefCell<Option<GradientRecord>> = const { RefCell::new(None) };
}

/// A group's optimizer in an optimizer of Burn's, which steps no parameter of a model.
enum Door {
    /// In the optimizer of a learner.
    Of(Arc<Made>),
    /// Sends parts or a state.
    Knock,
    /// Takes a state out of a record.
    Load,
    /// Puts a state into a record.
    Save(GradientRecord),
}

#[derive(Default)]
struct DoorState {
    gradients: Option<GradientRecord>,
    /// Of a learner that nothing was loaded into.
    _made: Option<Arc<()>>,
}

/// The name of the state in a record, as JSON.
const GRADIENTS: &str = "gradients";

impl DynOptimizer for Door {
    fn step_dyn(
        &self,
        rank: usize,
        _: LearningRate,
        tensor: BridgeTensor,
        _: BridgeTensor,
        _: Option<DynState>,
    ) -> (BridgeTensor, Option<DynState>) {
        let state = match self {
            Self::Of(made) => DoorState {
                gradients: None,
                _made: made.state.upgrade(),
            },
            Self::Save(record) => DoorState {
                gradients: Some(record.clone()),
                _made: None,
            },
            Self::Knock | Self::Load => DoorState::default(),
        };
        (tensor, Some(DynState::create(state, rank)))
    }

    fn to_device_dyn(&self, state: DynState, _: &Device) -> DynState {
        state
    }

    fn state_flatten(&self, prefix: &str, state: &DynState, out: &mut StateSink) {
        if let Some(record) = &state.downcast_ref::<DoorState>().gradients {
            let bytes = serde_json::to_vec(record).expect("the record has no maps of other keys");
            out.push_tensor(prefix, GRADIENTS, TensorData::from(&bytes[..]));
        }
    }

    fn state_unflatten(
        &self,
        rank: usize,
        prefix: &str,
        source: &mut StateSource,
        _: &Device,
    ) -> Option<DynState> {
        let record = source.take_tensor(prefix, GRADIENTS).map(|data| {
            serde_json::from_slice(data.as_bytes()).unwrap_or_else(|error| {
                panic!("gradient release: no state of clipping or loss scaling: {error}")
            })
        });
        match self {
            Self::Of(made) => {
                OPENED.set(Arc::downgrade(made));
                let state = DoorState {
                    gradients: record,
                    _made: None,
                };
                Some(DynState::create(state, rank))
            }
            _ => {
                LOADED.set(record);
                None
            }
        }
    }
}

/// A record with a state of `Door`. A learner's door that loads it shows its parts.
fn knock(device: &Device) -> OptimizerRecord {
    let optim = ModuleOptimizer::from(SgdConfig::new().build());
    with_state(optim, Door::Knock, device).to_record()
}

/// The optimizer with a door, and with a state of it.
fn with_state(optim: ModuleOptimizer, door: Door, device: &Device) -> ModuleOptimizer {
    let mut optim = optim.with_group(ParamGroup::from_path(DOOR), door, None);
    let tensor = Tensor::<1>::zeros([1], &device.clone().inner());
    step_one(
        &mut optim,
        0.0.into(),
        ParamId::new(),
        DOOR,
        tensor.clone(),
        tensor,
    );
    optim
}

/// The records of a learner's optimizer and scheduler, which Burn gives only to a checkpointer.
fn records<M: LearnerModel>(
    learner: &Learner<M>,
    store: &EventStoreClient,
) -> (OptimizerRecord, LrSchedulerRecord) {
    let ((optim, optims), (scheduler, schedulers)) = (channel(), channel());
    let mut checkpointer = LearningCheckpointer::new(
        // The record of the model is not used.
        AsyncCheckpointer::new(Sent::<ModuleRecord>(channel().0)),
        AsyncCheckpointer::new(Sent(optim)),
        AsyncCheckpointer::new(Sent(scheduler)),
        Box::new(Once),
    );
    checkpointer.checkpoint(learner, 0, store);
    let saved = "the checkpointer has saved";
    (optims.recv().expect(saved), schedulers.recv().expect(saved))
}

struct Once;

impl CheckpointingStrategy for Once {
    fn checkpointing(&mut self, _: usize, _: &EventStoreClient) -> Vec<CheckpointingAction> {
        vec![CheckpointingAction::Save]
    }
}

/// Sends records instead of saving them.
struct Sent<R>(Sender<R>);

impl<R: Checkpoint> Checkpointer<R> for Sent<R> {
    fn save(&self, _: usize, record: R) -> Result<(), CheckpointerError> {
        // Without a receiver, the record is dropped.
        let _ = self.0.send(record);
        Ok(())
    }

    fn delete(&self, _: usize) -> Result<(), CheckpointerError> {
        Ok(())
    }

    fn restore(&self, _: usize) -> Result<R, CheckpointerError> {
        Err(CheckpointerError::Unknown("nothing is saved here".into()))
    }
}

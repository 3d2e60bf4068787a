//! A recurrent model whose hidden state is carried over from step to step.

use std::cell::RefCell;

use super::{recipe, recomputing};
use crate::harness::prelude::*;

const WIDTH: usize = 4;
const WINDOW: u64 = 6;
const STEPS: u64 = 5;

#[derive(Module, Debug)]
struct Model<B: Backend> {
    input: Linear<B>,
    hidden: Linear<B>,
}

impl<B: AutodiffBackend> Model<B> {
    fn new() -> Self {
        let layer = || LinearConfig::new(WIDTH, WIDTH).init(&Default::default());
        Self {
            input: layer(),
            hidden: layer(),
        }
    }

    /// The loss over a window, and the state after it.
    fn loss(&self, step: u64, mut state: Tensor<B, 2>) -> (Tensor<B, 1>, Tensor<B, 2>) {
        let mut losses = Vec::new();
        for time in 0..WINDOW {
            let x = noise::<B, 2>(step * 100 + time, [16, WIDTH], &Default::default());
            state = (self.input.forward(x) + self.hidden.forward(state)).tanh();
            losses.push(state.clone().square().mean());
        }
        (Tensor::cat(losses, 0).sum(), state)
    }
}

/// When the state is cut off from the window that it comes from.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Detached {
    AtOnce,
    /// At the beginning of the next window.
    Later,
    Never,
}

/// The loss of each window, from the state that the one before has left.
fn windows<B: AutodiffBackend>(detached: Detached) -> impl Fn(&Model<B>, u64) -> Tensor<B, 1> {
    let carried = RefCell::new(Tensor::<B, 2>::zeros([16, WIDTH], &Default::default()));
    move |model, step| {
        let state = carried.borrow().clone();
        let state = match detached {
            Detached::Later => state.detach(),
            Detached::AtOnce | Detached::Never => state,
        };
        let (loss, next) = model.loss(step, state);
        carried.replace(match detached {
            Detached::AtOnce => next.detach(),
            Detached::Later | Detached::Never => next,
        });
        loss
    }
}

fn start() -> Vec<u8> {
    save::<P, _>(Model::<P>::new())
}

/// Plain Burn's graph is gone after a backward pass: one that comes to the state carried over ends
/// there, without a word.
fn plain(start: &[u8]) -> Vec<Weights> {
    let model = load::<P, _>(Model::new(), start, &Default::default());
    let loss = windows(Detached::Never);
    run::ordinary(model, &mut recipe().init(), STEPS, &loss).steps
}

fn release(start: &[u8], recompute: Recompute, detached: Detached) -> Vec<Weights> {
    let model = load::<R, _>(Model::new(), start, &Default::default());
    let loss = windows(detached);
    let (given, _) = run::armed(model, &mut recomputing(recompute), STEPS, &loss);
    given.steps
}

#[test]
fn a_state_that_is_detached_and_one_that_is_not_without_recomputing() {
    let start = start();
    let expected = plain(&start);
    for case in [
        (Recompute::None, Detached::Never),
        (Recompute::None, Detached::Later),
        (Recompute::None, Detached::AtOnce),
        (Recompute::Automatic, Detached::Later),
        (Recompute::Automatic, Detached::AtOnce),
        (Recompute::Budget(1 << 11), Detached::Later),
        (Recompute::Budget(1 << 11), Detached::AtOnce),
    ] {
        assert_same_steps(
            &release(&start, case.0, case.1),
            &expected,
            format!("{case:?}"),
        );
    }
}

/// Results of a scope are recorded; what is computed from them outside is on the tape.
#[test]
fn a_state_that_is_detached_inside_a_scope() {
    let start = start();
    let expected = plain(&start);
    for is_on_tape in [false, true] {
        let model = load::<R, _>(Model::new(), &start, &Default::default());
        let carried = RefCell::new(Tensor::<R, 2>::zeros([16, WIDTH], &Default::default()));
        let loss = |model: &Model<R>, step| {
            let state = carried.borrow().clone();
            let (loss, next) = checkpoint(|| model.loss(step, state.detach()));
            carried.replace(if is_on_tape { next * 1.0 } else { next });
            loss
        };
        let mut optim = recomputing(Recompute::None);
        let (given, _) = run::armed(model, &mut optim, STEPS, &loss);
        assert_same_steps(
            &given.steps,
            &expected,
            format!("on the tape: {is_on_tape}"),
        );
    }
}

/// The graph below the state can be computed again no more, and what of it a pass would still come
/// to depends on the cuts.
#[test]
fn a_state_that_is_not_detached_is_refused_in_words_that_help() {
    let start = start();
    let text = panic_of(|| release(&start, Recompute::Automatic, Detached::Never));
    assert!(text.contains("`detach`"), "{text}");
}

//! A forward pass that runs twice, the same both times.

use std::{collections::VecDeque, mem};

use burn::{
    module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId},
    tensor::{Tensor, TensorPrimitive, backend::Backend, ops::FloatTensor},
};

use crate::{ReleaseBackend, lower::random::RandomLog};

/// Two forward passes of one training step, for an optimizer that needs all gradients before its
/// first step. [`ReleaseOptimizer::two_passes`](crate::ReleaseOptimizer::two_passes) uses it.
///
/// The second pass draws the random numbers of the first (masks of dropout are kept as bits
/// meanwhile), and begins with the same running means of normalisation layers. State that a model
/// keeps elsewhere, and random numbers that it draws without Burn's tensors, are not repeated.
pub struct TwoPasses<B: Backend> {
    running: Running<B>,
    log: RandomLog,
}

/// The float tensors of a model that are not trained, in the order of its fields: those of a copy of
/// a part have the same ids.
type Running<B> = VecDeque<(ParamId, FloatTensor<B>)>;

impl<B: ReleaseBackend> TwoPasses<B> {
    /// Runs the first pass over the model, forward and backward.
    pub fn first<M: Module<B>, R>(model: &M, pass: impl FnOnce() -> R) -> (R, Self) {
        let running = running_states(model);
        let (result, log) = RandomLog::record(pass);
        (result, Self { running, log })
    }

    /// Runs the second pass. `copy` is a copy of the model, and is dropped before: it would keep
    /// old weights alive. Returns whether the pass drew as many random numbers as the first.
    ///
    /// # Panics
    ///
    /// If it draws other random numbers than the first pass, or runs backward from another loss or
    /// before it has drawn as many. All of it is noticed before that backward steps anything.
    pub fn second<M: Module<B>, R>(&mut self, copy: M, pass: impl FnOnce() -> R) -> (R, bool) {
        restore(copy, self.running.clone());
        mem::take(&mut self.log).replay(pass)
    }

    /// Restores the running means of the model from before the first pass.
    pub fn undo<M: Module<B>>(self, model: &M) {
        restore(model.clone(), self.running);
    }
}

impl<B: Backend> std::fmt::Debug for TwoPasses<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TwoPasses").finish_non_exhaustive()
    }
}

fn running_states<B: Backend, M: Module<B>>(model: &M) -> Running<B> {
    struct Collect<B: Backend>(Running<B>);

    impl<B: Backend> ModuleVisitor<B> for Collect<B> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            let value = param.val();
            if !value.is_require_grad()
                && let TensorPrimitive::Float(value) = value.into_primitive()
            {
                self.0.push_back((param.id, value));
            }
        }
    }

    let collect = || {
        let mut collect = Collect(VecDeque::new());
        model.visit(&mut collect);
        collect.0
    };
    if collect().is_empty() {
        return VecDeque::new();
    }
    settle(model);
    collect()
}

/// Copies of a model share its running states: mapping a copy changes those of the model.
fn restore<B: Backend, M: Module<B>>(copy: M, running: Running<B>) {
    struct Restore<B: Backend>(Running<B>);

    impl<B: Backend> ModuleMapper<B> for Restore<B> {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
            let (id, tensor, mapper) = param.consume();
            let next = self.0.front().filter(|(of, _)| *of == id).cloned();
            let tensor = match next.filter(|_| !tensor.is_require_grad()) {
                Some((_, value)) => {
                    self.0.pop_front();
                    Tensor::from_primitive(TensorPrimitive::Float(value))
                }
                None => tensor,
            };
            Param::from_mapped_value(id, tensor, mapper)
        }
    }

    if running.is_empty() {
        return;
    }
    settle(&copy);
    drop(copy.map(&mut Restore(running)));
}

/// Applies pending updates: Burn holds one back until the running state is read again, or recorded.
fn settle<B: Backend, M: Module<B>>(model: &M) {
    drop(model.clone().into_record());
}

//! The norms of gradients.

use std::collections::{HashMap, HashSet};

use burn::Tensor;
use burn::module::ParamId;
use lean_arithmetic::norm::global_norm;

use crate::wide::widened;

/// The squared norms of the gradients of one step.
///
/// They stay on the device until [`read`](Self::read), which waits once for all of them.
#[derive(Default)]
pub(super) struct SquaredNorms {
    pending: HashMap<ParamId, Tensor<1>>,
    known: HashMap<ParamId, f64>,
}

impl std::fmt::Debug for SquaredNorms {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SquaredNorms").finish_non_exhaustive()
    }
}

impl SquaredNorms {
    pub(super) fn push(&mut self, param: ParamId, squared: Tensor<1>) {
        self.pending.insert(param, squared);
    }

    pub(super) fn contains(&self, param: ParamId) -> bool {
        self.pending.contains_key(&param) || self.known.contains_key(&param)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty() && self.known.is_empty()
    }

    /// The squared norm of a gradient that was pushed.
    pub(super) fn get(&mut self, param: ParamId) -> f64 {
        self.read();
        self.known[&param]
    }

    fn read(&mut self) {
        let mut pending: Vec<_> = self.pending.drain().collect();
        while let Some((_, first)) = pending.first() {
            let (device, dtype) = (first.device(), first.dtype());
            let (alike, others): (Vec<_>, Vec<_>) = pending
                .into_iter()
                .partition(|(_, squared)| squared.dtype() == dtype);
            let (params, squared): (Vec<_>, Vec<_>) = alike
                .into_iter()
                .map(|(param, squared)| (param, squared.to_device(&device)))
                .unzip();
            let read = Tensor::cat(squared, 0).into_data();
            self.known
                .extend(params.into_iter().zip(read.iter::<f64>()));
            pending = others;
        }
    }

    /// The global norm over the parameters that have a gradient.
    pub(super) fn global(&mut self, params: &[ParamId]) -> f64 {
        self.read();
        let mut seen = HashSet::new();
        let params = params.iter().filter(|param| seen.insert(**param));
        global_norm(params.filter_map(|param| self.known.get(param).copied()))
    }

    /// The first parameter whose gradient has no finite norm.
    pub(super) fn first_non_finite(&mut self, params: &[ParamId]) -> Option<ParamId> {
        self.read();
        let is_finite = |param| self.known.get(param).is_none_or(|norm| norm.is_finite());
        params.iter().find(|param| !is_finite(*param)).copied()
    }
}

/// The squared norm of a gradient: Burn's own sum, in 32 bits at least.
///
/// Needs no further memory if the gradient has no other owner.
pub(super) fn squared_norm<const D: usize>(grad: Tensor<D>) -> Tensor<1> {
    widened(grad).square().sum()
}

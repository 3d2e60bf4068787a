//! The norms of gradients.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard},
};

use burn::{
    module::ParamId,
    tensor::{DType, ElementConversion, FloatDType, Tensor, backend::Backend},
};

use crate::util::lock::lock;

/// The squared norms of the gradients of one step, as they come.
///
/// They stay on the device until [`read`](Self::read), which waits once for all of them.
#[derive(Default)]
pub(crate) struct SquaredNorms<B: Backend>(Mutex<HashMap<ParamId, Tensor<B, 1>>>);

impl<B: Backend> SquaredNorms<B> {
    fn found(&self) -> MutexGuard<'_, HashMap<ParamId, Tensor<B, 1>>> {
        lock(&self.0)
    }

    pub(crate) fn push(&self, param: ParamId, squared: Tensor<B, 1>) {
        self.found().insert(param, squared);
    }

    pub(crate) fn contains(&self, param: ParamId) -> bool {
        self.found().contains_key(&param)
    }

    /// The squared norm of each of `params` that has a gradient, in their order and once each. They
    /// stay here, to be read again.
    pub(crate) fn read(&self, params: impl IntoIterator<Item = ParamId>) -> Vec<(ParamId, f64)> {
        let mut found = self.found().clone();
        let mut pending: Vec<_> = params
            .into_iter()
            .filter_map(|param| Some((param, found.remove(&param)?)))
            .collect();
        let params: Vec<ParamId> = pending.iter().map(|(param, _)| *param).collect();
        let mut read = HashMap::new();
        // One read for each type: tensors of one type can be joined.
        while let Some((_, first)) = pending.first() {
            let (device, dtype) = (first.device(), first.dtype());
            let (alike, others): (Vec<_>, Vec<_>) = pending
                .into_iter()
                .partition(|(_, norm)| norm.dtype() == dtype);
            let (params, norms): (Vec<_>, Vec<_>) = alike
                .into_iter()
                .map(|(param, norm)| (param, norm.to_device(&device)))
                .unzip();
            let numbers = Tensor::cat(norms, 0).into_data();
            read.extend(params.into_iter().zip(numbers.iter::<f64>()));
            pending = others;
        }
        params
            .into_iter()
            .map(|param| (param, read[&param]))
            .collect()
    }
}

/// The squared norm of a gradient: Burn's own sum, in 32 bits at least.
///
/// Needs no extra memory if nothing else holds the gradient.
pub(crate) fn squared_norm<B: Backend, const D: usize>(grad: Tensor<B, D>) -> Tensor<B, 1> {
    widened(grad).square().sum()
}

/// The tensor in 32 bits at least.
pub(in crate::optimizer) fn widened<B: Backend, const D: usize>(
    tensor: Tensor<B, D>,
) -> Tensor<B, D> {
    match tensor.dtype() {
        DType::F16 | DType::BF16 => tensor.cast(FloatDType::F32),
        _ => tensor,
    }
}

/// Whether the norm is a finite number. Waits for the device.
pub(crate) fn is_finite<B: Backend>(squared: &Tensor<B, 1>) -> bool {
    let squared: f64 = squared.clone().into_scalar().elem();
    squared.is_finite()
}

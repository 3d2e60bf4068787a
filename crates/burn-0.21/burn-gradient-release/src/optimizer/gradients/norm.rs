//! The norms of gradients.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard},
};

use burn::{
    module::ParamId,
    tensor::{DType, FloatDType, Shape, Tensor, TensorData, backend::Backend},
};
use lean_arithmetic::norm::{Scales, Squares};

use crate::util::lock::lock;

/// The squared norms of the gradients of one step, as they come, as [`squared_norm`] has them.
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
    pub(crate) fn read(
        &self,
        params: impl IntoIterator<Item = ParamId>,
    ) -> Vec<(ParamId, Squares)> {
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
            let norms = Tensor::cat(norms, 0);
            read.extend(params.into_iter().zip(squares_in(norms)));
            pending = others;
        }
        params
            .into_iter()
            .map(|param| (param, read[&param]))
            .collect()
    }
}

/// The squared norm of a gradient, `[sum, scale]`: Burn's own sum, in 32 bits at least, of the
/// gradient times a [`scale`].
///
/// Needs no extra memory if nothing else holds the gradient.
pub(crate) fn squared_norm<B: Backend, const D: usize>(grad: Tensor<B, D>) -> Tensor<B, 1> {
    let grad = widened(grad);
    let shape = grad.shape();
    if shape.num_elements() == 0 {
        // Which have no largest one.
        let none = TensorData::from([0.0, 1.0]);
        return Tensor::from_data(none, (&grad.device(), grad.dtype()));
    }
    let (most, least) = (grad.clone().max(), grad.clone().min());
    let scale = scale(most.max_pair(-least));
    // Any rank will do.
    let of_all = Shape::from(vec![1; shape.num_dims()]);
    let sum = (grad * scale.clone().reshape(of_all)).square().sum();
    Tensor::cat(vec![sum, scale], 0)
}

/// What numbers are multiplied by before their squares are added up, by the largest magnitude among
/// them. It stays on the device.
pub(super) fn scale<B: Backend, const D: usize>(largest: Tensor<B, D>) -> Tensor<B, D> {
    let scales = match largest.dtype() {
        DType::F64 => Scales::F64,
        _ => Scales::F32,
    };
    let is_large = largest.clone().greater_elem(scales.large);
    let is_small = largest.clone().lower_elem(scales.small);
    let unscaled = largest.ones_like().mask_fill(is_large, scales.down);
    unscaled.mask_fill(is_small, scales.up)
}

/// The squared norms in a tensor of them. Waits for the device.
fn squares_in<B: Backend>(squared: Tensor<B, 1>) -> Vec<Squares> {
    let numbers: Vec<f64> = squared.into_data().iter().collect();
    Squares::of_pairs(&numbers).collect()
}

/// One squared norm. Waits for the device.
pub(super) fn squares<B: Backend>(squared: &Tensor<B, 1>) -> Squares {
    squares_in(squared.clone())[0]
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

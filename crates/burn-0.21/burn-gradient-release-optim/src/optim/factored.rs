//! A second moment as a column and a row: Shazeer and Stern, "Adafactor: Adaptive Learning Rates
//! with Sublinear Memory Cost" (2018), <https://arxiv.org/abs/1804.04235>.

use burn::{
    grad_clipping::GradientClippingConfig,
    record::Record,
    tensor::{DType, Tensor, backend::Backend},
};
use lean_arithmetic::optim;

use crate::number::Whole;

/// The moving average of a positive tensor: whole for a vector, and for each matrix of its last two
/// dimensions the means of rows and columns.
#[derive(Record, Clone, Debug)]
pub struct Factored<B: Backend, const D: usize> {
    /// All of it, for vectors and scalars.
    pub whole: Option<Tensor<B, D>>,
    /// Means over the last dimension, `[.., rows, 1]`.
    pub rows: Option<Tensor<B, D>>,
    /// Means over the last but one, `[.., 1, columns]`.
    pub columns: Option<Tensor<B, D>>,
}

impl<B: Backend, const D: usize> Factored<B, D> {
    pub(super) fn on_device(self, device: &B::Device) -> Self {
        let move_to = |tensor: Option<Tensor<B, D>>| tensor.map(|tensor| tensor.to_device(device));
        Self {
            whole: move_to(self.whole),
            rows: move_to(self.rows),
            columns: move_to(self.columns),
        }
    }

    /// For a step that computes in this type.
    pub(super) fn of_type(self, dtype: DType) -> optim::Factored<Whole<B, D>> {
        let whole = |tensor: Option<Tensor<B, D>>| tensor.map(|tensor| Whole(tensor.cast(dtype)));
        optim::Factored {
            whole: whole(self.whole),
            rows: whole(self.rows),
            columns: whole(self.columns),
        }
    }
}

impl<B: Backend, const D: usize> From<optim::Factored<Whole<B, D>>> for Factored<B, D> {
    fn from(factored: optim::Factored<Whole<B, D>>) -> Self {
        let tensor = |Whole(tensor)| tensor;
        Self {
            whole: factored.whole.map(tensor),
            rows: factored.rows.map(tensor),
            columns: factored.columns.map(tensor),
        }
    }
}

/// The gradient after Burn's clipping, before all else. None without elements, which have no mean.
pub(super) fn clipped<B: Backend, const D: usize>(
    clipping: &Option<GradientClippingConfig>,
    grad: Tensor<B, D>,
) -> Option<Tensor<B, D>> {
    if grad.shape().num_elements() == 0 {
        return None;
    }
    Some(match clipping {
        Some(clipping) => clipping.init().clip_gradient(grad),
        None => grad,
    })
}

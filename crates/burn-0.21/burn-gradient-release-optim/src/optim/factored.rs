//! A second moment as a column and a row: Shazeer and Stern, "Adafactor: Adaptive Learning Rates
//! with Sublinear Memory Cost" (2018), <https://arxiv.org/abs/1804.04235>.

use burn::{
    grad_clipping::GradientClippingConfig,
    record::Record,
    tensor::{DType, Tensor, backend::Backend},
};
use lean_arithmetic::optim;

use crate::{moment::Moment, number::Whole, step::floats};

/// The moving average of a positive tensor: whole for a vector, and for each matrix of its last two
/// dimensions the means of rows and columns.
#[derive(Record, Clone, Debug)]
pub struct Factored<B: Backend> {
    /// All of it, for vectors and scalars.
    pub whole: Option<Moment<B>>,
    /// Means over the last dimension, `[.., rows, 1]`.
    pub rows: Option<Moment<B>>,
    /// Means over the last but one, `[.., 1, columns]`.
    pub columns: Option<Moment<B>>,
}

impl<B: Backend> Factored<B> {
    pub(super) fn on_device(self, device: &B::Device) -> Self {
        Self::of_parts(self.into_parts().map(|part| part.on_device(device)))
    }

    /// For a step that computes in this type.
    pub(super) fn of_type<const D: usize>(self, dtype: DType) -> optim::Factored<Whole<B, D>> {
        self.into_parts().map(|part| Whole(floats(part, dtype)))
    }

    fn into_parts(self) -> optim::Factored<Moment<B>> {
        optim::Factored {
            whole: self.whole,
            rows: self.rows,
            columns: self.columns,
        }
    }

    fn of_parts(parts: optim::Factored<Moment<B>>) -> Self {
        Self {
            whole: parts.whole,
            rows: parts.rows,
            columns: parts.columns,
        }
    }
}

impl<B: Backend, const D: usize> From<optim::Factored<Whole<B, D>>> for Factored<B> {
    fn from(factored: optim::Factored<Whole<B, D>>) -> Self {
        Self::of_parts(factored.map(moment))
    }
}

/// The state after a step, in the type that it computed in. As a tensor of Burn's, a record would
/// load it in the type of the backend.
pub(super) fn moment<B: Backend, const D: usize>(Whole(tensor): Whole<B, D>) -> Moment<B> {
    Moment::Float(tensor.into_primitive().tensor())
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

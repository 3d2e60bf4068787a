//! A second moment as a column and a row: Shazeer and Stern, "Adafactor: Adaptive Learning Rates
//! with Sublinear Memory Cost" (2018), <https://arxiv.org/abs/1804.04235>.

use burn::grad_clipping::GradientClippingConfig;
use burn::optim::{StateSink, StateSource, join_path};
use burn::tensor::{DType, Device, Tensor};
use lean_arithmetic::optim;

use super::record::Field;
use super::step::Whole;

/// The moving average of a positive tensor: whole for a vector, and for each matrix of its last two
/// dimensions the means of rows and columns.
#[derive(Clone, Debug)]
pub struct Factored<const D: usize> {
    /// All of it, for vectors and scalars.
    pub whole: Option<Tensor<D>>,
    /// Means over the last dimension, `[.., rows, 1]`.
    pub rows: Option<Tensor<D>>,
    /// Means over the last but one, `[.., 1, columns]`.
    pub columns: Option<Tensor<D>>,
}

impl<const D: usize> Field for Factored<D> {
    fn flatten(&self, name: &str, out: &mut StateSink) {
        self.whole.flatten(&join_path(name, "whole"), out);
        self.rows.flatten(&join_path(name, "rows"), out);
        self.columns.flatten(&join_path(name, "columns"), out);
    }

    fn unflatten(name: &str, source: &mut StateSource, device: &Device) -> Option<Self> {
        let mut part = |leaf| Tensor::unflatten(&join_path(name, leaf), source, device);
        let (whole, rows, columns) = (part("whole"), part("rows"), part("columns"));
        let is_average = whole.is_some() || (rows.is_some() && columns.is_some());
        is_average.then_some(Self {
            whole,
            rows,
            columns,
        })
    }
}

impl<const D: usize> Factored<D> {
    pub(super) fn on_device(self, device: &Device) -> Self {
        let move_to = |tensor: Option<Tensor<D>>| tensor.map(|tensor| tensor.to_device(device));
        Self {
            whole: move_to(self.whole),
            rows: move_to(self.rows),
            columns: move_to(self.columns),
        }
    }

    /// For a step that computes in this type.
    pub(super) fn of_type(self, dtype: DType) -> optim::Factored<Whole<D>> {
        let whole = |tensor: Option<Tensor<D>>| tensor.map(|tensor| Whole(tensor.cast(dtype)));
        optim::Factored {
            whole: whole(self.whole),
            rows: whole(self.rows),
            columns: whole(self.columns),
        }
    }
}

impl<const D: usize> From<optim::Factored<Whole<D>>> for Factored<D> {
    fn from(factored: optim::Factored<Whole<D>>) -> Self {
        let tensor = |Whole(tensor)| tensor;
        Self {
            whole: factored.whole.map(tensor),
            rows: factored.rows.map(tensor),
            columns: factored.columns.map(tensor),
        }
    }
}

/// The gradient after Burn's clipping, before all else. None without elements, which have no mean.
pub(super) fn clipped<const D: usize>(
    clipping: &Option<GradientClippingConfig>,
    grad: Tensor<D>,
) -> Option<Tensor<D>> {
    if grad.shape().num_elements() == 0 {
        return None;
    }
    Some(match clipping {
        Some(clipping) => clipping.init().clip_gradient(grad),
        None => grad,
    })
}

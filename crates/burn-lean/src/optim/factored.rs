//! A second moment as a column and a row: Shazeer and Stern, "Adafactor: Adaptive Learning Rates
//! with Sublinear Memory Cost" (2018), <https://arxiv.org/abs/1804.04235>.

use burn::grad_clipping::GradientClippingConfig;
use burn::optim::{StateSink, StateSource, join_path};
use burn::tensor::{Device, Tensor};
use lean_arithmetic::optim;

use super::record::Field;
use crate::tensors::MapTensor;

/// The moving average of a positive tensor.
pub type Factored<const D: usize> = optim::Factored<Tensor<D>>;

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

    fn map_tensors(self, map: &mut MapTensor<'_>) -> Self {
        self.map(|part| part.map_tensors(map))
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

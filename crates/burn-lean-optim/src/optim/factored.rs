//! A second moment as a column and a row: Shazeer and Stern, "Adafactor: Adaptive Learning Rates with Sublinear
//! Memory Cost" (2018), <https://arxiv.org/abs/1804.04235>.

use burn::{
    record::Record,
    tensor::{Tensor, backend::Backend},
};

/// The moving average of a positive tensor: whole for a vector, and for each matrix of its last two dimensions the
/// means of rows and columns.
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
    /// Takes a tensor in, keeping `beta` of what was there; the first one counts as if there were zeros.
    pub(super) fn update(old: Option<Self>, new: Tensor<B, D>, beta: f64) -> Self {
        let average = |old: Option<Tensor<B, D>>, new: Tensor<B, D>| {
            let new = new.mul_scalar(1.0 - beta);
            Some(match old {
                Some(old) => old.mul_scalar(beta) + new,
                None => new,
            })
        };
        let (whole, rows, columns) =
            old.map_or((None, None, None), |old| (old.whole, old.rows, old.columns));
        if D < 2 {
            Self {
                whole: average(whole, new),
                rows: None,
                columns: None,
            }
        } else {
            let columns = average(columns, new.clone().mean_dim(D - 2));
            Self {
                whole: None,
                rows: average(rows, new.mean_dim(D - 1)),
                columns,
            }
        }
    }

    /// The tensor divided by the root of the average.
    pub(super) fn normalize(&self, tensor: Tensor<B, D>) -> Tensor<B, D> {
        match (&self.whole, &self.rows, &self.columns) {
            (_, Some(rows), Some(columns)) => {
                let mean = rows.clone().mean_dim(D - 2);
                let rows = rows.clone().div(mean).sqrt().recip();
                let columns = columns.clone().sqrt().recip();
                // One after the other: the product of both would be a temporary more.
                tensor.mul(rows).mul(columns)
            }
            (Some(whole), ..) => tensor.mul(whole.clone().sqrt().recip()),
            _ => unreachable!("`update` makes the whole, or rows and columns"),
        }
    }

    pub(super) fn on_device(self, device: &B::Device) -> Self {
        let move_to = |tensor: Option<Tensor<B, D>>| tensor.map(|tensor| tensor.to_device(device));
        Self {
            whole: move_to(self.whole),
            rows: move_to(self.rows),
            columns: move_to(self.columns),
        }
    }
}

/// The root of the mean of squares, `[1, .., 1]`.
pub(super) fn root_mean_square<B: Backend, const D: usize>(tensor: Tensor<B, D>) -> Tensor<B, D> {
    tensor.square().mean().sqrt().unsqueeze()
}

/// The update, scaled down to a root mean square of at most `threshold`.
pub(super) fn clip_update<B: Backend, const D: usize>(
    update: Tensor<B, D>,
    threshold: f64,
) -> Tensor<B, D> {
    let excess = root_mean_square(update.clone())
        .div_scalar(threshold)
        .clamp_min(1.0);
    update.div(excess)
}

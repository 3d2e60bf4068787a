//! Normalizations that keep their input, and no statistic: backward has to read the whole row, and
//! computes its mean and variance again.

use burn::tensor::Tensor;

use crate::backend::is_on_flex;

use super::chunks::{as_rows, map_along_with, map_rows, shaped};
#[cfg(feature = "flex")]
use super::flex;
use crate::wide::wide;

use super::node::{Gradient, OperandGradients, Operands, Operation, apply};

const INPUT: usize = 0;
const GAMMA: usize = 1;
const BETA: usize = 2;

/// Layer normalization over the last axis, as Burn's
/// [`layer_norm`](burn::tensor::module::layer_norm): `(x - mean) / sqrt(var + epsilon) * gamma +
/// beta`, from the paper [Layer Normalization](https://arxiv.org/abs/1607.06450).
///
/// Keeps its input for the backward pass, and nothing else.
///
/// # Shapes
///
/// - `input` and output: `[..., d_model]`
/// - `gamma` and `beta`: `[d_model]`
///
/// # Panics
///
/// If the last axis of `input` is not as long as `gamma`.
///
/// # Example
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use burn_lean::operations::layer_norm;
///
/// let device = Device::flex().autodiff();
/// let x = Tensor::<2>::from_floats([[1.0, 2.0, 3.0]], &device).require_grad();
/// let gamma = Tensor::<1>::ones([3], &device);
/// let y = layer_norm(x.clone(), gamma, None, 1e-5);
/// assert!(x.grad(&y.sum().backward()).is_some());
/// ```
pub fn layer_norm<const D: usize>(
    input: Tensor<D>,
    gamma: Tensor<1>,
    beta: Option<Tensor<1>>,
    epsilon: f64,
) -> Tensor<D> {
    row_norm(Statistic::MeanAndVariance, input, gamma, beta, epsilon)
}

/// Normalization by the root of the mean square over the last axis, as Burn's
/// [`RmsNorm`](burn::nn::RmsNorm): `x / sqrt(mean(x²) + epsilon) * gamma`, from the paper [Root
/// Mean Square Layer Normalization](https://arxiv.org/abs/1910.07467).
///
/// Keeps its input for the backward pass, and nothing else.
///
/// # Shapes
///
/// - `input` and output: `[..., d_model]`
/// - `gamma`: `[d_model]`
///
/// # Panics
///
/// If the last axis of `input` is not as long as `gamma`.
pub fn rms_norm<const D: usize>(input: Tensor<D>, gamma: Tensor<1>, epsilon: f64) -> Tensor<D> {
    row_norm(Statistic::MeanSquare, input, gamma, None, epsilon)
}

/// Normalization over groups of channels, as Burn's [`GroupNorm`](burn::nn::GroupNorm), from the
/// paper [Group Normalization](https://arxiv.org/abs/1803.08494).
///
/// Keeps its input for the backward pass, and nothing else.
///
/// # Shapes
///
/// - `input` and output: `[batch, channels, ...]`
/// - `gamma` and `beta`: `[channels]`
///
/// # Panics
///
/// If `input` has less than two axes, or its channels are not a multiple of `groups`, or as many as
/// `gamma` and `beta` have elements.
pub fn group_norm<const D: usize>(
    input: Tensor<D>,
    gamma: Option<Tensor<1>>,
    beta: Option<Tensor<1>>,
    groups: usize,
    epsilon: f64,
) -> Tensor<D> {
    let dims = input.dims();
    assert!(D >= 2, "group_norm: the input is `[batch, channels, ...]`");
    let channels = dims[1];
    assert!(
        groups > 0 && channels.is_multiple_of(groups),
        "group_norm: {channels} channels are no multiple of {groups} groups"
    );
    for affine in [&gamma, &beta].into_iter().flatten() {
        assert_eq!(
            affine.dims(),
            [channels],
            "group_norm: one element a channel"
        );
    }
    let operands = [
        Some(input.into_dispatch()),
        gamma.map(Tensor::into_dispatch),
        beta.map(Tensor::into_dispatch),
    ];
    apply(operands, |mut operands: Operands<3>| {
        let norm = GroupNorm {
            input: operands.take::<D>(INPUT),
            gamma: operands.take_optional(GAMMA),
            channels,
            groups,
            epsilon,
        };
        let output = norm.forward(operands.take_optional(BETA));
        (shaped(output, dims), norm)
    })
}

#[derive(Clone, Copy)]
enum Statistic {
    MeanAndVariance,
    MeanSquare,
}

fn row_norm<const D: usize>(
    statistic: Statistic,
    input: Tensor<D>,
    gamma: Tensor<1>,
    beta: Option<Tensor<1>>,
    epsilon: f64,
) -> Tensor<D> {
    let dims = input.dims();
    for affine in [Some(&gamma), beta.as_ref()].into_iter().flatten() {
        assert_eq!(
            dims[D - 1..],
            affine.dims(),
            "the last axis of the input is normalized, and gamma and beta have one element for each of it"
        );
    }
    let operands = [
        Some(input.into_dispatch()),
        Some(gamma.into_dispatch()),
        beta.map(Tensor::into_dispatch),
    ];
    apply(operands, |mut operands: Operands<3>| {
        let norm = RowNorm {
            statistic,
            input: operands.take::<D>(INPUT),
            gamma: operands.take::<1>(GAMMA),
            epsilon,
        };
        (norm.forward(operands.take_optional(BETA)), norm)
    })
}

#[derive(Clone)]
struct RowNorm<const D: usize> {
    statistic: Statistic,
    input: Tensor<D>,
    gamma: Tensor<1>,
    epsilon: f64,
}

impl<const D: usize> RowNorm<D> {
    /// Whether the whole operation is one pass over slices.
    #[cfg(feature = "flex")]
    fn has_slices(&self, beta: Option<&Tensor<1>>) -> bool {
        matches!(self.statistic, Statistic::MeanAndVariance)
            && flex::has_slices(&self.input)
            && flex::has_slices(&self.gamma)
            && beta.is_none_or(flex::has_slices)
    }

    /// In 32 bits at least, and rounded once.
    fn forward(&self, beta: Option<Tensor<1>>) -> Tensor<D> {
        let input = self.input.clone();
        #[cfg(feature = "flex")]
        if self.has_slices(beta.as_ref()) {
            return flex::layer_norm(input, self.gamma.clone(), beta, self.epsilon);
        }
        let (dtype, wide) = (input.dtype(), wide(input.dtype()));
        let gain = self.gamma.clone().cast(wide);
        let shift = beta.map(|beta| beta.cast(wide));
        let has_kernel = matches!(self.statistic, Statistic::MeanAndVariance);
        let dims = input.dims();
        if !is_on_flex(&input) && dtype == wide && has_kernel {
            let rows = as_rows(input);
            let output = burn::tensor::module::layer_norm::<2>(rows, gain, shift, self.epsilon);
            return shaped(output, dims);
        }
        let output = map_rows(as_rows(input), |_, rows| {
            let rows = rows.cast(wide);
            let (gain, shift) = (gain.clone(), shift.clone());
            #[cfg(feature = "flex")]
            if has_kernel && flex::has_slices(&rows) {
                return flex::layer_norm(rows, gain, shift, self.epsilon).cast(dtype);
            }
            let (normal, _) = normalized(self.statistic, rows, self.epsilon);
            let output = normal * gain.unsqueeze();
            match shift {
                Some(shift) => output + shift.unsqueeze(),
                None => output,
            }
            .cast(dtype)
        });
        shaped(output, dims)
    }
}

impl<const D: usize> Operation<3> for RowNorm<D> {
    const NAME: &'static str = "normalization";
    const MIXES: bool = true;

    fn backward(self, grad: Gradient, operands: &mut OperandGradients<'_, 3>) {
        #[cfg(feature = "flex")]
        if self.has_slices(None) {
            let grad = grad.tensor::<D>();
            let (of_input, [of_gamma, of_beta]) =
                flex::layer_norm_backward(self.input, self.gamma, grad, self.epsilon);
            operands.give(INPUT, of_input);
            operands.give(GAMMA, of_gamma);
            operands.give(BETA, of_beta);
            return;
        }
        let Self {
            statistic,
            input,
            gamma,
            epsilon,
        } = self;
        let dims = input.dims();
        let gain = gamma.cast(wide(input.dtype())).unsqueeze::<2>();
        let of_input = chunked_backward(
            [as_rows(input), as_rows(grad.tensor::<D>())],
            &gain,
            operands,
            |rows| normalized(statistic, rows, epsilon),
            |rows| rows.sum_dim(0),
            |grad, normal, deviation| {
                input_gradient(statistic, grad * gain.clone(), normal, deviation)
            },
        );
        operands.give(INPUT, shaped(of_input, dims));
    }
}

#[derive(Clone)]
struct GroupNorm<const D: usize> {
    /// `[batch, channels, ...]`
    input: Tensor<D>,
    gamma: Option<Tensor<1>>,
    channels: usize,
    groups: usize,
    epsilon: f64,
}

impl<const D: usize> GroupNorm<D> {
    /// `[batch, channels * elements of a channel]`
    fn by_batch(&self, tensor: Tensor<D>) -> Tensor<2> {
        let dims = self.input.dims();
        shaped(tensor, [dims[0], dims[1..].iter().product()])
    }

    /// `[batch, width]`, normalized by group, with the deviations `[batch * groups, 1]`.
    fn normalized(&self, rows: Tensor<2>) -> (Tensor<2>, Tensor<2>) {
        let dims = rows.dims();
        let (normal, deviation) = normalized(
            Statistic::MeanAndVariance,
            self.by_group(rows),
            self.epsilon,
        );
        (normal.reshape(dims), deviation)
    }

    fn by_group(&self, rows: Tensor<2>) -> Tensor<2> {
        let [batch, width] = rows.dims();
        rows.reshape([batch * self.groups, width / self.groups])
    }

    /// `[batch, width]` with an axis for the channels.
    fn by_channel(&self, rows: Tensor<2>) -> Tensor<3> {
        let [batch, width] = rows.dims();
        rows.reshape([batch, self.channels, width / self.channels])
    }

    fn forward(&self, beta: Option<Tensor<1>>) -> Tensor<2> {
        let (dtype, wide) = (self.input.dtype(), wide(self.input.dtype()));
        let affine = |of: &Tensor<1>| of.clone().cast(wide).reshape([1, self.channels, 1]);
        let (gain, shift) = (self.gamma.as_ref().map(affine), beta.as_ref().map(affine));
        map_rows(self.by_batch(self.input.clone()), |_, rows| {
            let dims = rows.dims();
            let mut output = self.by_channel(self.normalized(rows.cast(wide)).0);
            if let Some(gain) = &gain {
                output = output * gain.clone();
            }
            if let Some(shift) = &shift {
                output = output + shift.clone();
            }
            output.reshape(dims).cast(dtype)
        })
    }
}

impl<const D: usize> Operation<3> for GroupNorm<D> {
    const NAME: &'static str = "group_norm";
    const MIXES: bool = true;

    fn backward(self, grad: Gradient, operands: &mut OperandGradients<'_, 3>) {
        let wide = wide(self.input.dtype());
        let gain = match &self.gamma {
            Some(gamma) => gamma.clone().cast(wide),
            None => Tensor::ones([self.channels], (&self.input.device(), wide)),
        };
        let of_channels = gain.clone().reshape([1, self.channels, 1]);
        let of_input = chunked_backward(
            [self.input.clone(), grad.tensor::<D>()].map(|tensor| self.by_batch(tensor)),
            &gain.unsqueeze(),
            operands,
            |rows| self.normalized(rows),
            |rows| {
                let sums = self.by_channel(rows).sum_dim(2).sum_dim(0);
                sums.reshape([1, self.channels])
            },
            |grad, normal, deviation| {
                let dims = grad.dims();
                let grad = (self.by_channel(grad) * of_channels.clone()).reshape(dims);
                let [grad, normal] = [grad, normal].map(|rows| self.by_group(rows));
                let statistic = Statistic::MeanAndVariance;
                input_gradient(statistic, grad, normal, deviation).reshape(dims)
            },
        );
        operands.give(INPUT, shaped(of_input, self.input.dims()));
    }
}

/// Rows of mean 0 and variance 1, and the deviation that they were divided by.
fn normalized(statistic: Statistic, rows: Tensor<2>, epsilon: f64) -> (Tensor<2>, Tensor<2>) {
    let rows = match statistic {
        Statistic::MeanAndVariance => {
            // A mean of 1e6 is off by its last bit, which may be as much as the deviation: what is
            // left of it is the mean of the differences.
            let rows = rows.clone() - rows.mean_dim(1);
            rows.clone() - rows.mean_dim(1)
        }
        Statistic::MeanSquare => rows,
    };
    let deviation = (rows.clone().square().mean_dim(1) + epsilon).sqrt();
    (rows / deviation.clone(), deviation)
}

/// The gradient of rows, from that of the normalized ones.
fn input_gradient(
    statistic: Statistic,
    grad: Tensor<2>,
    normal: Tensor<2>,
    deviation: Tensor<2>,
) -> Tensor<2> {
    let along = (grad.clone() * normal.clone()).mean_dim(1);
    let centered = match statistic {
        Statistic::MeanAndVariance => grad.clone() - grad.mean_dim(1),
        Statistic::MeanSquare => grad,
    };
    (centered - normal * along) / deviation
}

/// Gives gamma and beta their gradients, and returns that of the input. Works on chunks of rows,
/// and computes their statistics again. `gain`, `[1, channels]`, and what the functions get and
/// return are wide:
///
/// - `normalize`: from rows to the normalized ones and their deviations;
/// - `sum`: from rows to `[1, channels]`;
/// - `of_input`: from the gradient of rows, the normalized ones and their deviations.
fn chunked_backward(
    [input, grad]: [Tensor<2>; 2],
    gain: &Tensor<2>,
    operands: &mut OperandGradients<'_, 3>,
    normalize: impl Fn(Tensor<2>) -> (Tensor<2>, Tensor<2>) + Sync,
    sum: impl Fn(Tensor<2>) -> Tensor<2> + Sync,
    of_input: impl Fn(Tensor<2>, Tensor<2>, Tensor<2>) -> Tensor<2> + Sync,
) -> Tensor<2> {
    let (dtype, wide) = (input.dtype(), gain.dtype());
    let wants = [GAMMA, BETA].map(|at| operands.wants(at));
    let mut totals = wants.map(|is_wanted| is_wanted.then(|| gain.zeros_like()));
    let add = |sums: [Option<Tensor<2>>; 2]| {
        for (total, sum) in totals.iter_mut().zip(sums) {
            if let (Some(total), Some(sum)) = (total, sum) {
                total.inplace(|total| total + sum);
            }
        }
    };
    let map = |chunk, [grad]: [Tensor<2>; 1]| {
        let grad = grad.cast(wide);
        let (normal, deviation) = normalize(input.clone().slice([chunk]).cast(wide));
        let [of_gamma, of_beta] = wants;
        let of_gamma = of_gamma.then(|| sum(grad.clone() * normal.clone()));
        let of_beta = of_beta.then(|| sum(grad.clone()));
        let grad = of_input(grad, normal, deviation).cast(dtype);
        ([grad], [of_gamma, of_beta])
    };
    let [grad] = map_along_with([grad], 0, map, add);
    for (at, total) in [GAMMA, BETA].into_iter().zip(totals) {
        if let Some(total) = total {
            operands.give(at, total.squeeze_dim::<1>(0));
        }
    }
    grad
}

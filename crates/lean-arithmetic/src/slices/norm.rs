//! Layer normalization of rows.

use super::math::mul_add;
use super::sums::{BLOCK, LANES, sum, total};
use super::vectorized::vectorized;

/// Normalization of rows by their mean and variance.
#[derive(Clone, Copy, Debug)]
pub struct LayerNorm {
    /// Added to the variance.
    pub epsilon: f64,
}

impl LayerNorm {
    /// Writes `(x - mean) / sqrt(variance + epsilon) * gamma + beta` of each row. Rows have the
    /// length of `gamma`.
    pub fn rows(self, input: &[f32], gamma: &[f32], beta: Option<&[f32]>, output: &mut [f32]) {
        normalize(self.epsilon, input, gamma, beta, output);
    }

    /// Replaces gradients of rows of the output by those of the input, and adds to the sums that
    /// are the gradients of `gamma` and `beta`.
    pub fn backward(
        self,
        input: &[f32],
        gamma: &[f32],
        grad: &mut [f32],
        [of_gamma, of_beta]: [&mut [f32]; 2],
    ) {
        backward(self.epsilon, input, gamma, grad, of_gamma, of_beta);
    }
}

/// The mean of a row, and one over its deviation.
#[derive(Clone, Copy)]
struct Statistics {
    mean: f32,
    /// What the mean, rounded to 32 bits, is off by: as much as the deviation where the mean is
    /// large beside it.
    rest: f32,
    scale: f32,
}

impl Statistics {
    #[inline(always)]
    fn of(row: &[f32], epsilon: f64) -> Self {
        let count = row.len() as f64;
        let mean = (sum(row) / count) as f32;
        let (mut rest, mut square) = (0.0, 0.0);
        for block in row.chunks(BLOCK) {
            let (lanes, after) = block.as_chunks::<LANES>();
            let (mut sums, mut squares) = ([0.0; LANES], [0.0; LANES]);
            for numbers in lanes {
                for lane in 0..LANES {
                    let number = numbers[lane] - mean;
                    sums[lane] += number;
                    squares[lane] += number * number;
                }
            }
            for ((sum, square), number) in sums.iter_mut().zip(&mut squares).zip(after) {
                let number = number - mean;
                *sum += number;
                *square += number * number;
            }
            rest += total(sums);
            square += total(squares);
        }
        let rest = rest / count;
        let variance = square / count - rest * rest;
        // Rounding may make it negative, where `max` would hide NaN.
        let variance = if variance < 0.0 { 0.0 } else { variance };
        Self {
            mean,
            rest: rest as f32,
            scale: (1.0 / (variance + epsilon).sqrt()) as f32,
        }
    }

    #[inline(always)]
    fn normal(self, number: f32) -> f32 {
        ((number - self.mean) - self.rest) * self.scale
    }
}

vectorized! {
    fn normalize<S>(
        epsilon: f64,
        input: &[f32],
        gamma: &[f32],
        beta: Option<&[f32]>,
        output: &mut [f32],
    ) {
        let width = gamma.len().max(1);
        for (input, output) in input.chunks_exact(width).zip(output.chunks_exact_mut(width)) {
            let statistics = Statistics::of(input, epsilon);
            let affine = input.iter().zip(output.iter_mut()).zip(gamma);
            match beta {
                Some(beta) => {
                    for (((x, y), gamma), beta) in affine.zip(beta) {
                        *y = mul_add::<S>(statistics.normal(*x), *gamma, *beta);
                    }
                }
                None => {
                    for ((x, y), gamma) in affine {
                        *y = statistics.normal(*x) * gamma;
                    }
                }
            }
        }
    }

    fn backward<S>(
        epsilon: f64,
        input: &[f32],
        gamma: &[f32],
        grad: &mut [f32],
        of_gamma: &mut [f32],
        of_beta: &mut [f32],
    ) {
        let width = gamma.len().max(1);
        for (input, grad) in input.chunks_exact(width).zip(grad.chunks_exact_mut(width)) {
            let statistics = Statistics::of(input, epsilon);
            let affine = of_gamma.iter_mut().zip(of_beta.iter_mut());
            for ((x, grad), (of_gamma, of_beta)) in input.iter().zip(grad.iter()).zip(affine) {
                *of_gamma = mul_add::<S>(statistics.normal(*x), *grad, *of_gamma);
                *of_beta += *grad;
            }
            let [mean, along] = means(statistics, input, gamma, grad);
            for ((x, gamma), grad) in input.iter().zip(gamma).zip(grad) {
                let normal = statistics.normal(*x);
                *grad = (*grad * gamma - mean - normal * along) * statistics.scale;
            }
        }
    }
}

/// The mean of the gradient of the normalized row, and that of its products with the row.
#[inline(always)]
fn means(statistics: Statistics, input: &[f32], gamma: &[f32], grad: &[f32]) -> [f32; 2] {
    let (mut mean, mut along) = (0.0, 0.0);
    let blocks = input
        .chunks(BLOCK)
        .zip(gamma.chunks(BLOCK))
        .zip(grad.chunks(BLOCK));
    for ((input, gamma), grad) in blocks {
        let (inputs, input) = input.as_chunks::<LANES>();
        let (gammas, gamma) = gamma.as_chunks::<LANES>();
        let (grads, grad) = grad.as_chunks::<LANES>();
        let (mut sums, mut products) = ([0.0; LANES], [0.0; LANES]);
        for ((input, gamma), grad) in inputs.iter().zip(gammas).zip(grads) {
            for lane in 0..LANES {
                let grad = grad[lane] * gamma[lane];
                sums[lane] += grad;
                products[lane] += grad * statistics.normal(input[lane]);
            }
        }
        let rest = input.iter().zip(gamma).zip(grad);
        for (((input, gamma), grad), (sum, product)) in rest.zip(sums.iter_mut().zip(&mut products))
        {
            let grad = grad * gamma;
            *sum += grad;
            *product += grad * statistics.normal(*input);
        }
        mean += total(sums);
        along += total(products);
    }
    let count = input.len() as f64;
    [(mean / count) as f32, (along / count) as f32]
}

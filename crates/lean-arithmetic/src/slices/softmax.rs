//! Softmax of rows.

use pulp::Simd;

use super::math::{exp, mul_add};
use super::sums::{BLOCK, LANES, dot, max, sum, total};
use super::vectorized::vectorized;

/// How rows are normalized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Softmax {
    /// `exp(x) / sum(exp(x))`. A row of minus infinity becomes NaN.
    Plain,
    /// The same, where a row of minus infinity becomes zeros.
    MayBeEmpty,
    /// `exp(x) / (1 + sum(exp(x)))`
    Quiet,
    /// `x - ln(sum(exp(x)))`
    Log,
}

impl Softmax {
    /// Replaces rows of this width.
    pub fn rows(self, rows: &mut [f32], width: usize) {
        normalize(self, rows, width);
    }

    /// Replaces gradients of rows of the output by those of the input.
    pub fn backward(self, output: &[f32], grad: &mut [f32], width: usize) {
        match self {
            Self::Log => log_backward(output, grad, width),
            _ => backward(output, grad, width),
        }
    }
}

vectorized! {
    fn normalize<S>(softmax: Softmax, rows: &mut [f32], width: usize) {
        for row in rows.chunks_exact_mut(width.max(1)) {
            let mut most = max(row);
            if matches!(softmax, Softmax::MayBeEmpty | Softmax::Quiet) && most < f32::MIN {
                most = f32::MIN;
            }
            let mut sum = 0.0;
            if softmax == Softmax::Log {
                for block in row.chunks(BLOCK) {
                    let mut block_of = [0.0; BLOCK];
                    block_of[..block.len()].copy_from_slice(block);
                    sum += exp_and_sum::<S>(&mut block_of[..block.len()], most);
                }
                let log = sum.ln() as f32;
                for number in row {
                    *number = (*number - most) - log;
                }
                continue;
            }
            for block in row.chunks_mut(BLOCK) {
                sum += exp_and_sum::<S>(block, most);
            }
            match softmax {
                // Not zero over zero.
                Softmax::MayBeEmpty => sum += f64::from(f32::MIN_POSITIVE),
                Softmax::Quiet => sum += (-f64::from(most)).exp(),
                Softmax::Plain | Softmax::Log => {}
            }
            let [factor, low] = split(1.0 / sum);
            for number in row {
                *number = mul_add::<S>(*number, factor, *number * low);
            }
        }
    }

    /// `grad - exp(y) * sum(grad)`
    fn log_backward<S>(output: &[f32], grad: &mut [f32], width: usize) {
        let width = width.max(1);
        for (output, grad) in output.chunks_exact(width).zip(grad.chunks_exact_mut(width)) {
            let sum = sum(grad) as f32;
            for (output, grad) in output.iter().zip(grad) {
                *grad -= exp::<S>(*output) * sum;
            }
        }
    }

    /// `y * (grad - sum(grad * y))`
    fn backward<S>(output: &[f32], grad: &mut [f32], width: usize) {
        let width = width.max(1);
        for (output, grad) in output.chunks_exact(width).zip(grad.chunks_exact_mut(width)) {
            let [along, low] = split(dot(output, grad));
            for (output, grad) in output.iter().zip(grad) {
                *grad = mul_add::<S>(*output, *grad - along, -low * output);
            }
        }
    }
}

/// Replaces numbers by `exp(x - most)`, and returns their sum.
#[inline(always)]
fn exp_and_sum<S: Simd>(block: &mut [f32], most: f32) -> f64 {
    let (lanes, rest) = block.as_chunks_mut::<LANES>();
    let mut sums = [0.0; LANES];
    for numbers in lanes {
        for lane in 0..LANES {
            numbers[lane] = exp::<S>(numbers[lane] - most);
            sums[lane] += numbers[lane];
        }
    }
    for (sum, number) in sums.iter_mut().zip(rest) {
        *number = exp::<S>(*number - most);
        *sum += *number;
    }
    total(sums)
}

/// A number in 32 bits, and what it lacks. Without that all numbers of a row would be off by the
/// same, and gradients of a long row that cancel would not.
#[inline(always)]
fn split(number: f64) -> [f32; 2] {
    let high = number as f32;
    [high, (number - f64::from(high)) as f32]
}

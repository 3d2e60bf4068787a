//! Norms of gradients.

/// The sum of the squares of a gradient that was multiplied by a scale of [`Scales`]. So the squares
/// of a finite gradient are finite, and those of a small one are more than zero.
#[derive(Clone, Copy, Debug)]
pub struct Squares {
    /// The sum.
    pub sum: f64,
    /// The scale, a power of two: where a sum without it has all its bits, the norm has them, too.
    pub scale: f64,
}

impl Squares {
    /// Those in a tensor of `[sum, scale, sum, scale, ..]`.
    pub fn of_pairs(numbers: &[f64]) -> impl Iterator<Item = Self> {
        numbers.chunks_exact(2).map(|pair| Self {
            sum: pair[0],
            scale: pair[1],
        })
    }

    /// The norm of the gradient itself.
    pub fn norm(self) -> f64 {
        self.sum.sqrt() / self.scale
    }

    /// Whether the norm is a finite number.
    pub fn is_finite(self) -> bool {
        self.norm().is_finite()
    }
}

/// The scales of numbers whose squares are added up. With a scale, 2^32 of them have no sum that
/// overflows, and with or without, those whose squares are lost are too small to count.
#[derive(Clone, Copy, Debug)]
pub struct Scales {
    /// Numbers with a larger one among them are multiplied by [`down`](Self::down).
    pub large: f64,
    /// Scale of large numbers.
    pub down: f64,
    /// Numbers that are all smaller are multiplied by [`up`](Self::up).
    pub small: f64,
    /// Scale of small numbers.
    pub up: f64,
}

impl Scales {
    /// Those of `f32`, from 2^-126 to 2^128.
    pub const F32: Self = Self::of_powers(46, -80, -34, 80);
    /// Those of `f64`, from 2^-1022 to 2^1024.
    pub const F64: Self = Self::of_powers(460, -600, -400, 600);

    const fn of_powers(large: i64, down: i64, small: i64, up: i64) -> Self {
        Self {
            large: power_of_two(large),
            down: power_of_two(down),
            small: power_of_two(small),
            up: power_of_two(up),
        }
    }
}

const fn power_of_two(exponent: i64) -> f64 {
    f64::from_bits(((1023 + exponent) as u64) << 52)
}

/// The global norm of gradients with these squares.
///
/// Sums in 64 bits, in the order given. Give them in the order of the model's fields: the order in
/// which gradients complete depends on the model and on recomputation.
pub fn global_norm(squares: impl IntoIterator<Item = Squares>) -> f64 {
    let squares: Vec<Squares> = squares.into_iter().collect();
    // That of the largest gradients.
    let scale = squares.iter().map(|squares| squares.scale);
    let scale = scale.fold(f64::INFINITY, f64::min);
    let squares = squares.iter().map(|Squares { sum, scale: own }| {
        let change = scale / own;
        sum * change * change
    });
    squares.sum::<f64>().sqrt() / scale
}

/// The norm of the gradients of a step, measured before the step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GradNorm {
    norm: f64,
    coefficient: f64,
}

impl GradNorm {
    /// Of this norm, and with this factor for every gradient.
    #[doc(hidden)] // It is measured, not made.
    pub fn new(norm: f64, coefficient: f64) -> Self {
        Self { norm, coefficient }
    }

    /// The global norm, before clipping and without the scale of the loss. Not a number, or
    /// infinite, if a gradient has overflowed: then no step is taken.
    pub fn norm(&self) -> f64 {
        self.norm
    }

    /// Factor for every gradient.
    pub fn coefficient(&self) -> f64 {
        self.coefficient
    }

    /// Whether the gradients can be stepped with.
    pub fn is_finite(&self) -> bool {
        self.norm.is_finite()
    }
}

/// Factor for gradients of this global norm: `max_norm / (norm + 1e-6)` where that is less than
/// one, as PyTorch's `clip_grad_norm_` has it.
pub fn coefficient_for(max_norm: f64, norm: f64) -> f64 {
    (max_norm / (norm + 1e-6)).min(1.0)
}

/// Factor that takes a norm down to `target`; one if it is not above.
pub fn ratio(target: f64, norm: f64) -> f64 {
    if target < norm { target / norm } else { 1.0 }
}

/// A coefficient as two factors, to be multiplied by one after the other. `f32` has not all bits of
/// the smallest coefficients, such as that of a norm of 1e38.
pub fn factors(coefficient: f64) -> [f64; 2] {
    let first = match coefficient < f64::from(f32::MIN_POSITIVE) {
        true => power_of_two(-64),
        false => 1.0,
    };
    [first, coefficient / first]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The scale of numbers of this size.
    fn scale(scales: Scales, size: f64) -> f64 {
        match size {
            size if size > scales.large => scales.down,
            size if size < scales.small => scales.up,
            _ => 1.0,
        }
    }

    /// Of one number, and of 2^32: the norm of those is 2^16 times as large.
    #[test]
    fn norms_are_finite_and_exact_from_the_smallest_number_to_the_largest() {
        for exponent in -126..128 {
            let number = 2f32.powi(exponent);
            let scale = scale(Scales::F32, number.into());
            let square = (number * scale as f32).powi(2);
            for count in [1.0, 2f32.powi(32)] {
                let sum = f64::from(square * count);
                let norm = Squares { sum, scale }.norm();
                let expected = f64::from(number) * f64::from(count).sqrt();
                assert_eq!(norm, expected, "{number:e}");
            }
        }
        for exponent in -1022..1000 {
            let number = 2f64.powi(exponent);
            let scale = scale(Scales::F64, number);
            let sum = (number * scale).powi(2) * 2f64.powi(32);
            let norm = Squares { sum, scale }.norm();
            assert_eq!(norm, number * 65536.0, "{number:e}");
        }
    }

    /// Of 3 and 4, times a size of each, beside others that are smaller.
    #[test]
    fn the_global_norm_is_that_of_gradients_of_any_size() {
        let squares = |number: f64| {
            let scale = scale(Scales::F32, number);
            let sum = (number * scale).powi(2);
            Squares { sum, scale }
        };
        for size in [1e-36, 1e-25, 1.0, 1e22, 8e37] {
            for others in [0.0, 1e-20] {
                let numbers = [3.0, others, 4.0, others].map(|number| squares(number * size));
                let norm = global_norm(numbers);
                assert!((norm / (5.0 * size) - 1.0).abs() < 1e-14, "{size:e}");
            }
        }
        assert_eq!(global_norm([squares(0.0)]), 0.0);
        assert_eq!(global_norm([]), 0.0);
    }

    #[test]
    fn both_factors_are_numbers_of_f32() {
        for coefficient in [0.7, 1e-37, 1e-38, 3e-39, 1e-45, 1e-50] {
            let [first, second] = factors(coefficient);
            assert_eq!(first * second, coefficient);
            assert!(second > f64::from(f32::MIN_POSITIVE) && first <= 1.0);
        }
    }
}

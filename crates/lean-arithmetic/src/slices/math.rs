//! Functions of one number, without branches: a loop over them becomes one over registers.

use pulp::Simd;

/// `a * b + c`, rounded once where the processor has an instruction for that.
#[inline(always)]
pub(super) fn mul_add<S: Simd>(a: f32, b: f32, c: f32) -> f32 {
    // Without the instruction, `f32::mul_add` is a call.
    match S::IS_SCALAR || cfg!(target_family = "wasm") {
        true => a * b + c,
        false => a.mul_add(b, c),
    }
}

/// The polynomial of `x` with these coefficients, that of the highest power first.
#[inline(always)]
fn polynomial<S: Simd, const N: usize>(x: f32, coefficients: [f32; N]) -> f32 {
    let mut sum = coefficients[0];
    let mut at = 1;
    while at < N {
        sum = mul_add::<S>(sum, x, coefficients[at]);
        at += 1;
    }
    sum
}

/// `e^x`, off by at most one unit in the last place.
///
/// `x` is `n * ln(2) + r`, where `n` is whole: the result is `2^n * e^r`.
#[inline(always)]
pub(super) fn exp<S: Simd>(x: f32) -> f32 {
    /// Added to a small number, it leaves the nearest whole number in the lowest bits.
    const SHIFT: f32 = 12_582_912.0;
    /// `ln(2)` in two parts. The first has few bits, so that its product with `n` is exact.
    const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
    // Fitted to `(e^r - 1 - r) / r^2` from `-ln(2) / 2` to `ln(2) / 2`: the error is 3e-9 of `e^r`.
    const FITTED: [f32; 5] = [
        0.001_381_454,
        0.008_368_745,
        0.041_668_39,
        0.166_665_21,
        0.499_999_94,
    ];
    // Beyond these it is zero or infinite. NaN stays NaN.
    let x = if x < -104.0 { -104.0 } else { x };
    let x = if x > 89.0 { 89.0 } else { x };
    let shifted = mul_add::<S>(x, std::f32::consts::LOG2_E, SHIFT);
    let n = shifted - SHIFT;
    let r = mul_add::<S>(n, -LN_2[1], mul_add::<S>(n, -LN_2[0], x));
    let tail = polynomial::<S, 5>(r, FITTED) * r;
    let of_r = mul_add::<S>(tail, r, r) + 1.0;
    // In two steps, since `2^n` may be too small or too large where the result is not.
    let n = shifted
        .to_bits()
        .wrapping_sub(SHIFT.to_bits())
        .cast_signed();
    let half = n >> 1;
    of_r * power_of_two(half) * power_of_two(n.wrapping_sub(half))
}

/// `2^n`, for `n` from -126 to 127.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits(n.wrapping_add(127).cast_unsigned() << 23)
}

/// `1 / (1 + e^-x)`, and one less that.
#[inline(always)]
pub(super) fn sigmoid<S: Simd>(x: f32) -> [f32; 2] {
    let exp = exp::<S>(-x);
    let sigmoid = 1.0 / (1.0 + exp);
    // The difference from one would have few bits.
    let rest = if exp == f32::INFINITY {
        1.0
    } else {
        exp * sigmoid
    };
    [sigmoid, rest]
}

/// The distribution function of the normal distribution at `x`, and its density.
///
/// With `t = |x|`, the upper tail is `e^(-t²/2)` times a function of `t` that falls slowly, here a
/// polynomial of `1 / (1 + 0.33 t)`. So one exponential gives both.
#[inline(always)]
pub(super) fn normal<S: Simd>(x: f32) -> [f32; 2] {
    // Fitted from 0 to 14: the error of the distribution is 3e-9.
    const FITTED: [f32; 7] = [
        0.044_502_59,
        -0.215_683_56,
        0.321_741_7,
        -0.079_599_82,
        0.175_529_27,
        0.121_093_154,
        0.132_416_68,
    ];
    /// `1 / √(2π)`
    const DENSITY: f32 = 0.398_942_3;
    let falling = exp::<S>(x * x * -0.5);
    let k = 1.0 / mul_add::<S>(x.abs(), 0.33, 1.0);
    let tail = polynomial::<S, 7>(k, FITTED) * k * falling;
    let distribution = if x > 0.0 { 1.0 - tail } else { tail };
    [distribution, falling * DENSITY]
}

#[cfg(test)]
mod tests {
    use pulp::{Arch, WithSimd};

    use super::*;

    #[derive(Clone, Copy)]
    enum Function {
        Exp,
        Sigmoid,
        OneLessSigmoid,
        Distribution,
        Density,
    }

    struct Run<'a>(Function, &'a [f32]);

    impl WithSimd for Run<'_> {
        type Output = Vec<f32>;

        #[inline(always)]
        fn with_simd<S: Simd>(self, _: S) -> Vec<f32> {
            let Self(function, numbers) = self;
            let of = |x: f32| match function {
                Function::Exp => exp::<S>(x),
                Function::Sigmoid => sigmoid::<S>(x)[0],
                Function::OneLessSigmoid => sigmoid::<S>(x)[1],
                Function::Distribution => normal::<S>(x)[0],
                Function::Density => normal::<S>(x)[1],
            };
            numbers.iter().map(|x| of(*x)).collect()
        }
    }

    /// The results with the vector instructions of this processor, and without them.
    fn run(function: Function, numbers: &[f32]) -> [Vec<f32>; 2] {
        let without = Arch::Scalar.dispatch(Run(function, numbers));
        [Arch::new().dispatch(Run(function, numbers)), without]
    }

    /// Numbers of both signs and all sizes, and those around zero.
    fn numbers() -> Vec<f32> {
        let sizes = (0..0x7f80_0000_u32).step_by(20_011).map(f32::from_bits);
        let around = (0..400_000).map(|at| at as f32 * 3e-4);
        let edges = [
            0.0,
            f32::MIN_POSITIVE,
            1e-45,
            87.33,
            88.72284,
            103.97,
            1e20,
            f32::MAX,
        ];
        let numbers = sizes.chain(around).chain(edges);
        numbers.flat_map(|x| [x, -x]).collect()
    }

    /// The distance between two neighbours of `f32` at a number.
    fn unit(number: f64) -> f64 {
        let number = (number as f32).abs().min(f32::MAX);
        f64::from(f32::from_bits(number.to_bits() & 0x7f80_0000)).max(2f64.powi(-126))
            * 2f64.powi(-23)
    }

    fn assert_near(function: Function, exact: impl Fn(f64) -> f64, allowed: impl Fn(f64) -> f64) {
        let numbers = numbers();
        for found in run(function, &numbers) {
            for (x, found) in numbers.iter().zip(found) {
                let exact = exact(f64::from(*x));
                if exact > f64::from(f32::MAX) {
                    assert!(found >= 3.4e38, "{x:e}: {found:e}");
                    continue;
                }
                let off = (f64::from(found) - exact).abs();
                assert!(off <= allowed(exact), "{x:e}: {found:e}, {exact:e}");
            }
        }
    }

    #[test]
    fn the_exponential_is_off_by_one_unit_in_the_last_place() {
        assert_near(Function::Exp, f64::exp, unit);
    }

    #[test]
    fn the_sigmoid_is_off_by_three_units() {
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        // Below e^-88, `e^-x` is infinite.
        let allowed = |exact| 3.0 * unit(exact) + 1e-38;
        assert_near(Function::Sigmoid, sigmoid, allowed);
        assert_near(Function::OneLessSigmoid, |x| sigmoid(-x), allowed);
    }

    #[test]
    fn the_normal_distribution_is_off_by_two_roundings_of_one() {
        let roundings = |_| 2.0 * f64::from(f32::EPSILON);
        let distribution = |x: f64| 0.5 * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2);
        assert_near(Function::Distribution, distribution, roundings);
        let density = |x: f64| (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt();
        assert_near(Function::Density, density, roundings);
    }

    #[test]
    fn nan_stays_nan_and_infinity_has_the_limit() {
        let limits = [
            (Function::Exp, [f32::INFINITY, 0.0]),
            (Function::Sigmoid, [1.0, 0.0]),
            (Function::OneLessSigmoid, [0.0, 1.0]),
            (Function::Distribution, [1.0, 0.0]),
            (Function::Density, [0.0, 0.0]),
        ];
        for (function, expected) in limits {
            for found in run(
                function,
                &[f32::INFINITY, f32::NEG_INFINITY, f32::NAN, -f32::NAN],
            ) {
                assert_eq!(found[..2], expected);
                assert!(found[2].is_nan() && found[3].is_nan());
            }
        }
    }
}

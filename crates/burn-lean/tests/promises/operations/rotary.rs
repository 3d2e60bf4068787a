//! Rotary encoding of positions.

use burn_lean::operations::nn::{self, LeanModule};
use burn_lean::operations::rotary_encoding;

use super::harness::{Case, noise, shaped};
use crate::harness::prelude::*;

/// `[time, width, 2]`, in f32.
fn frequencies([time, width]: [usize; 2]) -> Vec<f64> {
    let of = |position: usize, feature: usize| {
        let pair = (feature / 2) as f64;
        let angle = position as f64 * 100_f64.powf(-2.0 * pair / width as f64);
        [angle.cos(), angle.sin()].map(|x| f64::from(x as f32))
    };
    let of_position = |position| (0..width).flat_map(move |feature| of(position, feature));
    (0..time).flat_map(of_position).collect()
}

/// Of `[batch, heads, time, width]`, or of `[batch, time, heads, width]` with its axes swapped.
pub(crate) fn case(dims: [usize; 4], is_by_time: bool) -> Case {
    let [batch, heads, time, width] = dims;
    let split = move |leaf: &Tensor<1>| -> Tensor<4> {
        match is_by_time {
            true => shaped(leaf, [batch, time, heads, width]).swap_dims(1, 2),
            false => shaped(leaf, dims),
        }
    };
    let table = move |like: &Tensor<4>, dtype: DType| -> Tensor<3> {
        let data = TensorData::new(frequencies([time, width]), [time, width, 2]);
        Tensor::from_data(data.convert_dtype(dtype), (&like.device(), dtype))
    };
    let flat = |x: Tensor<4>| x.flatten(0, 3);
    Case::new(
        format!("rotary_encoding of {dims:?}, by time: {is_by_time}"),
        vec![noise(dims.iter().product(), 1)],
        move |leaves| {
            let x = split(&leaves[0]);
            let of_pairs = |x: Tensor<4>, at| {
                let pairs: Tensor<5> = x.reshape([batch, heads, time, width / 2, 2]);
                pairs.narrow(4, at, 1)
            };
            let table = table(&x, x.dtype());
            let of_table = |at| {
                let table = table.clone().narrow(2, at, 1).reshape([1, 1, time, width]);
                of_pairs(table.expand(dims), 0)
            };
            let [cos, sin] = [0, 1].map(of_table);
            let [one, other] = [0, 1].map(|at| of_pairs(x.clone(), at));
            let rotated = vec![
                one.clone() * cos.clone() - other.clone() * sin.clone(),
                other * cos + one * sin,
            ];
            flat(Tensor::<5>::cat(rotated, 4).reshape(dims))
        },
        move |leaves| {
            let x = split(&leaves[0]);
            let table = table(&x, DType::F32);
            flat(rotary_encoding(x, table))
        },
    )
}

#[test]
fn pairs_are_rotated_by_the_angles_of_their_positions() {
    for dims in [[2, 3, 5, 4], [1, 1, 1, 2], [3, 1, 7, 6], [2, 2, 601, 130]] {
        for is_by_time in [false, true] {
            case(dims, is_by_time).assert_equal(4.0);
        }
    }
    for empty in [[0, 3, 4, 2], [2, 3, 0, 4]] {
        let case = case(empty, false);
        let found = case.found(&flex(), DType::F32);
        assert!(found.value.is_empty() && found.grads[0].is_empty());
    }
}

/// Bit for bit, and its gradient.
#[test]
fn the_module_is_burns() {
    let plain = burn::nn::RotaryEncodingConfig::new(20, 8).init(&flex());
    let lean: nn::RotaryEncoding = plain.clone().lean();
    let leaf = || numbers([2, 3, 7, 8], 1, &flex()).require_grad();
    let weights = numbers([2, 3, 7, 8], 2, &flex());
    for start in [0, 13] {
        let (x, y) = (leaf(), leaf());
        let (expected, found) = (plain.apply(x.clone(), start), lean.apply(y.clone(), start));
        assert_eq!(found.to_data(), expected.to_data());
        let grads = (found * weights.clone()).sum().backward();
        let plain_grads = (expected * weights.clone()).sum().backward();
        let (found, expected) = (y.grad(&grads).unwrap(), x.grad(&plain_grads).unwrap());
        assert_eq!(found.into_data(), expected.into_data());
    }
    assert_panics(|| lean.apply(leaf(), 14), "exceeds the size");
}

#[test]
fn frequencies_that_do_not_fit_are_refused() {
    let x = || Tensor::<2>::ones([5, 4], &flex());
    let of = |dims: [usize; 3]| Tensor::<3>::ones(dims, &flex());
    assert_panics(|| rotary_encoding(x(), of([4, 4, 2])), "of pairs");
    assert_panics(
        || rotary_encoding(x(), of([5, 4, 2]).require_grad()),
        "detach",
    );
    let odd = || Tensor::<2>::ones([5, 3], &flex());
    assert_panics(|| rotary_encoding(odd(), of([5, 3, 2])), "of pairs");
}

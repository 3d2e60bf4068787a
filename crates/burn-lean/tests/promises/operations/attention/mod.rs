//! Attention as one operation.

mod cases;

use burn::tensor::activation::softmax;
use burn::tensor::ops::AttentionModuleOptions;
use burn_lean::operations::{Attention, attention};

use self::cases::{Options, SHAPES, mask, options};
use super::harness::{Case, coarse, noise, run, shaped};
use crate::harness::prelude::*;

pub(crate) use self::cases::{NONE, PACKED, Shape};

#[test]
fn attention_is_that_of_its_parts() {
    for shape in SHAPES {
        for options in options() {
            // NaN from rows without keys go through a mask as NaN there.
            let is_empty = options.mask_attn == Some(f64::NEG_INFINITY);
            if is_empty || shape.batch == 0 || !options.fits(shape) {
                continue;
            }
            options.case(shape).assert_equal(64.0);
        }
    }
}

#[test]
fn a_batch_of_none_and_no_keys_have_gradients() {
    let no_keys = Shape {
        key_time: 0,
        ..Shape::new(2, 2, 3, 4)
    };
    let no_time = Shape {
        time: 0,
        ..Shape::new(2, 2, 3, 4)
    };
    for shape in [Shape::new(0, 2, 3, 4), no_keys, no_time] {
        let fit = options().into_iter();
        for options in fit.filter(|options| !options.documents || shape.time == shape.key_time) {
            for device in devices() {
                let found = options.case(shape).found(&device, DType::F32);
                let lengths: Vec<usize> = found.grads.iter().map(Vec::len).collect();
                let expected: Vec<usize> = shape.inputs().iter().map(Vec::len).collect();
                assert_eq!(lengths, expected);
                assert!(found.numbers().all(|x| x == 0.0), "{shape:?}: {found:?}");
            }
        }
    }
}

/// Rows without keys: 0, and no gradient, as with Burn's `attention`.
#[test]
fn rows_without_keys_are_zero() {
    let shape = Shape::new(2, 2, 4, 3);
    let options = Options {
        mask_attn: Some(f64::NEG_INFINITY),
        ..NONE
    };
    for device in devices() {
        let found = options.case(shape).found(&device, DType::F32);
        // The mask has no key for the first row of the first element.
        assert!(found.value[..3].iter().all(|x| *x == 0.0));
        assert!(found.grads[0][..3].iter().all(|x| *x == 0.0));
        assert!(found.value[3..6].iter().any(|x| *x != 0.0));
        assert!(found.grads[0][3..6].iter().any(|x| *x != 0.0));
        assert!(found.numbers().all(f64::is_finite), "{found:?}");
    }
}

#[test]
fn the_function_is_that_of_burn() {
    let shape = Shape {
        key_time: 7,
        ..Shape::new(2, 3, 5, 4)
    };
    let arguments = move |leaves: &[Tensor<1>]| {
        let bias: Tensor<4> = shaped(&leaves[3], [1, 3, 5, 7]);
        let mask = mask([2, 3, 5, 7], &bias.device());
        (shape.split(leaves), Some(mask), Some(bias))
    };
    for set in 0..8_u8 {
        let options = move || AttentionModuleOptions {
            is_causal: set & 1 != 0,
            softcap: (set & 2 != 0).then_some(0.5),
            scale: (set & 4 != 0).then_some(0.3),
        };
        let mut inputs = shape.inputs();
        inputs.push(noise(3 * 5 * 7, 9));
        let case = Case::new(
            format!("attention with options {set}"),
            inputs,
            move |leaves| {
                let ([query, key, value], mask, bias) = arguments(leaves);
                let plain = burn::tensor::module::attention_fallback;
                plain(query, key, value, mask, bias, options()).flatten(0, 3)
            },
            move |leaves| {
                let ([query, key, value], mask, bias) = arguments(leaves);
                attention(query, key, value, mask, bias, options()).flatten(0, 3)
            },
        );
        case.assert_equal(64.0);
    }
}

/// A bias of every shape that broadcasts, with scores in chunks of the batch and of rows.
#[test]
fn a_bias_gets_its_gradient() {
    for shape in [Shape::new(2, 2, 3, 4), Shape::new(2, 4, 261, 3)] {
        // With one number for all keys of a row it changes nothing, and has a gradient of 0.
        for axes in 0..8_u8 {
            let full = [shape.batch, shape.heads, shape.time];
            let [batch, heads, time] = std::array::from_fn(|axis| match axes & (1 << axis) {
                0 => 1,
                _ => full[axis],
            });
            with_bias(shape, [batch, heads, time, shape.key_time]).assert_equal(256.0);
        }
    }
}

/// With a bias of these dimensions as the last input.
pub(crate) fn with_bias(shape: Shape, dims: [usize; 4]) -> Case {
    let mut inputs = shape.inputs();
    inputs.push(noise(dims.iter().product(), 5));
    let reference = move |leaves: &[Tensor<1>]| {
        let [query, key, value] = shape.split(leaves);
        let scores = query.matmul(key.transpose()) * (shape.size as f64).sqrt().recip();
        let scores = scores + shaped(&leaves[3], dims);
        softmax(scores, 3).matmul(value).flatten(0, 3)
    };
    let ours = move |leaves: &[Tensor<1>]| {
        let [query, key, value] = shape.split(leaves);
        let attention = Attention::new().with_bias(shaped(&leaves[3], dims));
        attention.forward(query, key, value).flatten(0, 3)
    };
    Case::new(
        format!("attention with bias {dims:?}"),
        inputs,
        reference,
        ours,
    )
}

#[test]
fn large_scores_are_as_in_parts() {
    let shape = Shape::new(1, 2, 5, 4);
    for factor in [1e2, 1e4] {
        let mut inputs = shape.inputs();
        for x in &mut inputs[0] {
            *x *= factor;
        }
        NONE.case(shape).with_inputs(inputs).assert_as_plain(1e4);
    }
}

#[test]
fn a_tensor_may_be_query_key_and_value() {
    const DIMS: [usize; 4] = [2, 2, 5, 4];
    let case = Case::new(
        "self attention",
        vec![noise(DIMS.iter().product(), 1)],
        |leaves| {
            let x: Tensor<4> = shaped(&leaves[0], DIMS);
            let scores = x.clone().matmul(x.clone().transpose()) / 2.0;
            softmax(scores, 3).matmul(x).flatten(0, 3)
        },
        |leaves| {
            let x: Tensor<4> = shaped(&leaves[0], DIMS);
            let attention = Attention::new();
            attention.forward(x.clone(), x.clone(), x).flatten(0, 3)
        },
    );
    case.assert_equal(64.0);
}

/// With the same seed, the weights that are dropped are the same in each run: so finite differences
/// see the gradient. In `f64`.
#[test]
fn dropout_has_the_gradient_of_its_own_mask() {
    alone(|| {
        let shape = Shape {
            key_heads: 1,
            key_time: 6,
            ..Shape::new(2, 2, 5, 3)
        };
        let dropping = Options {
            dropout: 0.4,
            ..NONE
        };
        let device = flex();
        let outcome = |inputs: &[Vec<f64>]| {
            device.seed(11);
            run(&device, DType::F64, inputs, &dropping.ours(shape))
        };
        let inputs = shape.inputs();
        let found = outcome(&inputs);
        let plain = NONE.case(shape).found(&device, DType::F64);
        assert_ne!(found.value, plain.value, "nothing was dropped");
        let loss = |inputs: &[Vec<f64>]| {
            let value = outcome(inputs).value;
            let weights = coarse(value.len());
            value.iter().zip(weights).map(|(x, w)| x * w).sum::<f64>()
        };
        const STEP: f64 = 1e-5;
        for (input, grad) in found.grads.iter().enumerate() {
            for (at, grad) in grad.iter().enumerate() {
                let moved = |step: f64| {
                    let mut inputs = inputs.clone();
                    inputs[input][at] += step;
                    loss(&inputs)
                };
                let slope = (moved(STEP) - moved(-STEP)) / (2.0 * STEP);
                assert!((slope - grad).abs() < 1e-7, "{input} {at}: {slope} {grad}");
            }
        }
    });
}

/// Weights are dropped as by Burn's dropout of all of them, also where the scores of one element of
/// the batch are cut into rows.
#[test]
fn what_is_dropped_is_what_burn_drops() {
    alone(|| {
        let in_rows = SHAPES[7];
        let cross = Shape {
            heads: 2,
            ..in_rows
        };
        let everywhere = Options {
            dropout: 0.3,
            ..NONE
        };
        let nearby = Options {
            window: Some(50),
            ..everywhere
        };
        let softcap = Some(0.7);
        let capped = Options { softcap, ..nearby };
        for (shape, options) in [
            (Shape::new(2, 2, 5, 4), everywhere),
            (Shape::new(3, 4, 150, 8), everywhere),
            (cross, everywhere),
            (Shape::new(1, 2, 403, 4), nearby),
            (Shape::new(1, 2, 1203, 4), capped),
        ] {
            let device = flex();
            device.seed(3);
            let plain = options.reference(shape);
            let expected = run(&device, DType::F32, &shape.inputs(), &plain);
            device.seed(3);
            let ours = options.ours(shape);
            let found = run(&device, DType::F32, &shape.inputs(), &ours);
            for (found, expected) in found.numbers().zip(expected.numbers()) {
                assert!((found - expected).abs() < 1e-5, "{found} {expected}");
            }
        }
    });
}

/// As in Burn, which drops weights: where one of query, key and bias is trained.
#[test]
fn it_drops_in_training_alone() {
    alone(|| {
        let ones = || Tensor::<4>::ones([1, 2, 8, 4], &flex());
        for trained in 0..5 {
            let operand = |at| match at == trained {
                true => ones(),
                false => ones().inner(),
            };
            let attention = Attention::new().with_dropout(0.5);
            let bias = operand(3).slice([0..1, 0..2, 0..8, 0..1]);
            let output = attention.with_bias(bias);
            let output = output.forward(operand(0), operand(1), operand(2));
            let drops = output.not_equal_scalar(1.0).any().into_scalar::<bool>();
            assert_eq!(drops, [0, 1, 3].contains(&trained), "operand {trained}");
        }
    });
}

/// The value of a key that is not a number, with the weight 0, would be none in the output: so it is
/// left out. Over slices, and with a softcap in tensors.
#[test]
fn keys_that_no_query_of_a_chunk_attends_to_are_left_out() {
    const TIME: usize = 1024;
    let shape = Shape::new(1, 1, TIME, 4);
    let window = Options {
        window: Some(32),
        ..NONE
    };
    let documents = Options {
        documents: true,
        ..NONE
    };
    for options in [window, documents] {
        for softcap in [None, Some(2.0)] {
            let options = Options { softcap, ..options };
            let mut inputs = shape.inputs();
            inputs[2][0] = f64::NAN;
            for device in devices() {
                let found = options.case(shape).with_inputs(inputs.clone());
                let found = found.found(&device, DType::F32);
                let tensors = found.tensors().take(2);
                for rows in tensors.map(|tensor| &tensor[TIME * shape.size / 2..]) {
                    assert!(rows.iter().all(|x| x.is_finite()), "{options:?}");
                }
                assert!(found.value[0].is_nan());
            }
        }
    }
}

#[test]
fn options_that_make_no_sense_are_refused() {
    let x = || Tensor::<4>::ones([2, 3, 5, 4], &flex());
    let attend = |attention: Attention, keys| {
        attention.forward(
            x(),
            x().slice([0..2, 0..3, 0..keys]),
            x().slice([0..2, 0..3, 0..keys]),
        );
    };
    let ids = |dims| Attention::new().with_documents(Tensor::<2, Int>::zeros(dims, &flex()));
    let refusals: [(&dyn Fn(), &str); 6] = [
        (
            &|| drop(Attention::new().with_softcap(f64::INFINITY)),
            "a softcap of inf",
        ),
        (&|| drop(Attention::new().with_window(0)), "a window of 0"),
        (
            &|| drop(Attention::new().with_alibi(vec![f32::NAN])),
            "finite",
        ),
        (
            &|| attend(Attention::new().with_alibi(vec![1.0]), 5),
            "a slope for each head",
        ),
        (&|| attend(ids([2, 4]), 5), "document ids [2, 4]"),
        (&|| attend(ids([2, 5]), 4), "scores [2, 3, 5, 4]"),
    ];
    for (run, reason) in refusals {
        assert_panics(run, reason);
    }
}

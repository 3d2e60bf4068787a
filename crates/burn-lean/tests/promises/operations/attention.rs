//! Attention as one operation.

use burn::tensor::activation::{quiet_softmax, softmax};
use burn::tensor::ops::AttentionModuleOptions;
use burn::tensor::{Bool, DType, Device, Tensor, TensorData};
use burn_lean::operations::{Attention, attention};

use super::harness::{Flat, assert_equal, coarse, noise, run, shaped};
use crate::harness::{alone, devices, flex};

/// Shapes of a case.
#[derive(Clone, Copy, Debug)]
struct Shape {
    batch: usize,
    heads: usize,
    key_heads: usize,
    time: usize,
    key_time: usize,
    size: usize,
    value_size: usize,
}

impl Shape {
    const fn new(batch: usize, heads: usize, time: usize, size: usize) -> Self {
        Self {
            batch,
            heads,
            key_heads: heads,
            time,
            key_time: time,
            size,
            value_size: size,
        }
    }

    fn query(self) -> [usize; 4] {
        [self.batch, self.heads, self.time, self.size]
    }

    fn key(self) -> [usize; 4] {
        [self.batch, self.key_heads, self.key_time, self.size]
    }

    fn value(self) -> [usize; 4] {
        [self.batch, self.key_heads, self.key_time, self.value_size]
    }

    fn inputs(self) -> Vec<Vec<f64>> {
        let dims = [self.query(), self.key(), self.value()];
        let numbers = dims.iter().enumerate();
        numbers
            .map(|(seed, dims)| noise(dims.iter().product(), seed + 1))
            .collect()
    }

    fn split(self, leaves: &[Tensor<1>]) -> [Tensor<4>; 3] {
        [
            shaped(&leaves[0], self.query()),
            shaped(&leaves[1], self.key()),
            shaped(&leaves[2], self.value()),
        ]
    }
}

/// Small and odd; cross attention; grouped heads; no batch; one time. The last two are cut: the
/// batch into chunks, and one element of it into rows.
const SHAPES: [Shape; 9] = [
    Shape::new(2, 3, 5, 4),
    Shape {
        key_time: 7,
        value_size: 6,
        ..Shape::new(2, 2, 5, 3)
    },
    Shape {
        key_heads: 2,
        key_time: 3,
        ..Shape::new(2, 6, 5, 4)
    },
    Shape {
        key_heads: 1,
        ..Shape::new(1, 4, 3, 2)
    },
    Shape::new(0, 2, 3, 4),
    Shape::new(3, 1, 1, 1),
    Shape::new(5, 4, 150, 8),
    Shape {
        key_heads: 2,
        key_time: 401,
        ..Shape::new(2, 4, 403, 3)
    },
    // More keys than queries, in chunks of rows.
    Shape {
        key_heads: 2,
        key_time: 405,
        ..Shape::new(2, 4, 403, 3)
    },
];

/// What is added to plain attention.
#[derive(Clone, Copy, Debug, Default)]
struct Options {
    mask_pad: Option<f64>,
    mask_attn: Option<f64>,
    causal: bool,
    quiet: bool,
    softcap: Option<f64>,
}

const OPTIONS: [Options; 7] = [
    Options {
        mask_pad: None,
        mask_attn: None,
        causal: false,
        quiet: false,
        softcap: None,
    },
    Options {
        mask_pad: Some(-1e4),
        ..NONE
    },
    Options {
        mask_pad: Some(-1e4),
        mask_attn: Some(-1e4),
        ..NONE
    },
    Options {
        mask_attn: Some(f64::NEG_INFINITY),
        ..NONE
    },
    Options {
        causal: true,
        ..NONE
    },
    Options {
        quiet: true,
        mask_pad: Some(-1e4),
        ..NONE
    },
    Options {
        softcap: Some(0.7),
        causal: true,
        ..NONE
    },
];

const NONE: Options = Options {
    mask_pad: None,
    mask_attn: None,
    causal: false,
    quiet: false,
    softcap: None,
};

/// True here and there, and at all keys of the first row.
fn mask(dims: [usize; 4], device: &Device) -> Tensor<4, Bool> {
    let count: usize = dims.iter().product();
    let row = dims[3];
    let bits: Vec<bool> = (0..count).map(|i| i < row || i % 3 == 1).collect();
    Tensor::from_data(TensorData::new(bits, dims), device)
}

impl Options {
    fn masks(self, shape: Shape, device: &Device) -> Vec<(Tensor<4, Bool>, f64)> {
        let pad = self
            .mask_pad
            .map(|value| (mask([shape.batch, 1, 1, shape.key_time], device), value));
        let attn = self.mask_attn.map(|value| {
            (
                mask([shape.batch, 1, shape.time, shape.key_time], device),
                value,
            )
        });
        pad.into_iter().chain(attn).collect()
    }

    fn ours(self, shape: Shape) -> impl Fn(&[Tensor<1>]) -> Tensor<1> {
        move |leaves| {
            let [query, key, value] = shape.split(leaves);
            let mut attention = Attention::new().with_quiet_softmax(self.quiet);
            for (mask, value) in self.masks(shape, &query.device()) {
                attention = attention.with_mask(mask, value);
            }
            if self.causal {
                attention = attention.causal();
            }
            if let Some(softcap) = self.softcap {
                attention = attention.with_softcap(softcap);
            }
            attention.forward(query, key, value).flatten(0, 3)
        }
    }

    /// In Burn's operations, all scores at once.
    fn reference(self, shape: Shape) -> impl Fn(&[Tensor<1>]) -> Tensor<1> {
        move |leaves| {
            let [query, key, value] = shape.split(leaves);
            let group = shape.heads / shape.key_heads;
            let spread = |tensor: Tensor<4>| {
                let [batch, heads, time, size] = tensor.dims();
                let spread = tensor.unsqueeze_dim::<5>(2).repeat_dim(2, group);
                spread.reshape([batch, heads * group, time, size])
            };
            let (key, value) = (spread(key), spread(value));
            let device = query.device();
            let mut scores = query.matmul(key.transpose()) * (shape.size as f64).sqrt().recip();
            if let Some(softcap) = self.softcap {
                // Burn's division by a number has a gradient of `f32`'s precision.
                scores = (scores * softcap.recip()).tanh() * softcap;
            }
            for (mask, value) in self.masks(shape, &device) {
                scores = scores.mask_fill(mask, value);
            }
            if self.causal {
                let offset = shape.key_time as i64 - shape.time as i64;
                let dims = [shape.time, shape.key_time];
                let mask = Tensor::<2, Bool>::tril_mask(dims, offset, &device);
                scores = scores.mask_fill(mask.unsqueeze(), f64::NEG_INFINITY);
            }
            let weights = match self.quiet {
                true => quiet_softmax(scores.clone(), 3),
                false => softmax(scores.clone(), 3),
            };
            // A row without keys.
            let empty = scores.max_dim(3).equal_scalar(f64::NEG_INFINITY);
            let weights = weights.mask_fill(empty, 0.0);
            weights.matmul(value).flatten(0, 3)
        }
    }
}

#[test]
fn attention_is_that_of_its_parts() {
    for shape in SHAPES {
        for options in OPTIONS {
            // NaN from rows without keys go through a mask as NaN there.
            let is_empty = options.mask_attn == Some(f64::NEG_INFINITY)
                || options.causal && shape.key_time < shape.time;
            if is_empty || shape.batch == 0 {
                continue;
            }
            let what = format!("{shape:?} {options:?}");
            let (reference, ours) = (options.reference(shape), options.ours(shape));
            assert_equal(&what, &shape.inputs(), 64.0, &reference, &ours);
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
        for options in OPTIONS {
            for device in devices() {
                let found = run(&device, DType::F32, &shape.inputs(), &options.ours(shape));
                let lengths: Vec<usize> = found.grads.iter().map(Vec::len).collect();
                let expected: Vec<usize> = shape.inputs().iter().map(Vec::len).collect();
                assert_eq!(lengths, expected);
                let mut numbers = found.grads.iter().flatten().chain(&found.value);
                assert!(numbers.all(|x| *x == 0.0), "{shape:?}: {found:?}");
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
        let found = run(&device, DType::F32, &shape.inputs(), &options.ours(shape));
        // The mask has no key for the first row of the first element.
        assert!(found.value[..3].iter().all(|x| *x == 0.0));
        assert!(found.grads[0][..3].iter().all(|x| *x == 0.0));
        assert!(found.value[3..6].iter().any(|x| *x != 0.0));
        assert!(found.grads[0][3..6].iter().any(|x| *x != 0.0));
        let mut numbers = found.grads.iter().flatten().chain(&found.value);
        assert!(numbers.all(|x| x.is_finite()), "{found:?}");
    }
}

#[test]
fn the_function_is_that_of_burn() {
    let shape = Shape {
        key_time: 7,
        ..Shape::new(2, 3, 5, 4)
    };
    for is_causal in [false, true] {
        for softcap in [None, Some(0.5)] {
            for scale in [None, Some(0.3)] {
                type Function = fn(
                    Tensor<4>,
                    Tensor<4>,
                    Tensor<4>,
                    Option<Tensor<4, Bool>>,
                    Option<Tensor<4>>,
                    AttentionModuleOptions,
                ) -> Tensor<4>;
                let of = |function: Function| {
                    move |leaves: &[Tensor<1>]| {
                        let [query, key, value] = shape.split(leaves);
                        let bias = shaped(&leaves[3], [1, 3, 5, 7]);
                        let mask = mask([2, 3, 5, 7], &query.device());
                        let options = AttentionModuleOptions {
                            scale,
                            softcap,
                            is_causal,
                        };
                        function(query, key, value, Some(mask), Some(bias), options).flatten(0, 3)
                    }
                };
                let mut inputs = shape.inputs();
                inputs.push(noise(3 * 5 * 7, 9));
                let plain = of(burn::tensor::module::attention_fallback);
                let what = format!("causal {is_causal}, softcap {softcap:?}, scale {scale:?}");
                assert_equal(&what, &inputs, 64.0, &plain, &of(attention));
            }
        }
    }
}

/// A bias of every shape that broadcasts, with scores in chunks of the batch and of rows.
#[test]
fn a_bias_gets_its_gradient() {
    for shape in [Shape::new(2, 2, 3, 4), Shape::new(2, 4, 403, 3)] {
        for axes in 0..16_u8 {
            let full = [shape.batch, shape.heads, shape.time, shape.key_time];
            let dims: [usize; 4] = std::array::from_fn(|axis| match axes & (1 << axis) {
                0 => 1,
                _ => full[axis],
            });
            let has_keys = axes & 8 != 0;
            if !has_keys {
                // The same for all keys of a row: it changes nothing, and has a gradient of 0.
                continue;
            }
            let mut inputs = shape.inputs();
            inputs.push(noise(dims.iter().product(), 5));
            let reference = |leaves: &[Tensor<1>]| {
                let [query, key, value] = shape.split(leaves);
                let scores = query.matmul(key.transpose()) * (shape.size as f64).sqrt().recip();
                let scores = scores + shaped(&leaves[3], dims);
                softmax(scores, 3).matmul(value).flatten(0, 3)
            };
            let ours = |leaves: &[Tensor<1>]| {
                let [query, key, value] = shape.split(leaves);
                let bias = shaped(&leaves[3], dims);
                let attention = Attention::new().with_bias(bias);
                attention.forward(query, key, value).flatten(0, 3)
            };
            let what = format!("bias {dims:?}");
            assert_equal(&what, &inputs, 256.0, &reference, &ours);
        }
    }
}

#[test]
fn large_scores_are_as_in_parts() {
    let shape = Shape::new(1, 2, 5, 4);
    for factor in [1e2, 1e4] {
        let mut inputs = shape.inputs();
        for x in &mut inputs[0] {
            *x *= factor;
        }
        let (reference, ours): (Flat<'_>, Flat<'_>) = (&NONE.reference(shape), &NONE.ours(shape));
        super::harness::assert_as_plain(&format!("{factor:e}"), &inputs, 1e4, reference, ours);
    }
}

#[test]
fn a_tensor_may_be_query_key_and_value() {
    let dims = [2, 2, 5, 4];
    let inputs = [noise(dims.iter().product(), 1)];
    let reference = |leaves: &[Tensor<1>]| {
        let x: Tensor<4> = shaped(&leaves[0], dims);
        let scores = x.clone().matmul(x.clone().transpose()) / 2.0;
        softmax(scores, 3).matmul(x).flatten(0, 3)
    };
    let ours = |leaves: &[Tensor<1>]| {
        let x: Tensor<4> = shaped(&leaves[0], dims);
        Attention::new()
            .forward(x.clone(), x.clone(), x)
            .flatten(0, 3)
    };
    assert_equal("self attention", &inputs, 64.0, &reference, &ours);
}

/// With the same seed, the weights that are dropped are the same in each run: so finite differences
/// see the gradient. In `f64`.
#[test]
fn dropout_has_the_gradient_of_its_own_mask() {
    alone(
        "operations::attention::dropout_has_the_gradient_of_its_own_mask",
        || {
            let shape = Shape {
                key_heads: 1,
                key_time: 6,
                ..Shape::new(2, 2, 5, 3)
            };
            let device = flex();
            let ours = |leaves: &[Tensor<1>]| {
                let [query, key, value] = shape.split(leaves);
                let attention = Attention::new().with_dropout(0.4);
                attention.forward(query, key, value).flatten(0, 3)
            };
            let outcome = |inputs: &[Vec<f64>]| {
                device.seed(11);
                run(&device, DType::F64, inputs, &ours)
            };
            let inputs = shape.inputs();
            let found = outcome(&inputs);
            let plain = run(&device, DType::F64, &inputs, &NONE.ours(shape));
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
        },
    );
}

/// Weights are dropped as by Burn's dropout of all of them, also where the scores of one element of
/// the batch are cut into rows.
#[test]
fn what_is_dropped_is_what_burn_drops() {
    alone(
        "operations::attention::what_is_dropped_is_what_burn_drops",
        || {
            let in_rows = SHAPES[7];
            let cross = Shape {
                heads: 2,
                ..in_rows
            };
            for shape in [Shape::new(2, 2, 5, 4), Shape::new(5, 4, 150, 8), cross] {
                let device = flex();
                let plain = |leaves: &[Tensor<1>]| {
                    let [query, key, value] = shape.split(leaves);
                    let scores = query.matmul(key.transpose()) / (shape.size as f64).sqrt();
                    let weights = softmax(scores, 3);
                    let dropout = burn::nn::DropoutConfig::new(0.3).init();
                    dropout.forward(weights).matmul(value).flatten(0, 3)
                };
                let ours = |leaves: &[Tensor<1>]| {
                    let [query, key, value] = shape.split(leaves);
                    let attention = Attention::new().with_dropout(0.3);
                    attention.forward(query, key, value).flatten(0, 3)
                };
                device.seed(3);
                let expected = run(&device, DType::F32, &shape.inputs(), &plain);
                device.seed(3);
                let found = run(&device, DType::F32, &shape.inputs(), &ours);
                let tensors = |outcome: super::harness::Outcome| {
                    let numbers = outcome.grads.into_iter().flatten();
                    numbers.chain(outcome.value).collect::<Vec<f64>>()
                };
                for (found, expected) in tensors(found).iter().zip(tensors(expected)) {
                    assert!((found - expected).abs() < 1e-5, "{found} {expected}");
                }
            }
        },
    );
}

//! Layers whose frozen weight has an adapter.

use burn::module::{Lora, QLora, Quantizer};
use burn::tensor::quantization::{Calibration, QuantScheme, QuantValue, ScaleDtype};
use burn_lean::operations::{adapted_linear, nn};

use super::harness::{Case, coarse, noise, shaped};
use super::linear::reference;
use crate::harness::distance;
use crate::harness::prelude::*;
use crate::heap::{HEAP, warm_threads};

pub(super) const SCALE: f64 = 2.0;

/// A frozen parameter with these factors.
pub(super) fn adapted(weight: Tensor<2>, a: Tensor<2>, b: Tensor<2>) -> Param<Tensor<2>> {
    let [_, rank] = a.dims();
    let lora = Lora::new(rank, SCALE * rank as f64);
    let weight = Param::from_tensor(weight).apply_lora(lora);
    struct Factors(std::vec::IntoIter<Tensor<2>>);
    impl ModuleMapper for Factors {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            if !param.is_require_grad() {
                return param;
            }
            let factor = self.0.next().unwrap().into_dispatch();
            Param::initialized(param.id, Tensor::from_dispatch(factor))
        }
    }
    Module::map(weight, &mut Factors(vec![a, b].into_iter()))
}

/// A weight that is not trained, of the type of a tensor, which holds its numbers.
pub(super) fn frozen(dims: [usize; 2], like: &Tensor<1>) -> Tensor<2> {
    let data = TensorData::new(coarse(dims[0] * dims[1]), dims);
    let data = data.convert_dtype(like.dtype());
    Tensor::from_data(data, (&like.device(), like.dtype()))
}

fn case(dims: [usize; 3], d_output: usize, rank: usize) -> Case {
    let width = dims[2];
    let weight = move |like: &Tensor<1>| frozen([width, d_output], like);
    let parts = move |leaves: &[Tensor<1>]| {
        let x: Tensor<3> = shaped(&leaves[0], dims);
        let a: Tensor<2> = shaped(&leaves[1], [width, rank]);
        let b: Tensor<2> = shaped(&leaves[2], [rank, d_output]);
        (x, a, b, leaves.get(3).cloned())
    };
    Case::new(
        format!("linear of {dims:?} to {d_output} of rank {rank}"),
        vec![
            noise(dims.iter().product(), 1),
            noise(width * rank, 2),
            noise(rank * d_output, 3),
            noise(d_output, 4),
        ],
        move |leaves| {
            let (x, a, b, bias) = parts(leaves);
            let weight = weight(&leaves[0]) + a.matmul(b) * SCALE;
            reference(x, weight, bias)
        },
        move |leaves| {
            let (x, a, b, bias) = parts(leaves);
            adapted_linear(x, &adapted(weight(&leaves[0]), a, b), bias).flatten(0, 2)
        },
    )
}

#[test]
fn it_is_the_sum_of_weight_and_product() {
    for (dims, d_output, rank) in [
        ([1, 1, 1], 1, 1),
        ([2, 3, 5], 7, 2),
        ([5, 1, 3], 2, 4),
        ([3, 37, 41], 29, 8),
    ] {
        case(dims, d_output, rank).assert_equal(64.0);
        case(dims, d_output, rank)
            .without_last_input()
            .assert_equal(64.0);
    }
    case([0, 3, 4], 2, 1).assert_empty();
}

/// The base of each kind that Burn's adapters have, in training: beside Burn's layer over the same.
#[test]
fn any_base() {
    const DIMS: [usize; 3] = [2, 7, 64];
    let four_bits = QuantScheme::default()
        .with_value(QuantValue::Q4S)
        .per_block([32], ScaleDtype::F32);
    let quantizer = |scheme| Quantizer::new(Calibration::MinMax, scheme);
    let factors_in_f32 = || Lora::new(4, 8.0).set_dtype(burn::tensor::FloatDType::F32);
    let qlora = |scheme| QLora::new(factors_in_f32(), quantizer(scheme));
    let layer = || seeded(&flex(), |device| LinearConfig::new(64, 64).init(device));
    let in_bf16 = |mut layer: Linear| {
        layer.weight = layer.weight.map(|weight| weight.cast(DType::BF16));
        layer
    };
    let layers: [(&str, Linear); 4] = [
        ("f32", layer().apply_lora(factors_in_f32())),
        ("bf16", in_bf16(layer()).apply_lora(factors_in_f32())),
        ("int8", layer().apply_qlora(qlora(QuantScheme::default()))),
        ("int4", layer().apply_qlora(qlora(four_bits))),
    ];
    for (name, burns) in layers {
        let mut burns: Linear = numbered_from(burns, 300);
        // What is not quantized has other numbers than before.
        if let Some(bias) = burns.bias.take() {
            burns.bias = Some(bias.map(|bias| bias.cast(DType::F32)));
        }
        let ours: nn::Linear = burns.clone().into();
        let x = numbers(DIMS, 3, &flex()).require_grad();
        let weigh = |y: Tensor<3>| (y * numbers(DIMS, 4, &flex())).sum();
        let run = |y: Tensor<3>, adapter: &burn::module::LoraAdapter| {
            let value = y.clone().inner();
            let grads = weigh(y).backward();
            let of = |factor: &Param<Tensor<2>>| factor.base().grad(&grads).unwrap().flatten(0, 1);
            [
                value.flatten::<1>(0, 2),
                x.grad(&grads).unwrap().flatten(0, 2),
                of(&adapter.a),
                of(&adapter.b),
            ]
        };
        let expected = run(
            burns.forward(x.clone()),
            burns.weight.adapter().expect("it was applied"),
        );
        let found = run(
            ours.forward(x.clone()),
            ours.weight.adapter().expect("it was converted"),
        );
        for (at, (found, expected)) in found.into_iter().zip(expected).enumerate() {
            let [found, expected] = [found, expected].map(|it| vec![(String::new(), bits_of(it))]);
            let units = distance(&found, &expected) / f32::EPSILON;
            assert!(units < 32.0, "{name}, tensor {at}: {units} rounding errors");
        }
    }
}

#[test]
fn a_trained_base_is_computed_by_burn() {
    let burns = seeded(&flex(), |device| LinearConfig::new(6, 6).init(device));
    let burns: Linear = numbered_from(burns.apply_lora(Lora::new(2, 4.0)), 300).unfreeze();
    let ours: nn::Linear = burns.clone().into();
    let x = numbers::<2>([3, 6], 1, &flex());
    let grads = |y: Tensor<2>, weight: &Param<Tensor<2>>| {
        let grads = y.square().mean().backward();
        bits_of(weight.base().grad(&grads).unwrap())
    };
    let found = grads(ours.forward(x.clone()), &ours.weight);
    let expected = grads(burns.forward(x), &burns.weight);
    let [found, expected] = [found, expected].map(|bits| vec![(String::new(), bits)]);
    assert!(distance(&found, &expected) < 32.0 * f32::EPSILON);
}

#[test]
fn a_table_of_tokens() {
    let burns = seeded(&flex(), |device| EmbeddingConfig::new(9, 6).init(device));
    let burns: Embedding = numbered_from(burns.apply_lora(Lora::new(2, 4.0)), 300);
    let ours: nn::Embedding = burns.clone().into();
    let tokens = ids([2, 5], 1, 9, &flex());
    let run = |y: Tensor<3>, weight: &Param<Tensor<2>>| {
        let value = bits_of(y.clone().inner());
        let grads = y.square().mean().backward();
        let adapter = weight.adapter().unwrap();
        let of = |factor: &Param<Tensor<2>>| bits_of(factor.base().grad(&grads).unwrap());
        [value, of(&adapter.a), of(&adapter.b)].map(|bits| (String::new(), bits))
    };
    let found = run(ours.forward(tokens.clone()), &ours.weight);
    let expected = run(burns.forward(tokens), &burns.weight);
    assert!(distance(&found, &expected) < 32.0 * f32::EPSILON);
}

/// Eight layers of 1024, rank 16, of 256 rows.
fn assert_little_memory(a_is_frozen: bool) {
    const LAYERS: usize = 8;
    const WIDTH: usize = 1024;
    const INPUT: usize = 4 * 256 * WIDTH;
    const WEIGHT: usize = 4 * WIDTH * WIDTH;
    /// `input * a` of each layer, and Burn's bookkeeping.
    const SMALL: usize = LAYERS * (4 * 256 * 16 + (8 << 10));

    fn bytes(forward: impl FnOnce(Tensor<2>) -> Tensor<2>) -> [usize; 2] {
        warm_threads();
        let x = numbers([256, WIDTH], 1, &flex());
        let before = HEAP.current_usage();
        let loss = forward(x).sum();
        let kept = HEAP.current_usage() - before;
        HEAP.reset_peak_usage();
        let grads = loss.backward();
        let peak = HEAP.peak_usage() - before;
        drop(grads);
        [kept, peak]
    }

    alone(|| {
        let layer = |_| crate::harness::zero_linear(WIDTH, WIDTH, &flex());
        let layers: Vec<Linear> = (0..LAYERS).map(layer).collect();
        let mut burns = layers.apply_lora(Lora::new(16, 16.0));
        if a_is_frozen {
            burns = burns.freeze_group(ParamGroup::from_predicate("lora.a"));
        }
        let ours: Vec<nn::Linear> = burns.iter().cloned().map(Into::into).collect();
        let [kept, peak] = bytes(|x| ours.iter().fold(x, |x, layer| layer.forward(x)));
        let of_burn = bytes(|x| burns.iter().fold(x, |x, layer| layer.forward(x)));
        println!("ours {kept} kept, peak {peak}; Burn's {of_burn:?}");
        let inputs = if a_is_frozen { 0 } else { LAYERS * INPUT };
        assert!(kept <= inputs + SMALL, "{kept}");
        // The gradients of the output and of the factors, and the products that they are made of.
        let most = kept + 3 * INPUT + LAYERS * 8 * 16 * WIDTH + SMALL;
        assert!(peak <= most, "{peak} of {most}");
        assert!(of_burn[0] > LAYERS * WEIGHT, "Burn's keeps the sums");
    });
}

#[test]
fn memory_of_a_step() {
    assert_little_memory(false);
}

#[test]
fn memory_of_a_step_with_a_frozen_factor() {
    assert_little_memory(true);
}

//! States in host memory. What that does on another device is in `gpu`.

use burn_lean::MixedPrecision;
use burn_lean::optim::{EightBitMoments, InFiveBytes, Offload};

use super::noise::Noise;
use super::run::Run;
use super::side::{InOnePass, Lean, model_without_embeddings, places};
use crate::harness::prelude::*;

fn loss(model: &Linear, step: usize) -> Tensor<1> {
    let x = numbers([3, 64], step, &flex()).cast(model.weight.val().dtype());
    model.forward(x).cast(DType::F32).square().mean()
}

/// Each loads the record of the other, with release and without.
#[test]
fn weights_and_records_are_those_of_the_optimizer() {
    let adamw = || AdamWConfig::new().in_one_pass();
    let in_8_bits = || adamw().with_8_bit_moments(&model_without_embeddings());
    let masters = || AdamWConfig::new().in_five_bytes(7);
    let pairs: [[&dyn Fn() -> ModuleOptimizer; 2]; 3] = [
        [&|| adamw().init(), &|| adamw().offloaded().init()],
        [&|| in_8_bits().init(), &|| in_8_bits().offloaded().init()],
        [&|| masters().init(), &|| masters().offloaded().init()],
    ];
    for (number, [on_device, on_host]) in pairs.into_iter().enumerate() {
        let is_half = number == 2;
        let model = || {
            let model = seeded(&flex(), |device| LinearConfig::new(64, 100).init(device));
            match is_half {
                true => MixedPrecision::bf16().cast(model).unwrap(),
                false => model,
            }
        };
        let (mut one, mut other) = (model(), model());
        let (mut optim, mut offloaded) = (on_device(), on_host().with_gradient_release());
        for step in 0..2 {
            one = plain_step(one, &mut optim, |model| loss(model, step));
            other = release_step(other, &mut offloaded, |model| loss(model, step));
            assert_eq!(bits(&one), bits(&other), "{LR}, step {step}");
        }
        let [record, of_host] = [optim.to_record(), offloaded.to_record()];
        let mut optim = on_device().load_record(of_host);
        let mut offloaded = on_host().load_record(record).with_gradient_release();
        one = plain_step(one, &mut optim, |model| loss(model, 2));
        other = release_step(other, &mut offloaded, |model| loss(model, 2));
        assert_eq!(bits(&one), bits(&other), "resumed");
    }
}

/// Away from Flex they go by way of a record.
#[test]
fn states_keep_their_type() {
    for device in places() {
        let mut noise = Noise(9);
        let mut numbers = || -> Tensor<2> {
            let numbers = noise.tensor([5, 7], &device, Noise::number);
            numbers.cast(DType::F64)
        };
        let adamw = || AdamWConfig::new().in_one_pass();
        let mut one = Run::new(adamw(), numbers());
        let mut other = Run::new(adamw().offloaded(), one.weight().clone());
        for _ in 0..3 {
            let grad = numbers();
            one.step(LR, grad.clone());
            other.step(LR, grad);
        }
        assert_eq!(other.weight().to_data(), one.weight().to_data());
    }
}

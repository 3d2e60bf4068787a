//! A pass writes in place, but not into what somebody else holds.

use burn::backend::Flex;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamWConfig, GradientsParams, ModuleOptimizer};
use burn::tensor::{Device, Tensor};
use burn_lean::WithGradientRelease;
use burn_lean::optim::{EightBitMoments, InOnePass, Lean, Moment};

use super::harness::{Noise, Run};
use crate::harness::{LR, alone, flex, numbers, release_step, seeded};
use crate::memory::peak_of;

const SHAPE: [usize; 2] = [100, 300];

fn address(tensor: &Tensor<2>) -> usize {
    let tensor = tensor.clone().try_into_primitive::<Flex>().unwrap();
    tensor.bytes().as_ptr() as usize
}

fn addresses(moment: &Moment<2>) -> Vec<usize> {
    match moment {
        Moment::Float(floats) => vec![address(floats)],
        Moment::EightBit(blocks) => {
            let codes = blocks.codes.clone().try_into_primitive::<Flex>().unwrap();
            let scales = blocks.scales.clone().try_into_primitive::<Flex>().unwrap();
            vec![
                codes.bytes().as_ptr() as usize,
                scales.bytes().as_ptr() as usize,
            ]
        }
    }
}

#[test]
fn weight_and_moments_stay_where_they_are() {
    let model: Linear = LinearConfig::new(2, 2).init(&Device::flex());
    let adamw = || AdamWConfig::new().with_beta_2(0.99).in_one_pass();
    for optimizer in [
        adamw(),
        adamw().with_bf16_moments(),
        adamw().with_8_bit_moments(&model),
    ] {
        let mut noise = Noise(1);
        let mut run = Run::new(optimizer, noise.numbers(SHAPE));
        let mut places = Vec::new();
        for _ in 0..4 {
            run.step(0.01, noise.numbers(SHAPE));
            let momentum = &run.state.as_ref().unwrap().momentum;
            places.push((
                address(run.weight.as_ref().unwrap()),
                addresses(&momentum.moment_1),
                addresses(&momentum.moment_2),
            ));
        }
        assert!(
            places.windows(2).all(|pair| pair[0] == pair[1]),
            "{places:?}"
        );
    }
}

#[test]
fn what_is_shared_is_copied_and_keeps_its_numbers() {
    let mut noise = Noise(2);
    let mut run = Run::new(AdamWConfig::new().in_one_pass(), noise.numbers(SHAPE));
    run.step(0.01, noise.numbers(SHAPE));
    let (held, state) = (run.weight.clone().unwrap(), run.state.clone().unwrap());
    let (weights, saved) = (run.weights(), run.saved());

    run.step(0.01, noise.numbers(SHAPE));
    assert_ne!(address(run.weight.as_ref().unwrap()), address(&held));
    assert_ne!(run.weights(), weights);
    assert_eq!(held.try_into_vec_as::<f32>().unwrap(), weights);
    run.state = Some(state);
    assert_eq!(run.saved(), saved);
}

#[test]
#[should_panic(expected = "not of its parameter's shape")]
fn a_state_of_another_parameter_is_refused() {
    let mut noise = Noise(3);
    let mut run = Run::new(AdamWConfig::new().in_one_pass(), noise.numbers(SHAPE));
    run.step(0.01, noise.numbers(SHAPE));
    run.weight = Some(noise.numbers([SHAPE[1], SHAPE[0]]));
    run.step(0.01, noise.numbers([SHAPE[1], SHAPE[0]]));
}

const WIDTH: usize = 512;

fn matrix() -> Linear {
    seeded(&flex(), |device| {
        LinearConfig::new(WIDTH, WIDTH)
            .with_bias(false)
            .init(device)
    })
}

fn loss(model: &Linear, step: usize) -> Tensor<1> {
    model
        .forward(numbers([2, WIDTH], step, &flex()))
        .square()
        .mean()
}

/// The peak of the step alone, in bytes of the weight.
fn peak_of_a_step(mut optim: ModuleOptimizer) -> f64 {
    let mut model = matrix();
    let mut last = 0;
    for step in 0..4 {
        let grads = GradientsParams::from_grads(loss(&model, step).backward(), &model);
        let (next, peak) = peak_of(|| optim.step(LR, model, grads));
        (model, last) = (next, peak);
    }
    last as f64 / (4 * WIDTH * WIDTH) as f64
}

/// Burn's own optimizer makes temporaries of the parameter's size; a pass makes none, under Burn's
/// `ModuleOptimizer` as well.
#[test]
fn a_step_needs_no_memory() {
    alone("optim::in_place::a_step_needs_no_memory", || {
        let plain = peak_of_a_step(AdamWConfig::new().init());
        let model = matrix();
        let adamw = || AdamWConfig::new().with_beta_2(0.99).in_one_pass();
        for lean in [
            adamw(),
            adamw().with_bf16_moments(),
            adamw().with_8_bit_moments(&model),
        ] {
            let lean = peak_of_a_step(lean.init());
            println!("peaks of a step in weights: plain {plain:.2}, in one pass {lean:.2}");
            assert!(lean < 0.1 && plain > 0.9, "{lean}, {plain}");
        }
    });
}

/// With gradient release a step of the model has no temporary of the optimizer and no copy of the
/// weight.
#[test]
fn a_step_with_release_is_in_place() {
    alone("optim::in_place::a_step_with_release_is_in_place", || {
        let mut optim = AdamWConfig::new()
            .in_one_pass()
            .init()
            .with_gradient_release();
        let mut model = matrix();
        for step in 0..6 {
            let (next, peak) =
                peak_of(|| release_step(model, &mut optim, |model| loss(model, step)));
            model = next;
            let weights = peak as f64 / (4 * WIDTH * WIDTH) as f64;
            println!("step {step}: {weights:.2}");
            // The gradient, and what backward needs to make it. The first step makes the two
            // moments, too, and a weight that is drawn.
            assert!(
                weights < if step == 0 { 5.1 } else { 2.1 },
                "step {step}: {weights}"
            );
        }
        assert_eq!(optim.last_step().unwrap().in_place(), 1);
        assert_eq!(model.num_params(), WIDTH * WIDTH);
    });
}

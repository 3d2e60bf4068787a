//! A step takes no memory but for the gradient, with Burn's `ModuleOptimizer` as well.

use burn_lean::optim::{EightBitMoments, InOnePass, Lean};

use crate::harness::prelude::*;
use crate::heap::peak_of;

const WIDTH: usize = 512;

fn matrix() -> Linear {
    seeded(&flex(), |device| {
        LinearConfig::new(WIDTH, WIDTH)
            .with_bias(false)
            .init(device)
    })
}

fn loss(model: &Linear, step: usize) -> Tensor<1> {
    let x = numbers([2, WIDTH], step, &flex());
    model.forward(x).square().mean()
}

fn in_weights(bytes: usize) -> f64 {
    bytes as f64 / (4 * WIDTH * WIDTH) as f64
}

/// The peak of the last of some steps, without its backward pass.
fn peak_of_a_step(mut optim: ModuleOptimizer) -> f64 {
    let mut model = matrix();
    let mut last = 0;
    for step in 0..4 {
        let grads = GradientsParams::from_grads(loss(&model, step).backward(), &model);
        let (next, peak) = peak_of(|| optim.step(LR, model, grads));
        (model, last) = (next, peak);
    }
    in_weights(last)
}

/// Burn's own optimizer makes temporaries of the parameter's size; a pass makes none.
#[test]
fn a_step_needs_no_memory() {
    alone(|| {
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
    alone(|| {
        let optim = AdamWConfig::new().in_one_pass().init();
        let mut optim = optim.with_gradient_release();
        let mut model = matrix();
        // The buffers of `gemm`, one for each thread, which have the size of a cache of the machine.
        loss(&model, 0).backward();
        for step in 0..6 {
            let (next, peak) =
                peak_of(|| release_step(model, &mut optim, |model| loss(model, step)));
            model = next;
            let weights = in_weights(peak);
            println!("step {step}: {weights:.4}");
            // The gradient, and what backward needs to make it. The first step makes the moments, too.
            let most = if step == 0 { 4.1 } else { 2.1 };
            assert!(weights < most, "step {step}: {weights}");
        }
        assert_eq!(optim.last_step().unwrap().in_place(), 1);
        assert_eq!(model.num_params(), WIDTH * WIDTH);
    });
}

//! On the Cube backend there is no pass: Burn's operations do the same, and moments in 8 bits go by
//! way of the host.

use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamWConfig, LionConfig, Optimizer};
use burn::tensor::Device;
use burn_lean::optim::{EightBitMoments, InOnePass, StableAdamWConfig};

use super::harness::{Noise, Run};

const SHAPE: [usize; 2] = [70, 81];

fn weights_after(optimizer: impl Optimizer, device: &Device) -> (Vec<f32>, usize) {
    let mut noise = Noise(61);
    let mut run = Run::new(optimizer, noise.tensor(SHAPE, device, Noise::number));
    for _ in 0..6 {
        // Away from zero, where a sign and a quotient of two small numbers hang on their last bit.
        let grad = noise.tensor(SHAPE, device, |noise| {
            let number = noise.number();
            number + 0.01f32.copysign(number)
        });
        run.step(0.01, grad);
    }
    (run.weights(), run.saved().bytes())
}

fn assert_near((found, bytes): (Vec<f32>, usize), expected: (Vec<f32>, usize), limit: f32) {
    assert_eq!(bytes, expected.1);
    for (found, expected) in found.iter().zip(&expected.0) {
        let error = (found - expected).abs();
        assert!(error <= limit, "{found} is not {expected}");
    }
}

#[test]
fn on_wgpu_steps_are_those_of_burn_and_of_flex() {
    let (wgpu, flex) = (Device::wgpu(Default::default()), Device::flex());
    let adamw = AdamWConfig::new().with_weight_decay(0.1);
    let lion = LionConfig::new();
    let stable = StableAdamWConfig::new().build();
    // Six steps of 0.01, of whose size a driver may round a root or a quotient otherwise.
    let limit = 1e-5;
    let plain = weights_after(adamw.build(), &wgpu);
    assert_near(weights_after(adamw.in_one_pass(), &wgpu), plain, limit);
    let plain = weights_after(lion.build(), &wgpu);
    assert_near(weights_after(lion.in_one_pass(), &wgpu), plain, limit);
    let on_flex = weights_after(stable.clone(), &flex);
    assert_near(weights_after(stable, &wgpu), on_flex, limit);

    let model: Linear = LinearConfig::new(2, 2).init(&flex);
    let eight_bit = adamw.in_one_pass().with_8_bit_moments(&model);
    let on_flex = weights_after(eight_bit.clone(), &flex);
    // Half way between two codes either may be taken: a hundredth of a step each.
    assert_near(weights_after(eight_bit, &wgpu), on_flex, 1e-3);
}

//! A pass writes in place: it takes no memory of the device, and none of the host.

use burn::optim::Optimizer;
use burn_lean::optim::{EightBitMoments, InOnePass, Lean, StableAdamWConfig};

use super::super::run::Run;
use super::{RATE, gradient, weight, wgpu};
use crate::harness::prelude::*;
use crate::memory::peak_of;

const WIDTH: usize = 2048;

const BYTES: usize = 4 * WIDTH * WIDTH;

/// What a call takes of the device and of the host, beyond what is in use before it; in weights.
///
/// What the device has reserved shrinks when it is cleaned up and at no other time, so that it
/// knows the peak.
fn taken<R>(device: &Device, run: impl FnOnce() -> R) -> (R, [f64; 2]) {
    let reserved = || {
        device.sync().unwrap();
        device
            .memory_pool_usage()
            .expect("it is known")
            .bytes_reserved
    };
    device.sync().unwrap();
    device.memory_cleanup();
    let before = reserved();
    let ((result, after), of_host) = peak_of(|| {
        let result = run();
        (result, reserved())
    });
    let of_device = after - before;
    (
        result,
        [of_device as f64, of_host as f64].map(|bytes| bytes / BYTES as f64),
    )
}

/// Of the last of some steps.
fn of_a_step(optimizer: impl Optimizer) -> [f64; 2] {
    let (shape, device) = ([WIDTH, WIDTH], wgpu());
    let mut run = Run::new(optimizer, weight(shape, &device));
    let mut last = [0.0; 2];
    for step in 0..4 {
        let grad = gradient(step, shape, &device);
        last = taken(&device, || run.step(RATE, grad)).1;
    }
    last
}

/// Burn's own optimizer makes tensors of the parameter's size; a pass makes none. Nor does Fusion,
/// where all states are floats.
#[test]
fn a_step_needs_no_memory() {
    alone(|| {
        let [plain, _] = of_a_step(AdamWConfig::new().build());
        assert!(cfg!(feature = "fusion") || plain > 0.9, "{plain}");
        let adamw = || AdamWConfig::new().in_one_pass();
        let eight_bit = adamw().with_8_bit_moments(&Vec::<Linear>::new());
        let stable = StableAdamWConfig::new().build();
        for (name, lean, limit) in [
            ("adamw", of_a_step(adamw()), 0.1),
            ("adamw in 8 bits", of_a_step(eight_bit), 0.1),
            // A page of the device's for the sums of a mean.
            ("stable adamw", of_a_step(stable), 0.6),
        ] {
            println!("{name} {lean:?}, Burn's {plain}");
            assert!(lean.iter().all(|taken| *taken < limit), "{name}: {lean:?}");
        }
    });
}

/// Of the last of some steps with gradient release.
fn with_release(optim: ModuleOptimizer) -> f64 {
    let device = wgpu().autodiff();
    let mut model: Linear = seeded(&device, |device| {
        LinearConfig::new(WIDTH, WIDTH)
            .with_bias(false)
            .init(device)
    });
    let mut optim = optim.with_gradient_release();
    let mut last = 0.0;
    for step in 0..5 {
        let x: Tensor<2> = numbers([2, WIDTH], step, &device);
        let (next, [of_device, _]) = taken(&wgpu(), || {
            release_step(model, &mut optim, |model: &Linear| {
                model.forward(x).square().mean()
            })
        });
        (model, last) = (next, of_device);
    }
    assert_eq!(optim.last_step().unwrap().in_place(), 1);
    last
}

/// With gradient release a step of the model has no temporary of the optimizer and no copy of the
/// weight: the gradient is all there is.
#[test]
fn a_step_with_release_is_in_place() {
    alone(|| {
        let plain = with_release(AdamWConfig::new().init());
        let lean = with_release(AdamWConfig::new().in_one_pass().init());
        println!("in weights: Burn's {plain}, in one pass {lean}");
        assert!(lean < 1.5, "{lean}");
        assert!(
            cfg!(feature = "fusion") || plain > lean + 0.9,
            "{lean}, {plain}"
        );
    });
}

//! Time of a step of many small layers, where what a parameter costs by itself shows: gradient release beside
//! plain Burn, Adam on Flex. All weights are compared at the end.
//!
//! ```sh
//! cargo run --release -p benchmarks --example small
//! ```

use burn_0_22::nn::{Linear, LinearConfig};
use burn_0_22::optim::{AdamConfig, GradientsParams};
use burn_0_22::tensor::{Device, Tensor};
use burn_lean::WithGradientRelease;
use std::time::Instant;

use benchmarks::results::median;

const WIDTH: usize = 4;

fn forward(layers: &[Linear], x: Tensor<2>) -> Tensor<1> {
    let through = |x, layer: &Linear| layer.forward(x);
    layers.iter().fold(x, through).square().mean()
}

fn main() {
    let device = Device::flex().autodiff();
    for (layers, steps) in [(10, 2000), (1000, 40), (10_000, 8)] {
        let config = LinearConfig::new(WIDTH, WIDTH);
        let mut plain: Vec<Linear> = (0..layers).map(|_| config.init(&device)).collect();
        // Reads the weights, which draws them: both have the same.
        forward(&plain, Tensor::ones([1, WIDTH], &device));
        let mut released = plain.clone();
        let mut adam = AdamConfig::new().init();
        let mut adam_released = AdamConfig::new().init().with_gradient_release();
        let (mut of_plain, mut of_released) = (Vec::new(), Vec::new());
        for _ in 0..steps {
            let x = Tensor::ones([8, WIDTH], &device);
            let start = Instant::now();
            let grads = forward(&plain, x.clone()).backward();
            let grads = GradientsParams::from_grads(grads, &plain);
            plain = adam.step(1e-3, plain, grads);
            of_plain.push(start.elapsed().as_secs_f64());

            let start = Instant::now();
            let loss = forward(&released, x);
            released = adam_released.backward(1e-3, loss, released);
            of_released.push(start.elapsed().as_secs_f64());
        }
        let weights = |layers: &[Linear]| -> Vec<_> {
            let weights = layers.iter().map(|layer| layer.weight.val().into_data());
            weights.collect()
        };
        assert!(weights(&plain) == weights(&released));
        let in_ms = |seconds: Vec<f64>| 1e3 * median(&seconds).expect("a step was timed");
        let [plain, released] = [of_plain, of_released].map(in_ms);
        println!(
            "{layers} layers: plain {plain:.3} ms a step, release {released:.3} ms, ratio {:.2}",
            released / plain
        );
    }
}

//! Scopes on a device that the module visits: here NdArray, from Flex.

use burn_lean::checkpoint_on;

use crate::harness::prelude::*;

const WIDTH: usize = 24;

#[allow(deprecated)] // Burn 0.22 deprecates NdArray.
fn visited() -> Device {
    Device::ndarray().autodiff()
}

fn layers() -> Vec<Linear> {
    let layer = |_| LinearConfig::new(WIDTH, WIDTH).init(&flex());
    numbered((0..4).map(layer).collect())
}

/// The first layer is used twice.
fn loss(layers: &[Linear], step: usize, device: &Device) -> Tensor<1> {
    let x = numbers::<2>([5, WIDTH], step, device);
    let layers = layers.iter().chain(layers.first());
    let forward = |layer: &Linear, x| gelu(layer.forward(x));
    let y = layers.fold(x, |x, layer| checkpoint_on(device, layer, x, forward));
    y.square().mean()
}

/// The same model, but with all of it on the device.
fn loss_of_all(layers: &[Linear], step: usize, device: &Device) -> Tensor<1> {
    let x = numbers::<2>([5, WIDTH], step, device);
    let layers = layers.iter().chain(layers.first());
    layers
        .fold(x, |x, layer| gelu(layer.forward(x)))
        .square()
        .mean()
}

#[test]
fn a_model_on_the_host_trains_on_a_device() {
    let device = visited();
    let mut plain = layers().fork(&device);
    let mut optim = momentum();
    let mut host = layers();
    let mut released = momentum().with_gradient_release();
    for step in 0..10 {
        plain = plain_step(plain, &mut optim, |model| loss_of_all(model, step, &device));
        host = release_step(host, &mut released, |model| loss(model, step, &device));
        let report = released.last_step().unwrap();
        assert_eq!(report.count(Outcome::Released), 8);
        assert_eq!(report.in_place(), 8, "in place on the host");
        let weight = host[0].weight.val();
        assert_eq!(weight.device(), flex(), "the weights stay where they are");
        // The step is computed on Flex, and not on NdArray: the numbers are rounded alike.
        assert_eq!(bits(&host), bits(&plain), "step {step}");
    }
}

#[test]
fn without_release_gradients_are_on_the_host() {
    let device = visited();
    let (model, all) = (layers(), layers().fork(&device));
    let grads = loss(&model, 0, &device).backward();
    let expected = loss_of_all(&all, 0, &device).backward();
    for (layer, expected_of) in model.iter().zip(&all) {
        let grad = layer.weight.grad(&grads).unwrap();
        assert_eq!(grad.device(), Device::flex());
        let expected = expected_of.weight.grad(&expected).unwrap();
        assert_eq!(grad.into_data(), expected.into_data());
    }
}

#[test]
fn running_statistics_and_scopes_around_are_refused() {
    let device = visited();
    let norm: BatchNorm = BatchNormConfig::new(WIDTH).init(&flex());
    let x = || numbers::<2>([5, WIDTH], 0, &device);
    let forward = |norm: &BatchNorm, x: Tensor<2>| norm.forward(x);
    let text = panic_of(|| checkpoint_on(&device, &norm, x(), forward)).unwrap_err();
    assert!(text.contains("BatchNorm"), "{text}");
    let model = layers();
    let text = panic_of(|| {
        let device = device.clone();
        checkpoint(&model, x(), move |model: &Vec<Linear>, x| {
            let forward = |layer: &Linear, x| layer.forward(x);
            checkpoint_on(&device, &model[0], x, forward)
        })
    });
    let text = text.unwrap_err();
    assert!(text.contains("another scope"), "{text}");
}

//! What changes in the middle of a run: release itself, which is left, and the layers. (Layers that are
//! frozen: `recompute::last_bits`.)

use super::{Model, P, R, adam, armed_step, bench, loss, start, weights};
use crate::harness::prelude::*;

/// What is left is plain Burn in the same state.
#[test]
fn release_starts_and_ends_in_mid_run() {
    let (mut model, _, expected) = bench(6);
    let mut adaptor = AdamConfig::new().init::<R, Model>();
    let ordinary = |model: Model, adaptor: &mut OptimizerAdaptor<Adam, Model, R>, step| {
        let loss = loss(&model, step);
        let model = ordinary_step(RATE, model, adaptor, loss);
        weights(&model).assert_same(&expected.steps[step as usize], step);
        model
    };
    for step in 0..2 {
        model = ordinary(model, &mut adaptor, step);
    }
    let mut optim = adaptor.with_gradient_release();
    for step in 2..4 {
        model = armed_step(&mut optim, model, step);
        weights(&model).assert_same(&expected.steps[step as usize], step);
    }
    // Also while it is armed.
    model = optim.arm(RATE, model);
    assert!(optim.is_armed());
    model = optim.disarm(model);
    assert!(!optim.is_armed());
    let mut adaptor = optim.into_adaptor();
    for step in 4..6 {
        model = ordinary(model, &mut adaptor, step);
    }
}

/// A layer of other weights is added before every second step.
fn add<B: AutodiffBackend>(step: u64, model: &mut MlpModel<B>, other: &Start) {
    if step % 2 == 1 && step < 6 {
        let mut layers = other.model::<Mlp, B>().layers;
        model.layers.push(layers.swap_remove(step as usize / 2));
    }
}

#[test]
fn layers_are_added_between_steps() {
    // Layers that are added have the same ids on both backends.
    let (start, other) = (start::<Mlp>(), start::<Mlp>());
    let mut plain = start.model::<Mlp, P>();
    let mut plain_optim = AdamConfig::new().init();
    let mut model = start.model::<Mlp, R>();
    let mut optim = adam();
    for step in 0..8 {
        add(step, &mut plain, &other);
        add(step, &mut model, &other);
        plain = ordinary_step(RATE, plain.clone(), &mut plain_optim, loss(&plain, step));
        model = armed_step(&mut optim, model, step);
        weights(&model).assert_same(&Weights::of(&plain), step);
        let report = optim.last_step().expect("a step was taken");
        assert_all_released(&report, trainable::<R, _>(&model));
    }
}

//! Layers that are added to a model between steps. (Those that are frozen: `recompute::last_bits`.)

use super::{P, R, adam, armed_step, loss, start, weights};
use crate::harness::prelude::*;

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
        weights(&model).assert_same(&Weights::of::<P, _>(&plain), step);
        let report = optim.last_step().expect("a step was taken");
        assert_all_released(&report, trainable::<R, _>(&model));
    }
}

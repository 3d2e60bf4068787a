//! Models whose parameters change between steps: frozen, unfrozen, added.

use burn::nn::Linear;
use burn::optim::AdamConfig;
use burn::tensor::backend::AutodiffBackend;
use burn_gradient_release::{Outcome, WithGradientRelease};

use super::{P, R, loss, start, weights};
use crate::harness::Weights;
use crate::harness::run::{self, RATE, assert_all_released, trainable};

/// Freezes the first layer for some steps.
fn freeze<B: AutodiffBackend>(mut model: super::MlpModel<B>, frozen: bool) -> super::MlpModel<B> {
    let first = model.layers.remove(0);
    let first = Linear {
        weight: first.weight.set_require_grad(!frozen),
        bias: first.bias.map(|bias| bias.set_require_grad(!frozen)),
    };
    model.layers.insert(0, first);
    model
}

#[test]
fn frozen_layers_unfrozen_later() {
    let start = start::<super::Mlp>();
    let mut plain = start.model::<super::Mlp, P>();
    let mut plain_optim = AdamConfig::new().init();
    let mut model = start.model::<super::Mlp, R>();
    let mut optim = AdamConfig::new().init::<R, _>().with_gradient_release();
    for step in 0..9 {
        if step % 3 == 0 {
            let frozen = step == 3;
            plain = freeze(plain, frozen);
            model = freeze(model, frozen);
        }
        let before = Weights::of::<R, _>(&model.layers[0]);
        plain = run::ordinary_step(RATE, plain.clone(), &mut plain_optim, loss(&plain, step));
        model = super::armed_step(&mut optim, model, step);
        weights(&model).assert_same(&Weights::of::<P, _>(&plain), step);

        let frozen = (3..6).contains(&step);
        let after = Weights::of::<R, _>(&model.layers[0]);
        assert_eq!(after.same(&before), frozen, "step {step}");
        let parameters = if frozen {
            super::PARAMETERS - 2
        } else {
            super::PARAMETERS
        };
        let report = optim.last_step().expect("a step was taken");
        assert_eq!(report.count(Outcome::Released), parameters);
    }
}

#[test]
fn parameters_added_between_steps() {
    let start = start::<super::Mlp>();
    let mut plain = start.model::<super::Mlp, P>();
    let mut plain_optim = AdamConfig::new().init();
    let mut model = start.model::<super::Mlp, R>();
    let mut optim = AdamConfig::new().init::<R, _>().with_gradient_release();
    // Its layers are the ones added, with the same ids on both backends.
    let more = super::start::<super::Mlp>();
    for step in 0..6 {
        if step % 2 == 1 {
            let place = step as usize / 2;
            plain
                .layers
                .push(more.model::<super::Mlp, P>().layers.swap_remove(place));
            model
                .layers
                .push(more.model::<super::Mlp, R>().layers.swap_remove(place));
        }
        plain = run::ordinary_step(RATE, plain.clone(), &mut plain_optim, loss(&plain, step));
        model = super::armed_step(&mut optim, model, step);
        weights(&model).assert_same(&Weights::of::<P, _>(&plain), step);
        assert_all_released(
            &optim.last_step().expect("a step was taken"),
            trainable::<R, _>(&model),
        );
    }
}

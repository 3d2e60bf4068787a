//! Not using release for a while, or no more: what is left is plain Burn in the same state.

use burn::optim::MultiGradientsParams;
use burn::tensor::backend::DeviceOps;

use super::{Model, P, PARAMETERS, R, adam, armed_step, bench, loss, start, weights};
use crate::harness::prelude::*;

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

/// Gradients of two workers at once.
#[test]
fn an_unarmed_step_with_several_gradients_is_plain_burns() {
    fn train<B: AutodiffBackend>(
        mut model: MlpModel<B>,
        optim: &mut impl Optimizer<MlpModel<B>, B>,
    ) -> Weights {
        let device = <B as BackendTypes>::Device::default();
        for step in 0..3 {
            let grads = [2 * step, 2 * step + 1].map(|part| {
                let grads = loss::<B>(&model, part).backward();
                (GradientsParams::from_grads(grads, &model), device.id())
            });
            let grads = grads.into();
            model = optim.step_multi(RATE, model, MultiGradientsParams { grads });
        }
        Weights::of::<B, _>(&model)
    }

    let start = start::<Mlp>();
    let expected = train(start.model::<Mlp, P>(), &mut AdamConfig::new().init());
    let mut optim = adam();
    train(start.model::<Mlp, R>(), &mut optim).assert_same(&expected, "of two workers");
    let report = optim.last_step().expect("a step was taken");
    assert_eq!(outcomes(&report), [0, 0, PARAMETERS, 0]);
}

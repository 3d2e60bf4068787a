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

/// Ways to step with several gradients at once, unarmed.
#[derive(Clone, Copy, Debug)]
enum Several {
    /// Micro-batches, by Burn's accumulator.
    Accumulated,
    /// Those of two workers, by `step_multi`.
    OfWorkers,
}

impl Several {
    fn train<B, O>(self, mut model: MlpModel<B>, optim: &mut O) -> Weights
    where
        B: AutodiffBackend,
        O: Optimizer<MlpModel<B>, B>,
    {
        for step in 0..3 {
            let grads = [2 * step, 2 * step + 1].map(|part| {
                let loss = loss::<B>(&model, part);
                GradientsParams::from_grads(loss.backward(), &model)
            });
            model = match self {
                Self::Accumulated => {
                    let mut accumulator = GradientsAccumulator::new();
                    for grads in grads {
                        accumulator.accumulate(&model, grads);
                    }
                    optim.step(RATE, model, accumulator.grads())
                }
                Self::OfWorkers => {
                    let device = <B as BackendTypes>::Device::default();
                    let grads = grads.map(|grads| (grads, device.id())).into();
                    optim.step_multi(RATE, model, MultiGradientsParams { grads })
                }
            };
        }
        Weights::of::<B, _>(&model)
    }
}

#[test]
fn unarmed_steps_with_several_gradients_are_plain_burns() {
    let start = start::<Mlp>();
    for several in [Several::Accumulated, Several::OfWorkers] {
        let expected = several.train(start.model::<Mlp, P>(), &mut AdamConfig::new().init());
        let mut optim = adam();
        let given = several.train(start.model::<Mlp, R>(), &mut optim);
        given.assert_same(&expected, format!("{several:?}"));
        let report = optim.last_step().expect("a step was taken");
        assert_eq!(outcomes(&report), [0, 0, PARAMETERS, 0], "{several:?}");
    }
}

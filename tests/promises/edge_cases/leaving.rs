//! Not using release for a while, or no more: what is left is plain Burn in the same state.

use burn::optim::adaptor::OptimizerAdaptor;
use burn::optim::{
    Adam, AdamConfig, GradientsAccumulator, GradientsParams, MultiGradientsParams, Optimizer,
};
use burn::tensor::Tensor;
use burn::tensor::backend::{AutodiffBackend, DeviceOps};
use burn_gradient_release::{Outcome, ReleaseError, WithGradientRelease};

use super::{
    Bench, Inner, Model, P, PARAMETERS, R, armed_step, bench, gradients, loss, start, weights,
};
use crate::harness::Weights;
use crate::harness::models::{Mlp, MlpModel};
use crate::harness::run::{self, RATE};

#[test]
fn removal_in_mid_run_keeps_the_step_count() {
    let Bench {
        mut model,
        mut optim,
        expected,
    } = bench(6);
    for step in 0..3 {
        model = armed_step(&mut optim, model, step);
    }
    let mut adaptor: OptimizerAdaptor<Adam, Model, R> = optim.into_adaptor();
    for step in 3..6 {
        model = run::ordinary_step(RATE, model.clone(), &mut adaptor, loss(&model, step));
        weights(&model).assert_same(&expected.steps[step as usize], step);
    }
}

#[test]
fn release_can_start_in_mid_run() {
    let Bench {
        mut model,
        expected,
        ..
    } = bench(6);
    let mut adaptor = AdamConfig::new().init::<R, Model>();
    for step in 0..3 {
        model = run::ordinary_step(RATE, model.clone(), &mut adaptor, loss(&model, step));
    }
    let mut optim = adaptor.with_gradient_release();
    for step in 3..6 {
        model = armed_step(&mut optim, model, step);
        weights(&model).assert_same(&expected.steps[step as usize], step);
    }
}

#[test]
fn removal_while_armed_is_a_disarming() {
    let Bench {
        model,
        mut optim,
        expected,
    } = bench(1);
    let model = optim.arm(RATE, model);
    assert!(optim.is_armed());
    let model = optim.disarm(model);
    assert!(!optim.is_armed());
    let mut adaptor = optim.into_adaptor();
    let grads = gradients(&model, 0);
    assert_eq!(
        grads.len(),
        PARAMETERS,
        "disarmed parameters have gradients"
    );
    let model = adaptor.step(RATE, model, grads);
    weights(&model).assert_same(&expected.steps[0], "an ordinary step");
}

#[test]
fn a_loss_made_while_armed_is_ordinary_after_disarming() {
    let Bench {
        model,
        mut optim,
        expected,
    } = bench(1);
    let model = optim.arm(RATE, model);
    let early = loss(&model, 0);
    let model = optim.disarm(model);
    drop(early);
    weights(&model).assert_same(&expected.first, "disarming moves nothing");
    let grads = gradients(&model, 0);
    let model = optim.step(RATE, model, grads);
    weights(&model).assert_same(&expected.steps[0], "an ordinary step");
    let report = optim.last_step().expect("a step was taken");
    assert_eq!(report.count(Outcome::Ordinary), PARAMETERS);
}

#[test]
fn armed_and_ordinary_steps_may_alternate() {
    let Bench {
        mut model,
        mut optim,
        expected,
    } = bench(6);
    for step in 0..6 {
        model = if step % 2 == 0 {
            armed_step(&mut optim, model, step)
        } else {
            let grads = gradients(&model, step);
            assert_eq!(grads.len(), PARAMETERS);
            optim.step(RATE, model, grads)
        };
        weights(&model).assert_same(&expected.steps[step as usize], step);
    }
}

/// Looking at the gradients between two armed steps, as a learning-rate finder does.
#[test]
fn an_inspecting_backward_between_steps_changes_nothing() {
    let Bench {
        mut model,
        mut optim,
        expected,
    } = bench(3);
    for step in 0..3 {
        assert_eq!(gradients(&model, step + 20).len(), PARAMETERS);
        model = armed_step(&mut optim, model, step);
        weights(&model).assert_same(&expected.steps[step as usize], step);
    }
}

/// Two micro-batches per step, by Burn's accumulator.
fn accumulated<B, O>(mut model: MlpModel<B>, optim: &mut O) -> Weights
where
    B: AutodiffBackend,
    O: Optimizer<MlpModel<B>, B>,
{
    for step in 0..3 {
        let mut accumulator = GradientsAccumulator::new();
        for part in 0..2 {
            let part: Tensor<B, 1> = loss(&model, 2 * step + part);
            let grads = GradientsParams::from_grads(part.backward(), &model);
            accumulator.accumulate(&model, grads);
        }
        model = optim.step(RATE, model, accumulator.grads());
    }
    Weights::of::<B, _>(&model)
}

#[test]
fn unarmed_accumulation_is_plain_burns() {
    let start = start::<Mlp>();
    let expected = accumulated(start.model::<Mlp, P>(), &mut AdamConfig::new().init());
    let mut optim = AdamConfig::new().init::<R, Model>().with_gradient_release();
    let model = start.model::<Mlp, R>();
    accumulated(model, &mut optim).assert_same(&expected, "accumulated");
}

/// The gradients of two workers, stepped at once.
fn several_workers<B, O>(mut model: MlpModel<B>, optim: &mut O) -> Weights
where
    B: AutodiffBackend,
    O: Optimizer<MlpModel<B>, B>,
{
    let device = <B as burn::tensor::backend::BackendTypes>::Device::default();
    for step in 0..3 {
        let grads = (0..2)
            .map(|worker| {
                let part: Tensor<B, 1> = loss(&model, 2 * step + worker);
                let grads = GradientsParams::from_grads(part.backward(), &model);
                (grads, device.id())
            })
            .collect();
        model = optim.step_multi(RATE, model, MultiGradientsParams { grads });
    }
    Weights::of::<B, _>(&model)
}

#[test]
fn step_multi_is_plain_burns() {
    let start = start::<Mlp>();
    let expected = several_workers(start.model::<Mlp, P>(), &mut AdamConfig::new().init());
    let mut optim = AdamConfig::new().init::<R, Model>().with_gradient_release();
    several_workers(start.model::<Mlp, R>(), &mut optim).assert_same(&expected, "step_multi");
    let report = optim.last_step().expect("a step was taken");
    assert_eq!(report.count(Outcome::Ordinary), PARAMETERS);
}

/// What was released has seen one device's gradients only, so several come too late.
#[test]
fn step_multi_after_a_released_backward_is_refused() {
    let Bench {
        model,
        mut optim,
        expected,
    } = bench(1);
    let model = optim.arm(RATE, model);
    let grads = gradients(&model, 0);
    let id = <Inner as burn::tensor::backend::BackendTypes>::Device::default().id();
    let grads = MultiGradientsParams {
        grads: vec![(grads, id)],
    };
    let refused = optim.try_step_multi(RATE, model, grads).err();
    let (model, error) = refused.expect("refused").into_parts();
    assert!(
        matches!(error, ReleaseError::MultiDevice { stepped, armed }
            if (stepped, armed) == (PARAMETERS, PARAMETERS)),
        "{error:?}"
    );
    let model = optim.step(RATE, model, GradientsParams::new());
    weights(&model).assert_same(&expected.steps[0], "nothing is lost");
}

#[test]
fn a_step_without_backward_moves_nothing() {
    let Bench {
        model,
        mut optim,
        expected,
    } = bench(1);
    let model = optim.arm(RATE, model);
    let model = optim
        .try_step(RATE, model, GradientsParams::new())
        .expect("nothing happened");
    weights(&model).assert_same(&expected.first, "no gradients");
    assert_eq!(
        optim.last_step().expect("a step").count(Outcome::Unused),
        PARAMETERS
    );
    assert!(!optim.is_armed());
    let model = armed_step(&mut optim, model, 0);
    weights(&model).assert_same(&expected.steps[0], "and then the first real step");
}

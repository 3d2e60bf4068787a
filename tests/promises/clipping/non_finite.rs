//! Gradients that are no numbers.

use burn::backend::Flex;
use burn::module::{ModuleMapper, Param};
use burn::optim::{AdamConfig, GradientsParams, Optimizer};
use burn::tensor::{Tensor, TensorData, backend::Backend};
use burn_gradient_release::{
    NormClipping, Outcome, Recompute, ReleaseError, ReleaseOptimizer, WithGradientRelease,
};

use crate::harness::models::{Mlp, MlpModel, Scenario, Size, Transformer};
use crate::harness::run::{RATE, Start};
use crate::harness::{Release, Weights};

type R = Release<Flex>;
type Adam = ReleaseOptimizer<burn::optim::Adam, MlpModel<R>, R>;

const LAYERS: usize = 3;

fn optim() -> Adam {
    AdamConfig::new().init().with_gradient_release()
}

/// The loss, with a gradient that is no number in the weight of one layer, and in no other.
fn planted(model: &MlpModel<R>, layer: usize, factor: f64) -> Tensor<R, 1> {
    let nan = model.layers[layer].weight.val().sum() * factor;
    Mlp::loss::<R>(model, Size::Small, 0) + nan
}

fn path(layer: usize) -> String {
    format!("layers.{layer}.weight")
}

#[test]
fn in_one_pass_nothing_is_stepped_after_it() {
    for layer in 0..LAYERS {
        for factor in [f64::NAN, f64::INFINITY] {
            let start = Start::new::<Mlp>(Size::Small);
            let mut optim = optim().with_non_finite_stop();
            let mut model = start.model::<Mlp, R>();
            let before = Weights::of::<R, _>(&model);
            model = optim.arm(RATE, model);
            let loss = planted(&model, layer, factor);
            let grads = GradientsParams::from_grads(loss.backward(), &model);
            let refused = optim.try_step(RATE, model, grads).unwrap_err();
            let ReleaseError::NonFinite {
                path: found,
                stepped,
                armed,
            } = refused.error().clone()
            else {
                panic!("{:?}", refused.error());
            };
            // Backward comes from the last layer; the bias of a layer has its gradient before the
            // weight or right after it.
            assert_eq!(found, path(layer));
            assert_eq!(armed, 2 * LAYERS);
            let after = LAYERS - 1 - layer;
            assert!(
                (2 * after..=2 * after + 1).contains(&stepped),
                "{stepped} were stepped"
            );
            let (model, _) = refused.into_given();
            let changed = Weights::of::<R, _>(&model).changed(&before);
            assert_eq!(changed, stepped, "what was stepped, and no more");

            if stepped > 0 {
                let error = optim.try_arm(RATE, model).unwrap_err();
                let text = error.error().to_string();
                assert!(text.contains("load the last checkpoint"), "{text}");
            } else {
                // Nothing has happened: another batch can follow.
                let mut model = optim.disarm(model);
                model = optim.arm(RATE, model);
                let loss = Mlp::loss::<R>(&model, Size::Small, 1);
                let grads = GradientsParams::from_grads(loss.backward(), &model);
                model = optim.step(RATE, model, grads);
                Weights::of::<R, _>(&model).assert_moved(&before, "after the refusal");
            }
        }
    }
}

#[test]
fn in_two_passes_and_ordinary_steps_nothing_is_stepped_at_all() {
    for layer in 0..LAYERS {
        let start = Start::new::<Mlp>(Size::Small);
        for clipping in [false, true] {
            let mut optim = optim().with_non_finite_stop();
            if clipping {
                optim = optim.with_norm_clipping(NormClipping::GlobalNorm { max_norm: 1.0 });
            }
            let model = start.model::<Mlp, R>();
            let before = Weights::of::<R, _>(&model);
            let refused = optim
                .try_two_passes(RATE, model, GradientsParams::new(), |model| {
                    planted(model, layer, f64::NAN)
                })
                .unwrap_err();
            let expected = ReleaseError::NonFinite {
                path: path(layer),
                stepped: 0,
                armed: 2 * LAYERS,
            };
            assert_eq!(*refused.error(), expected);
            let model = refused.into_model();
            Weights::of::<R, _>(&model).assert_same(&before, "two passes");

            let loss = planted(&model, layer, f64::NAN);
            let grads = GradientsParams::from_grads(loss.backward(), &model);
            let refused = optim.try_step(RATE, model, grads).unwrap_err();
            let text = refused.error().to_string();
            assert!(
                text.starts_with(&format!("the gradient of {} is not", path(layer))),
                "{text}"
            );
            let (model, grads) = refused.into_given();
            assert!(!grads.is_empty());
            Weights::of::<R, _>(&model).assert_same(&before, "ordinary");
            let (model, _) =
                optim.two_passes(RATE, model, |model| Mlp::loss::<R>(model, Size::Small, 0));
            Weights::of::<R, _>(&model).assert_moved(&before, "after the refusals");
        }
    }
}

/// Clipping by the global norm has no coefficient for it, so it is refused without being asked to.
#[test]
fn the_global_norm_of_no_number_is_refused() {
    let start = Start::new::<Mlp>(Size::Small);
    let mut optim = optim().with_norm_clipping(NormClipping::GlobalNorm { max_norm: 1.0 });
    let model = start.model::<Mlp, R>();
    let refused = optim
        .try_two_passes(RATE, model, GradientsParams::new(), |model| {
            planted(model, 1, f64::NAN)
        })
        .unwrap_err();
    assert!(matches!(
        refused.error(),
        ReleaseError::NonFinite { stepped: 0, .. }
    ));
}

/// Plain Burn's weights, where nothing is wrong; with recomputed activations, too.
#[test]
fn looking_changes_nothing() {
    type S = Transformer;
    let start = Start::new::<S>(Size::Small);
    for recompute in [Recompute::None, Recompute::Automatic] {
        let run = |looks: bool| {
            let mut optim = AdamConfig::new()
                .init::<R, _>()
                .with_gradient_release()
                .with_recompute(recompute);
            if looks {
                optim = optim.with_non_finite_stop().with_grad_norm();
            }
            let mut model = start.model::<S, R>();
            let mut weights = Vec::new();
            for step in 0..5 {
                model = optim.arm(RATE, model);
                let loss = S::loss::<R>(&model, Size::Small, step);
                let grads = GradientsParams::from_grads(loss.backward(), &model);
                model = optim.step(RATE, model, grads);
                weights.push(Weights::of::<R, _>(&model));
                let report = optim.last_step().unwrap();
                assert_eq!(report.count(Outcome::Released), report.outcomes().count());
                assert_eq!(report.grad_norm().is_some(), looks);
            }
            weights
        };
        for (step, (with, without)) in run(true).iter().zip(run(false)).enumerate() {
            with.assert_same(&without, step);
        }
    }
}

/// Not a finite weight, but a finite gradient: that is not what is looked for.
#[test]
fn weights_are_not_looked_at() {
    struct Plant;

    impl<B: Backend> ModuleMapper<B> for Plant {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
            let (id, tensor, mapper) = param.consume();
            let tensor = match D {
                1 => {
                    let data = TensorData::full(tensor.shape(), f32::NAN);
                    Tensor::from_data(data, &tensor.device()).require_grad()
                }
                _ => tensor,
            };
            Param::from_mapped_value(id, tensor, mapper)
        }
    }

    let model = Start::new::<Mlp>(Size::Small).model::<Mlp, R>();
    let mut model = burn::module::Module::<R>::map(model, &mut Plant);
    let mut optim = optim().with_non_finite_stop();
    model = optim.arm(RATE, model);
    let loss = model.layers.iter().map(|layer| layer.weight.val().sum());
    let loss = loss.reduce(|one, other| one + other).unwrap();
    let grads = GradientsParams::from_grads(loss.backward(), &model);
    let _ = optim.step(RATE, model, grads);
    assert_eq!(optim.last_step().unwrap().count(Outcome::Released), LAYERS);
}

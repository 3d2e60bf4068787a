//! A group is stepped as plain Burn steps it with an optimizer of its own, and the record is
//! Burn's.

use burn::grad_clipping::GradientClipping;
use burn_gradient_release::AdaptiveClippingConfig;
use burn_gradient_release_optim::{InOnePass, Lean};

use super::parts::{Parts, adamw, having, part};
use crate::clipping::by_hand::{each, global_norm};
use crate::harness::prelude::*;

const STEPS: u64 = 6;

/// How release takes its steps.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Armed(Recompute),
    Ordinary,
}

const KEPT: Way = Way::Armed(Recompute::None);

fn any(texts: &[&'static str]) -> ParamGroup {
    ParamGroup::from_any_predicates(texts.iter().copied())
}

fn plain_grads<S: Scenario>(model: &S::Model<P>, step: u64) -> GradientsParams {
    let loss = S::loss::<P>(model, Size::Small, step);
    gradients(model, loss)
}

/// No decay on biases and gains, which are clipped by value; another rate and a clipping for some.
fn equals_parts<S: Scenario>(
    undecayed: &[&'static str],
    group: impl Fn(&S::Model<R>) -> ParamGroup,
    other: &[&'static str],
    ways: &[Way],
) {
    let start = Start::new::<S>(Size::Small);
    let clipping = GradientClipping::Norm(0.02);
    let of_other = adamw(0.3).with_grad_clipping(clipping.clone());
    let clipped = GradientClipping::Value(1e-3);
    let of_undecayed = adamw(0.0).with_grad_clipping(clipped.clone());
    let mut parts = Parts {
        rest: (adamw::<P, S::Model<P>>(0.3), RATE),
        parts: vec![
            (other, of_other, 0.1 * RATE),
            (undecayed, of_undecayed, RATE),
        ],
    };
    let (mut plain, mut one) = (start.model::<S, P>(), start.model::<S, P>());
    let mut without_groups = adamw(0.3);
    let mut expected = Vec::new();
    for step in 0..STEPS {
        let grads = plain_grads::<S>(&plain, step);
        plain = parts.step(plain, grads);
        expected.push(Weights::of(&plain));
        one = without_groups.step(RATE, one.clone(), plain_grads::<S>(&one, step));
    }
    Weights::of(&one).assert_moved(expected.last().unwrap(), "without groups");

    for way in ways {
        let mut model = start.model::<S, R>();
        let undecayed = adamw::<R, S::Model<R>>(0.0).with_grad_clipping(clipped.clone());
        let no_decay = GroupOptions::new().with_optimizer(&undecayed);
        let options = GroupOptions::new()
            .with_lr_factor(0.1)
            .with_grad_clipping(clipping.clone());
        let mut optim = adamw::<R, S::Model<R>>(0.3)
            .with_gradient_release()
            .with_group(group(&model), no_decay)
            // The last match counts.
            .with_group(any(other), options);
        if let Way::Armed(recompute) = way {
            optim = optim.with_recompute(*recompute);
        }
        for (step, expected) in expected.iter().enumerate() {
            let loss = |model: &_| S::loss::<R>(model, Size::Small, step as u64);
            let outcome = if *way == Way::Ordinary {
                let loss = loss(&model);
                model = ordinary_step(RATE, model, &mut optim, loss);
                Outcome::Ordinary
            } else {
                model = armed_step(RATE, model, &mut optim, loss);
                Outcome::Released
            };
            let context = format!("{way:?}, step {step}");
            Weights::of(&model).assert_same(expected, &context);
            let report = optim.last_step().unwrap();
            assert_eq!(
                report.count(outcome),
                trainable::<R, _>(&model),
                "{context}"
            );
            for id in having::<R, _>(&model, other) {
                assert_eq!(report.learning_rate_of(id), 0.1 * RATE, "{context}");
            }
        }
        // Plain Burn resumes from it, with an optimizer for each part.
        assert_eq!(
            readable::<R, _>(optim.to_record()),
            parts.record(),
            "{way:?}"
        );
    }
}

#[test]
fn equals_plain_burn_with_an_optimizer_for_each_part() {
    let texts = &["bias", "gamma", "beta"];
    equals_parts::<Mlp>(texts, |_| any(texts), &["layers.1."], &[KEPT]);
    equals_parts::<Tied>(texts, |_| any(texts), &["table"], &[KEPT]);
    equals_parts::<Recurrent>(texts, |_| any(texts), &["input"], &[KEPT]);
    let ways = [KEPT, Way::Armed(Recompute::Automatic), Way::Ordinary];
    equals_parts::<Transformer>(texts, |_| any(texts), &["head.", "tokens"], &ways);
    // Biases, gains and embeddings, by one call.
    let texts = &["bias", "gamma", "beta", "tokens"];
    equals_parts::<Transformer>(texts, ParamGroup::no_decay::<R, _>, &["head."], &[KEPT]);
}

/// Dropped as soon as they are complete; and they count for no norm.
#[test]
fn frozen_parameters_stay() {
    type S = Transformer;
    let start = Start::new::<S>(Size::Small);
    let frozen: &[&str] = &["blocks.0.", "tokens"];
    for passes in [0, 1, 2] {
        let mut plain = start.model::<S, P>();
        let mut plain_optim = adamw(0.1);
        let mut model = start.model::<S, R>();
        let mut optim = adamw(0.1)
            .with_gradient_release()
            .with_grad_norm()
            .with_group(any(frozen), GroupOptions::new().frozen());
        let before = Weights::of(&model);
        let count = having::<R, _>(&model, frozen).len();
        let trained = trainable::<R, _>(&model) - count;
        for step in 0..5 {
            let mut grads = plain_grads::<S>(&plain, step);
            drop(part(&plain, &mut grads, frozen));
            let norm = global_norm::<P, _>(&plain, &mut grads);
            plain = plain_optim.step(RATE, plain, grads);

            let loss = |model: &_| S::loss::<R>(model, Size::Small, step);
            model = match passes {
                0 => {
                    let loss = loss(&model);
                    ordinary_step(RATE, model, &mut optim, loss)
                }
                1 => armed_step(RATE, model, &mut optim, loss),
                _ => optim.two_passes(RATE, model, loss).0,
            };
            let context = format!("{passes} passes, step {step}");
            Weights::of(&model).assert_same(&Weights::of(&plain), &context);
            let report = optim.last_step().unwrap();
            assert_eq!(report.count(Outcome::Frozen), count, "{context}");
            assert_eq!(report.grad_norm(), Some(norm), "{context}");
            assert!(optim.to_record().len() <= trained);
        }
        let after = Weights::of(&model);
        assert_eq!(after.changed(&before), trained);
    }
}

/// A rule that looks at each gradient alone leaves out a group that is not clipped.
#[test]
fn a_group_can_be_left_out_of_clipping() {
    type S = Mlp;
    let start = Start::new::<S>(Size::Small);
    let rule = AdaptiveClippingConfig::new().with_clip_factor(1e-4);
    let own = GradientClippingConfig::Value(1e-5);
    let last = &["layers.2."];
    let mut plain = start.model::<S, P>();
    let mut plain_optim = SgdConfig::new().init();
    let mut model = start.model::<S, R>();
    let mut optim = SgdConfig::new()
        .with_gradient_clipping(Some(own))
        .init()
        .with_gradient_release()
        .with_norm_clipping(NormClipping::Adaptive(rule))
        .with_group(any(last), GroupOptions::new().without_grad_clipping());
    let before = Weights::of(&plain);
    let ids = having::<P, _>(&plain, last);
    for step in 0..3 {
        let mut grads = plain_grads::<S>(&plain, step);
        each::<P, _>(&plain, &mut grads, |gradient| {
            if !ids.contains(&gradient.id) {
                *gradient.grad = gradient.grad.clone() * 0.0;
            }
        });
        plain = plain_optim.step(RATE, plain, grads);
        let loss = |model: &_| S::loss::<R>(model, Size::Small, step);
        model = armed_step(RATE, model, &mut optim, loss);
    }
    // The others moved by three steps of at most 1e-5 at this rate, which the last layer hardly
    // feels.
    let plain = Weights::of(&plain);
    Weights::of(&model).assert_near(&plain, 1e-6, "left out");
    assert!(plain.distance(&before) > 1e-5, "the last layer is trained");
}

/// Inherited, replaced or left out, whether Burn's optimizer steps or the same in one pass.
#[test]
fn a_group_sees_the_clipping_of_a_configuration() {
    type S = Mlp;
    type Model = <S as Scenario>::Model<R>;
    fn weights<O: SimpleOptimizer<Flex> + 'static>(
        start: &Start,
        init: impl Fn(AdamWConfig) -> OptimizerAdaptor<O, Model, R>,
    ) -> Vec<Weights> {
        let config = |decay| AdamWConfig::new().with_weight_decay(decay);
        let by_norm = || Some(GradientClippingConfig::Norm(0.01));
        let by_value = config(0.0).with_grad_clipping(Some(GradientClippingConfig::Value(1e-3)));
        let group = GroupOptions::new;
        let options = [
            group().with_optimizer(&init(config(0.0))),
            group().with_optimizer(&init(by_value)),
            group().with_grad_clipping(GradientClipping::Norm(0.02)),
            group().without_grad_clipping(),
        ];
        let trained = options.into_iter().map(|options| {
            let mut model = start.model::<S, R>();
            let mut optim = init(config(0.3).with_grad_clipping(by_norm()))
                .with_gradient_release()
                .with_group(any(&["layers.2."]), options);
            for step in 0..3 {
                let loss = |model: &_| S::loss::<R>(model, Size::Small, step);
                model = armed_step(RATE, model, &mut optim, loss);
            }
            Weights::of(&model)
        });
        trained.collect()
    }
    let start = Start::new::<S>(Size::Small);
    let expected = weights(&start, |config| config.init());
    let found = weights(&start, |config| config.in_one_pass().init());
    for (number, (found, expected)) in found.iter().zip(&expected).enumerate() {
        found.assert_same(expected, format!("options {number}"));
    }
}

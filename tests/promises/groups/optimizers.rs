//! A group is stepped as plain Burn steps it with an optimizer of its own.

use burn::backend::Flex;
use burn::grad_clipping::{GradientClipping, GradientClippingConfig};
use burn::optim::{AdamW, GradientsParams, Muon, MuonConfig, Optimizer, SgdConfig};
use burn::record::{FullPrecisionSettings, NamedMpkBytesRecorder, Recorder};
use burn_gradient_release::{
    AdaptiveClippingConfig, Either, GroupOptions, NormClipping, Outcome, ParamGroup, Recompute,
    ReleaseOptimizer, WithGradientRelease,
};

use super::parts::{Parts, adamw, having, part};
use crate::clipping::by_hand::{each, global_norm};
use crate::harness::models::{Mlp, Recurrent, Scenario, Size, Tied, Transformer};
use crate::harness::run::{RATE, Start, trainable};
use crate::harness::{Plain, Release, Weights};

type P = Plain<Flex>;
type R = Release<Flex>;

const STEPS: u64 = 20;

/// No decay on biases and gains, another rate and a clipping for some, in a run of 20 steps.
fn equals_parts<S: Scenario>(other: &[&str], recompute: Recompute, is_armed: bool) {
    let start = Start::new::<S>(Size::Small);
    let clipping = GradientClipping::Norm(0.02);
    let undecayed: &[&str] = &["bias", "gamma", "beta"];
    let mut parts = Parts {
        rest: (adamw::<P, S::Model<P>>(0.3), RATE),
        parts: vec![
            (
                other,
                adamw(0.3).with_grad_clipping(clipping.clone()),
                0.1 * RATE,
            ),
            (undecayed, adamw(0.0), RATE),
        ],
    };
    let mut plain = start.model::<S, P>();

    let mut model = start.model::<S, R>();
    let no_decay = adamw::<R, S::Model<R>>(0.0);
    let mut optim = adamw::<R, S::Model<R>>(0.3)
        .with_gradient_release()
        .with_recompute(recompute)
        .with_group(
            ParamGroup::from_any_predicates(undecayed.iter().copied()),
            GroupOptions::new().with_optimizer(&no_decay),
        )
        // The last match counts.
        .with_group(
            ParamGroup::from_any_predicates(other.iter().copied()),
            GroupOptions::new()
                .with_lr_factor(0.1)
                .with_grad_clipping(clipping),
        );
    let parameters = trainable::<R, _>(&model);
    for step in 0..STEPS {
        let loss = S::loss::<P>(&plain, Size::Small, step);
        let grads = GradientsParams::from_grads(loss.backward(), &plain);
        plain = parts.step(plain, grads);

        if is_armed {
            model = optim.arm(RATE, model);
        }
        let loss = S::loss::<R>(&model, Size::Small, step);
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        model = optim.step(RATE, model, grads);
        let context = format!("{recompute:?}, armed {is_armed}, step {step}");
        Weights::of::<R, _>(&model).assert_same(&Weights::of::<P, _>(&plain), context);
        let report = optim.last_step().unwrap();
        let outcome = if is_armed {
            Outcome::Released
        } else {
            Outcome::Ordinary
        };
        assert_eq!(report.count(outcome), parameters);
        for id in having::<R, _>(&model, other) {
            assert_eq!(report.learning_rate_of(id), 0.1 * RATE);
        }
    }
    let mut one = start.model::<S, P>();
    let mut optim = adamw(0.3);
    for step in 0..STEPS {
        let loss = S::loss::<P>(&one, Size::Small, step);
        let grads = GradientsParams::from_grads(loss.backward(), &one);
        one = optim.step(RATE, one, grads);
    }
    Weights::of::<P, _>(&one).assert_moved(&Weights::of::<P, _>(&plain), "without groups");
}

#[test]
fn equals_plain_burn_with_an_optimizer_for_each_part() {
    equals_parts::<Mlp>(&["layers.1."], Recompute::None, true);
    equals_parts::<Transformer>(&["head.", "tokens"], Recompute::None, true);
    equals_parts::<Transformer>(&["head.", "tokens"], Recompute::Automatic, true);
    equals_parts::<Tied>(&["table"], Recompute::None, true);
    equals_parts::<Recurrent>(&["input"], Recompute::None, true);
}

#[test]
fn an_ordinary_step_has_the_same_groups() {
    equals_parts::<Transformer>(&["head.", "tokens"], Recompute::None, false);
}

/// No decay on biases, norms and embeddings, by one call.
#[test]
fn no_decay_is_one_call() {
    type S = Transformer;
    let start = Start::new::<S>(Size::Small);
    let mut plain = start.model::<S, P>();
    let mut parts = Parts {
        rest: (adamw::<P, _>(0.3), RATE),
        parts: vec![(&["bias", "gamma", "beta", "tokens"], adamw(0.0), RATE)],
    };
    let mut model = start.model::<S, R>();
    let mut optim = adamw::<R, _>(0.3).with_gradient_release().with_group(
        ParamGroup::no_decay(&model),
        GroupOptions::new().with_optimizer(&adamw::<R, <S as Scenario>::Model<R>>(0.0)),
    );
    for step in 0..STEPS {
        let loss = S::loss::<P>(&plain, Size::Small, step);
        let grads = GradientsParams::from_grads(loss.backward(), &plain);
        plain = parts.step(plain, grads);
        model = optim.arm(RATE, model);
        let loss = S::loss::<R>(&model, Size::Small, step);
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        model = optim.step(RATE, model, grads);
        Weights::of::<R, _>(&model).assert_same(&Weights::of::<P, _>(&plain), step);
    }
}

/// A record of an optimizer with groups is Burn's: it resumes with one optimizer for each part.
#[test]
fn checkpoints_are_burns() {
    type S = Transformer;
    type Bytes = NamedMpkBytesRecorder<FullPrecisionSettings>;
    let start = Start::new::<S>(Size::Small);
    let texts: &[&str] = &["bias", "gamma", "beta"];
    let grouped = || {
        adamw::<R, <S as Scenario>::Model<R>>(0.3)
            .with_gradient_release()
            .with_group(
                ParamGroup::from_any_predicates(texts.iter().copied()),
                GroupOptions::new().with_optimizer(&adamw::<R, <S as Scenario>::Model<R>>(0.0)),
            )
    };
    let train =
        |optim: &mut ReleaseOptimizer<AdamW, _, R>, mut model, steps: std::ops::Range<u64>| {
            for step in steps {
                model = optim.arm(RATE, model);
                let loss = S::loss::<R>(&model, Size::Small, step);
                let grads = GradientsParams::from_grads(loss.backward(), &model);
                model = optim.step(RATE, model, grads);
            }
            model
        };
    let mut through = grouped();
    let whole = train(&mut through, start.model::<S, R>(), 0..STEPS);

    let mut first = grouped();
    let half = train(&mut first, start.model::<S, R>(), 0..STEPS / 2);
    let (device, recorder) = (Default::default(), Bytes::default());
    let saved = Recorder::<R>::record(&recorder, first.to_record(), ()).unwrap();
    let weights = crate::harness::weights::save::<R, _>(half);

    let mut plain = crate::harness::weights::load::<P, _>(start.model::<S, P>(), &weights, &device);
    let load = |decay| {
        let record = Recorder::<P>::load(&recorder, saved.clone(), &device).unwrap();
        adamw::<P, <S as Scenario>::Model<P>>(decay).load_record(record)
    };
    let mut parts = Parts {
        rest: (load(0.3), RATE),
        parts: vec![(texts, load(0.0), RATE)],
    };
    for step in STEPS / 2..STEPS {
        let loss = S::loss::<P>(&plain, Size::Small, step);
        let grads = GradientsParams::from_grads(loss.backward(), &plain);
        plain = parts.step(plain, grads);
    }
    Weights::of::<P, _>(&plain).assert_same(&Weights::of::<R, _>(&whole), "resumed by plain Burn");
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
            .with_group(
                ParamGroup::from_any_predicates(frozen.iter().copied()),
                GroupOptions::new().frozen(),
            );
        let before = Weights::of::<R, _>(&model);
        let count = having::<R, _>(&model, frozen).len();
        for step in 0..5 {
            let loss = S::loss::<P>(&plain, Size::Small, step);
            let mut grads = GradientsParams::from_grads(loss.backward(), &plain);
            let ids = having::<P, _>(&plain, frozen);
            drop(part(&plain, &mut grads, &ids));
            let norm = global_norm::<P, _>(&plain, &mut grads);
            plain = plain_optim.step(RATE, plain, grads);

            let forward = |model: &_| S::loss::<R>(model, Size::Small, step);
            if passes == 2 {
                (model, _) = optim.two_passes(RATE, model, forward);
            } else {
                if passes == 1 {
                    model = optim.arm(RATE, model);
                }
                let grads = GradientsParams::from_grads(forward(&model).backward(), &model);
                assert_eq!(grads.is_empty(), passes == 1);
                model = optim.step(RATE, model, grads);
            }
            let context = format!("{passes} passes, step {step}");
            Weights::of::<R, _>(&model).assert_same(&Weights::of::<P, _>(&plain), &context);
            let report = optim.last_step().unwrap();
            assert_eq!(report.count(Outcome::Frozen), count, "{context}");
            assert_eq!(report.grad_norm(), Some(norm), "{context}");
            assert!(optim.to_record().len() <= trainable::<R, _>(&model) - count);
        }
        let after = Weights::of::<R, _>(&model);
        assert_eq!(after.changed(&before), trainable::<R, _>(&model) - count);
    }
}

type Two = Either<Muon<Flex>, AdamW>;

/// Muon for matrices, AdamW for the rest: one optimizer, one record.
#[test]
fn two_kinds_of_optimizer_have_one_record() {
    type S = Mlp;
    type M = <S as Scenario>::Model<R>;
    let start = Start::new::<S>(Size::Small);
    let muon = MuonConfig::new().init::<R, M>().optim().clone();
    let optim = || -> ReleaseOptimizer<Two, M, R> {
        let rest: ReleaseOptimizer<Two, M, R> =
            Two::Right(adamw::<R, M>(0.1).optim().clone()).into();
        rest.with_group(
            ParamGroup::from_predicate("weight"),
            GroupOptions::new().with_simple_optimizer(Two::Left(muon.clone())),
        )
    };
    let mut plain = start.model::<S, P>();
    let mut plain_muon = MuonConfig::new().init::<P, <S as Scenario>::Model<P>>();
    let mut plain_adamw = adamw::<P, <S as Scenario>::Model<P>>(0.1);
    let mut model = start.model::<S, R>();
    let mut two = optim();
    for step in 0..STEPS {
        let loss = S::loss::<P>(&plain, Size::Small, step);
        let mut grads = GradientsParams::from_grads(loss.backward(), &plain);
        let ids = having::<P, _>(&plain, &["weight"]);
        let matrices = part(&plain, &mut grads, &ids);
        plain = plain_muon.step(RATE, plain, matrices);
        plain = plain_adamw.step(RATE, plain, grads);

        if step == STEPS / 2 {
            let recorder = NamedMpkBytesRecorder::<FullPrecisionSettings>::default();
            let saved = Recorder::<R>::record(&recorder, two.to_record(), ()).unwrap();
            let record = Recorder::<R>::load(&recorder, saved, &Default::default()).unwrap();
            two = optim().load_record(record);
        }
        model = two.arm(RATE, model);
        let loss = S::loss::<R>(&model, Size::Small, step);
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        model = two.step(RATE, model, grads);
        Weights::of::<R, _>(&model).assert_same(&Weights::of::<P, _>(&plain), step);
    }
}

/// A rule that looks at each gradient alone leaves out a group that is not clipped.
#[test]
fn a_group_can_be_left_out_of_clipping() {
    type S = Mlp;
    let start = Start::new::<S>(Size::Small);
    let rule = AdaptiveClippingConfig::new().with_clip_factor(1e-4);
    let own = GradientClippingConfig::Value(1e-5);
    let last: &[&str] = &["layers.2."];
    let mut plain = start.model::<S, P>();
    let mut plain_optim = SgdConfig::new().init();
    let mut model = start.model::<S, R>();
    let mut optim = SgdConfig::new()
        .with_gradient_clipping(Some(own))
        .init()
        .with_gradient_release()
        .with_norm_clipping(NormClipping::Adaptive(rule))
        .with_group(
            ParamGroup::from_any_predicates(last.iter().copied()),
            GroupOptions::new().without_grad_clipping(),
        );
    let ids = having::<P, _>(&plain, last);
    for step in 0..3 {
        let loss = S::loss::<P>(&plain, Size::Small, step);
        let mut grads = GradientsParams::from_grads(loss.backward(), &plain);
        each::<P, _>(&plain, &mut grads, |gradient| {
            if !ids.contains(&gradient.id) {
                *gradient.grad = gradient.grad.clone() * 0.0;
            }
        });
        plain = plain_optim.step(RATE, plain, grads);
        model = optim.arm(RATE, model);
        let loss = S::loss::<R>(&model, Size::Small, step);
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        model = optim.step(RATE, model, grads);
    }
    // The others moved by three steps of at most 1e-5 at this rate, which the last layer hardly
    // feels.
    Weights::of::<R, _>(&model).assert_near(&Weights::of::<P, _>(&plain), 1e-6, "left out");
    let start = Weights::of::<P, _>(&start.model::<S, P>());
    assert!(
        Weights::of::<P, _>(&plain).distance(&start) > 1e-5,
        "the last layer is trained"
    );
}

//! Groups that are not those of the model, and rates that are not those of the step.

use burn::lr_scheduler::LrScheduler;
use burn_gradient_release::{LossScalerConfig, ModuleLrScheduler};

use super::parts::{adamw, having};
use crate::harness::prelude::*;

/// At whichever call comes first, with the paths that were meant, and nothing has changed.
#[test]
fn a_group_without_parameters_is_refused() {
    type S = Transformer;
    let start = Start::new::<S>(Size::Small);
    let misspelt = [
        ParamGroup::from_predicate("layer_norm"),
        ParamGroup::from_path("blocks.0.inner_norm.gama"),
        ParamGroup::from_regex(r"^block\.\d+\.up").unwrap(),
        ParamGroup::from_ids([ParamId::new()]),
    ];
    for group in misspelt {
        let mut optim = adamw(0.1)
            .with_gradient_release()
            .with_group(group.clone(), GroupOptions::new().with_lr_factor(0.0));
        let model = start.model::<S, R>();
        let before = Weights::of(&model);

        let is_meant = |near: &[String]| {
            let meant = "blocks.0.inner_norm.gamma".to_string();
            near.len() == 3 && (!group.to_string().contains("gama") || near.contains(&meant))
        };
        let armed = optim.try_arm(RATE, model);
        let (model, ()) = refused!(armed, ReleaseError::EmptyGroup { group: named, near }
            if *named == group.to_string() && is_meant(near));
        let armed = optim.try_arm_to_measure(model, GradientsParams::new());
        let (model, _) = refused!(armed, ReleaseError::EmptyGroup { .. });
        let grads = gradients(&model, S::loss::<R>(&model, Size::Small, 0));
        let stepped = optim.try_step(RATE, model, grads);
        let (model, grads) = refused!(stepped, ReleaseError::EmptyGroup { .. });
        assert_eq!(grads.len(), trainable::<R, _>(&model));
        Weights::of(&model).assert_same(&before, "refused");
    }
}

/// The rate that is given is the scheduler's, and the one that it has just returned.
#[test]
fn rates_of_groups_are_those_of_the_step() {
    type S = Mlp;
    let start = Start::new::<S>(Size::Small);
    let head = || ParamGroup::from_predicate("layers.2.");
    let mut scheduler = ModuleLrScheduler::new(0.01).with_group(head(), 0.02);
    let mut optim = SgdConfig::new()
        .init()
        .with_gradient_release()
        .with_learning_rates(scheduler.rates());
    let model = start.model::<S, R>();
    let armed = optim.try_arm(0.01, model);
    let (model, ()) = refused!(
        armed,
        ReleaseError::GroupRates {
            published: None,
            given: 0.01
        }
    );
    let rate = scheduler.step();
    let armed = optim.try_arm(0.5, model);
    let (model, ()) = refused!(
        armed,
        ReleaseError::GroupRates {
            published: Some(0.01),
            given: 0.5
        }
    );

    // Stepping the scheduler after arming does not change what the model is armed with.
    let mut ahead = scheduler.clone();
    let model = armed_step(rate, model, &mut optim, |model| {
        ahead.step();
        S::loss::<R>(model, Size::Small, 0)
    });
    let report = optim.last_step().unwrap();
    for (layer, expected) in [
        ("layers.0.", 0.01),
        ("layers.1.", 0.01),
        ("layers.2.", 0.02),
    ] {
        for id in having::<R, _>(&model, &[layer]) {
            assert_eq!(report.learning_rate_of(id), expected);
        }
    }

    // A scheduler that is gone steps nobody.
    drop((scheduler, ahead));
    let armed = optim.try_arm(rate, model);
    let (model, ()) = refused!(
        armed,
        ReleaseError::GroupRates {
            published: None,
            ..
        }
    );

    // A group of the scheduler that no parameter is in.
    let nobody = ParamGroup::from_path("layers.9.weight");
    let mut scheduler = ModuleLrScheduler::new(0.01).with_group(nobody, 0.02);
    let mut optim = optim.with_learning_rates(scheduler.rates());
    let rate = scheduler.step();
    refused!(optim.try_arm(rate, model), ReleaseError::EmptyGroup { .. });
}

/// The optimizer would look ahead with a copy of its own scheduler, and find rates of another step.
#[test]
fn an_owned_rate_beside_rates_of_groups_is_refused() {
    type S = Mlp;
    let start = Start::new::<S>(Size::Small);
    let mut scheduler = ModuleLrScheduler::new(RATE).with_group(ParamGroup::all(), 0.02);
    let sgd = || SgdConfig::new().init().with_gradient_release();
    let both = sgd().with_learning_rate(RATE);
    let both = both.with_learning_rates(scheduler.rates());
    scheduler.step();
    // It would use the rate of the base alone.
    for mut optim in [both, sgd().with_lr_scheduler(scheduler)] {
        let armed = optim.try_arm(RATE, start.model::<S, R>());
        let (model, ()) = refused!(armed, ReleaseError::OwnedGroupRates);
        let grads = gradients(&model, S::loss::<R>(&model, Size::Small, 0));
        let stepped = optim.try_step(RATE, model, grads);
        refused!(stepped, ReleaseError::OwnedGroupRates);
    }
}

/// Burn's own optimizer would step without them.
#[test]
fn what_burn_does_not_have_is_not_removed_without_a_word() {
    type M = <Mlp as Scenario>::Model<R>;
    let momentum = SgdConfig::new().with_momentum(Some(MomentumConfig::new()));
    let new = || momentum.init::<R, M>().with_gradient_release();
    let mut trained = new();
    let model = Start::new::<Mlp>(Size::Small).model::<Mlp, R>();
    let loss = |model: &_| Mlp::loss::<R>(model, Size::Small, 0);
    armed_step(RATE, model, &mut trained, loss);
    let record = trained.to_record();
    assert!(!record.is_empty());
    let optim = || new().load_record(record.clone());
    assert!(optim().with_grad_norm().try_into_adaptor().is_ok());
    let scheduler = ModuleLrScheduler::new(RATE);
    let max_norm = 1.0;
    let others = [
        optim().with_group(ParamGroup::all(), GroupOptions::new()),
        optim().with_learning_rates(scheduler.rates()),
        optim().with_norm_clipping(NormClipping::GlobalNorm { max_norm }),
        optim().with_loss_scaler(LossScalerConfig::new().init()),
        optim().with_non_finite_stop(),
    ];
    for optim in others {
        let (optim, ()) = refused!(optim.try_into_adaptor(), ReleaseError::NotBurns { .. });
        // The way out: build it anew, and load these.
        assert_eq!(optim.to_record().len(), record.len());
    }
}

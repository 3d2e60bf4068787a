//! Every optimizer of Burn, with its groups, rates, clipping and records.

use burn::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
use burn::lr_scheduler::exponential::ExponentialLrSchedulerConfig;
use burn::lr_scheduler::linear::LinearLrSchedulerConfig;
use burn::lr_scheduler::module_lr_scheduler::{
    ModuleLearningRate, ModuleLrScheduler, ModuleLrSchedulerConfig,
};
use burn::optim::decay::WeightDecayConfig;
use burn::optim::{
    AdaGradConfig, AdafactorConfig, AdanConfig, AdjustLrFn, LambConfig, LionConfig, MuonConfig,
    RmsPropConfig,
};

use crate::harness::Named;
use crate::harness::prelude::*;
use crate::net::Net;

const STEPS: usize = 8;

fn decay() -> Option<WeightDecayConfig> {
    Some(WeightDecayConfig::new(0.05))
}

fn by_norm(norm: f32) -> Option<GradientClippingConfig> {
    Some(GradientClippingConfig::Norm(norm))
}

fn by_value(value: f32) -> Option<GradientClippingConfig> {
    Some(GradientClippingConfig::Value(value))
}

fn heavy_ball(nesterov: bool) -> Option<MomentumConfig> {
    Some(MomentumConfig::new().with_nesterov(nesterov))
}

/// Muon, which takes matrices only, on weights of the body; AdamW for the rest.
fn muon(config: MuonConfig) -> ModuleOptimizer {
    let matrices = ParamGroup::from_predicates(vec!["body", "weight"]);
    adamw().with_group(matrices, config.build(), None)
}

/// With states of every kind.
const OPTIMIZERS: &[Named] = &[
    ("Adafactor", || AdafactorConfig::new().init()),
    ("Adafactor with a given rate", || {
        let config = AdafactorConfig::new().with_relative_step(false);
        config
            .with_scale_parameter(false)
            .with_weight_decay(0.01)
            .init()
    }),
    ("AdaGrad", || AdaGradConfig::new().init()),
    ("AdaGrad with decay", || {
        let config = AdaGradConfig::new().with_lr_decay(0.1);
        config.with_weight_decay(decay()).init()
    }),
    ("Adam", || AdamConfig::new().init()),
    ("AMSGrad", || {
        let config = AdamConfig::new().with_amsgrad(true);
        config.with_weight_decay(decay()).init()
    }),
    ("AdamW", || AdamWConfig::new().init()),
    ("AMSGrad of AdamW", || {
        AdamWConfig::new().with_amsgrad(true).init()
    }),
    ("cautious AdamW", || {
        let config = AdamWConfig::new().with_weight_decay(0.1);
        config.with_cautious_weight_decay(true).init()
    }),
    ("Adan", || AdanConfig::new().init()),
    ("Adan without prox", || {
        let config = AdanConfig::new().with_no_prox(true);
        config.with_weight_decay(0.1).init()
    }),
    ("LAMB", || LambConfig::new().init()),
    ("LAMB with decay", || {
        LambConfig::new().with_weight_decay(0.1).init()
    }),
    ("LAMB without trust ratio", || {
        LambConfig::new().with_use_trust_ratio(false).init()
    }),
    ("Lion", || LionConfig::new().init()),
    ("Lion with decay", || {
        LionConfig::new().with_weight_decay(0.1).init()
    }),
    ("Muon and AdamW", || muon(MuonConfig::new())),
    ("Muon with decay", || {
        let config = MuonConfig::new().with_weight_decay(decay());
        muon(config.with_adjust_lr_fn(AdjustLrFn::MatchRmsAdamW))
    }),
    ("RMSProp", || RmsPropConfig::new().init()),
    ("centered RMSProp", || {
        let config = RmsPropConfig::new().with_centered(true);
        config.with_weight_decay(decay()).init()
    }),
    ("SGD", || SgdConfig::new().init()),
    ("momentum", momentum),
    ("Nesterov", || {
        SgdConfig::new().with_momentum(heavy_ball(true)).init()
    }),
    ("momentum with decay", || {
        let config = SgdConfig::new().with_momentum(heavy_ball(false));
        config.with_weight_decay(decay()).init()
    }),
    ("clipped by norm", || {
        AdamWConfig::new().with_grad_clipping(by_norm(0.01)).init()
    }),
    ("clipped by value", || {
        let config = SgdConfig::new();
        config.with_gradient_clipping(by_value(0.001)).init()
    }),
    ("a group for each kind", || {
        let nesterov = SgdConfig::new().with_momentum(heavy_ball(true)).build();
        let clipping = by_norm(0.02).map(|clipping| clipping.init());
        let group = ParamGroup::from_predicate;
        let clipped = AdamWConfig::new().with_grad_clipping(by_value(0.02));
        clipped
            .init()
            .with_group(group("norm"), LionConfig::new().build(), None)
            .with_group(
                ParamGroup::from_path("head.weight"),
                AdamConfig::new().build(),
                None,
            )
            .with_group(group("body.1"), nesterov, clipping)
            .with_group(group("embedding"), AdaGradConfig::new().build(), None)
    }),
];

#[test]
fn every_optimizer_trains_as_in_plain_burn() {
    both_ways(OPTIMIZERS, STEPS, Net::new, Net::loss);
}

/// That clipping, groups and rates matter in these tests: otherwise they would pass without them.
#[test]
fn what_is_configured_shows_in_the_weights() {
    let run = |name: &str| {
        let (_, optim) = OPTIMIZERS.iter().find(|(is, _)| *is == name).unwrap();
        let run = plain_run(Net::new(), &mut optim(), 0..3, Net::loss).1;
        run.into_iter().next_back()
    };
    assert_ne!(run("clipped by norm"), run("AdamW"));
    assert_ne!(run("clipped by value"), run("SGD"));
    assert_ne!(run("Muon and AdamW"), run("AdamW"));
}

/// Steps with the rates of a scheduler, which is asked once a step.
fn assert_equal_with_rates(schedule: impl Fn() -> Box<dyn FnMut() -> ModuleLearningRate>) {
    let mut next = schedule();
    let (mut model, mut optim) = (Net::new(), adamw());
    let mut expected = Vec::new();
    for step in 0..STEPS {
        let grads = GradientsParams::from_grads(model.loss(step).backward(), &model);
        model = optim.step(next(), model, grads);
        expected.push(bits(&model));
    }

    let constant = plain_run(Net::new(), &mut adamw(), 0..STEPS, Net::loss).1;
    assert_ne!(expected, constant, "the rates are those of a constant one");

    let mut next = schedule();
    let (mut model, mut optim) = (Net::new(), adamw().with_gradient_release());
    for (step, expected) in expected.iter().enumerate() {
        model = optim.backward(next(), model.loss(step), model);
        assert_bits(&bits(&model), expected, &format!("after step {step}"));
        let report = optim.last_step().unwrap().clone();
        assert_released(&[report], "rates");
    }
}

fn scheduler() -> ModuleLrScheduler {
    ModuleLrSchedulerConfig::new(ExponentialLrSchedulerConfig::new(LR, 0.9).into())
        .with_group(
            ParamGroup::from_predicate("norm"),
            LinearLrSchedulerConfig::new(LR, LR / 10.0, STEPS),
        )
        .with_group(
            ParamGroup::from_path("head.bias"),
            CosineAnnealingLrSchedulerConfig::new(LR, 7),
        )
        .init()
        .unwrap()
}

#[test]
fn rates_of_schedulers() {
    // One for all.
    assert_equal_with_rates(|| {
        let mut scheduler = ExponentialLrSchedulerConfig::new(LR, 0.9).init().unwrap();
        Box::new(move || scheduler.step())
    });
    // One for each group.
    assert_equal_with_rates(|| {
        let mut scheduler = scheduler();
        Box::new(move || scheduler.step())
    });
    // A group that stands still.
    assert_equal_with_rates(|| {
        let constant = ExponentialLrSchedulerConfig::new(LR, 1.0);
        let none = ExponentialLrSchedulerConfig::new(1e-30, 1.0);
        let scheduler = ModuleLrSchedulerConfig::new(constant.into());
        let body = ParamGroup::from_predicate("body");
        let mut scheduler = scheduler.with_group(body, none).init().unwrap();
        Box::new(move || scheduler.step())
    });
}

fn through_bytes(record: OptimizerRecord) -> OptimizerRecord {
    OptimizerRecord::from_bytes(record.into_bytes().unwrap()).unwrap()
}

/// The model of a new process: a record of the old one, loaded.
fn model_through_bytes(model: Net) -> Net {
    let bytes = model.into_record().into_bytes().unwrap();
    Net::new().load_record(ModuleRecord::from_bytes(bytes).unwrap())
}

/// Records go from plain Burn to gradient release, back, and from release to release: all optimizers
/// train on as if nothing had happened.
#[test]
fn records_are_those_of_plain_burn() {
    const HALF: usize = STEPS / 2;
    for (name, optim) in OPTIMIZERS {
        let all = plain_run(Net::new(), &mut optim(), 0..STEPS, Net::loss).1;
        let (begun, expected) = all.split_at(HALF);
        let mut plain = optim();
        let (of_plain, _) = plain_run(Net::new(), &mut plain, 0..HALF, Net::loss);
        let mut release = optim().with_gradient_release();
        let steps = 0..HALF;
        let (of_release, _) = release_run(Net::new(), &mut release, steps, Net::loss, begun, name);
        // The states are compared by training on: their order is that of a hash map.
        let [one, other] = [plain.to_record(), release.to_record()];
        assert_eq!(format!("{one:?}"), format!("{other:?}"), "{name}");
        // Plain SGD alone has none.
        let has_none = matches!(*name, "SGD" | "clipped by value");
        assert_eq!(one.is_empty(), has_none, "{name}");

        let resumed = |model, record| {
            let model = model_through_bytes(model);
            assert_bits(&bits(&model), &all[HALF - 1], name);
            (model, optim().load_record(through_bytes(record)))
        };
        let (model, mut after) = resumed(of_release.clone(), release.to_record());
        let (_, found) = plain_run(model, &mut after, HALF..STEPS, Net::loss);
        for (found, expected) in found.iter().zip(expected) {
            assert_bits(found, expected, name);
        }
        for (model, record) in [(of_plain, one), (of_release, other)] {
            let (model, after) = resumed(model, record);
            let mut after = after.with_gradient_release();
            let what = format!("{name}, resumed with release");
            release_run(model, &mut after, HALF..STEPS, Net::loss, expected, &what);
        }
    }
}

//! Weights and losses are those of Burn's own strategy, bit for bit.

use std::cell::RefCell;

use burn::grad_clipping::GradientClipping;
use burn::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
use burn::lr_scheduler::linear::LinearLrSchedulerConfig;
use burn::lr_scheduler::module_lr_scheduler::{ModuleLrScheduler, ModuleLrSchedulerConfig};
use burn::lr_scheduler::{LrScheduler, LrSchedulerRecord};
use burn::module::Lora;
use burn::optim::LearningRate;
use burn::train::Learner;
use burn_lean::train::release_learner;

use super::harness::{BATCHES, Mode, Net, Training, rates};
use crate::harness::prelude::*;

fn plain_sgd() -> ModuleOptimizer {
    SgdConfig::new().init()
}

/// Other optimizers and clipping for parts of the model.
fn grouped() -> ModuleOptimizer {
    let clipping = GradientClipping::Norm(0.01);
    let sgd = SgdConfig::new().with_momentum(Some(MomentumConfig::new()));
    AdamWConfig::new()
        .init()
        .with_grad_clipping(GradientClipping::Value(0.02))
        .with_group(ParamGroup::from_predicate("query"), sgd.build(), None)
        .with_group(
            ParamGroup::from_predicate("head"),
            AdamWConfig::new().build(),
            Some(clipping),
        )
}

/// Rates of their own for parts of the model.
pub(super) fn grouped_rates() -> ModuleLrScheduler {
    let linear = LinearLrSchedulerConfig::new(0.1, 0.001, 15);
    let cosine = CosineAnnealingLrSchedulerConfig::new(0.05, 5);
    ModuleLrSchedulerConfig::new(cosine.into())
        .with_group(ParamGroup::from_predicate("query"), linear)
        .with_group(ParamGroup::from_predicate("bias"), 0.003)
        .init()
        .unwrap()
}

#[test]
fn optimizers_and_devices() {
    for (what, optim) in [
        ("AdamW", adamw as fn() -> ModuleOptimizer),
        ("momentum", momentum),
        ("SGD", plain_sgd),
        ("groups", grouped),
    ] {
        Training::new(optim).assert_same(what);
    }
    for device in devices().into_iter().skip(1) {
        Training::on(&device, adamw).assert_same("another device");
    }
    // Burn's own gradient checkpointing, asked of the device.
    let device = flex().gradient_checkpointing();
    Training::on(&device, adamw).assert_same("gradient checkpointing");
    // What a device without autodiff means in Burn.
    let training = Training {
        device: flex().inner(),
        ..Training::new(adamw)
    };
    training.assert_same("without autodiff");
    let mut training = Training::new(adamw);
    training.model.unused = Param::from_tensor(Tensor::zeros([0], &flex()));
    training.assert_same("a parameter without elements");
}

/// Windows that fill the epoch, that leave a rest, and that are longer than it.
#[test]
fn rates_of_groups_and_accumulation() {
    let with_one_rate = Training::new(grouped).run(Mode::Stock);
    for window in [1, 2, 3, BATCHES, 2 * BATCHES] {
        let training = Training {
            accumulation: Some(window),
            scheduler: grouped_rates,
            ..Training::new(grouped)
        };
        let run = training.assert_same(&format!("windows of {window}"));
        assert_ne!(run.last, with_one_rate.last, "the rates matter");
    }
}

/// As the learner of `Learner::new` has states and a scheduler that stands somewhere, so has ours.
#[test]
fn a_learner_that_was_used_before() {
    fn step(learner: &mut Learner<Net>) {
        let grads = learner.model().gradients();
        learner.optimizer_step(grads);
    }
    fn new(_: &Net) -> ModuleOptimizer {
        adamw()
    }
    fn used(model: &Net) -> ModuleOptimizer {
        let mut optim = adamw();
        let _ = optim.step(0.01, model.clone(), model.gradients());
        optim
    }
    /// States of two steps.
    fn load(learner: &mut Learner<Net>) {
        let (model, mut optim) = (learner.model(), used(&learner.model()));
        let _ = optim.step(0.01, model.clone(), model.gradients());
        learner.load_optim(optim.to_record());
    }
    thread_local! {
        static CLONE: RefCell<Option<Learner<Net>>> = const { RefCell::new(None) };
    }
    type Use = fn(&mut Learner<Net>);
    let uses: [(&str, Use); 6] = [
        ("steps", |learner| {
            for _ in 0..3 {
                learner.lr_step();
                step(learner);
            }
        }),
        ("a step with a rate of zero", step),
        ("a rate", |learner| learner.lr_step()),
        ("states", load),
        ("states, beside a clone", |learner| {
            CLONE.set(Some(learner.clone()));
            load(learner);
        }),
        ("a rate that was loaded", |learner| {
            let mut scheduler = rates();
            scheduler.step();
            learner.load_scheduler(scheduler.to_record());
        }),
    ];
    for optim in [new, used] {
        let run = |mode, use_it: Use| {
            let training = Training::new(adamw);
            let optim = optim(&training.model);
            let mut learner = release_learner(training.model.clone(), optim, rates());
            use_it(&mut learner);
            bits(&training.supervised(mode).launch(learner).model)
        };
        let new = run(Mode::Stock, |_| ());
        for (what, use_it) in uses {
            let [stock, released] = [Mode::Stock, Mode::Released].map(|mode| run(mode, use_it));
            assert_bits(&released, &stock, what);
            assert!(stock != new, "{what}: as a new learner");
        }
    }
}

/// Plain Burn asks a scheduler for a record when a checkpoint is saved.
#[test]
fn a_scheduler_without_records() {
    #[derive(Clone)]
    struct Halved(f64);
    impl LrScheduler for Halved {
        fn step(&mut self) -> LearningRate {
            self.0 /= 2.0;
            self.0
        }
        fn to_record(&self) -> LrSchedulerRecord {
            panic!("it has no records")
        }
        fn load_record(&mut self, _: LrSchedulerRecord) {
            panic!("it has no records")
        }
    }
    let training = Training {
        scheduler: || Halved(0.1).into(),
        ..Training::new(adamw)
    };
    training.assert_same("without records");
}

/// LoRA, with the adapted weight frozen, as Burn leaves it, and with one that is trained, too.
#[test]
fn adapters() {
    for (is_frozen, accumulation) in [(true, None), (false, None), (false, Some(2))] {
        let mut training = Training::new(grouped);
        training.accumulation = accumulation;
        let query = training.model.query.apply_lora(Lora::new(2, 4.0));
        training.model.query = match is_frozen {
            true => query,
            false => query.unfreeze(),
        };
        training.assert_same(&format!("adapters, frozen: {is_frozen}, {accumulation:?}"));
    }
}

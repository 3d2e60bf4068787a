//! Weights and losses are those of Burn's own strategy, bit for bit.

use burn::Tensor;
use burn::grad_clipping::GradientClipping;
use burn::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
use burn::lr_scheduler::linear::LinearLrSchedulerConfig;
use burn::lr_scheduler::module_lr_scheduler::{ModuleLrScheduler, ModuleLrSchedulerConfig};
use burn::module::{Lora, Module, ModuleMapper, Param, ParamGroup};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamWConfig, ModuleOptimizer, SgdConfig};

use super::harness::{BATCHES, Mode, Net, Optimize, Step, Training, User, rates};
use crate::harness::{adamw, bits, devices, flex, momentum};

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
fn grouped_rates() -> ModuleLrScheduler {
    let linear = LinearLrSchedulerConfig::new(0.1, 0.001, 15);
    let cosine = CosineAnnealingLrSchedulerConfig::new(0.05, 5);
    ModuleLrSchedulerConfig::new(cosine.into())
        .with_group(ParamGroup::from_predicate("query"), linear)
        .with_group(ParamGroup::from_predicate("bias"), 0.003)
        .init()
        .unwrap()
}

#[test]
fn optimizers() {
    for optim in [adamw, momentum, plain_sgd, grouped] {
        Training::new(optim).assert_same();
    }
}

#[test]
fn backends() {
    for device in devices() {
        Training::on(&device, adamw).assert_same();
    }
}

#[test]
fn rates_of_groups() {
    for optim in [adamw, grouped] {
        let training = Training {
            scheduler: grouped_rates,
            ..Training::new(optim)
        };
        let run = training.assert_same();
        let other = Training::new(optim).run(Mode::Stock);
        assert_ne!(run.last, other.last, "the rates matter");
    }
}

/// Windows that fill the epoch, that leave a rest, and that are longer than it.
#[test]
fn accumulation() {
    for window in [1, 2, 3, BATCHES, 2 * BATCHES] {
        let training = Training {
            accumulation: Some(window),
            scheduler: grouped_rates,
            ..Training::new(grouped)
        };
        let run = training.assert_same();
        let steps = 3 * BATCHES.div_ceil(window);
        assert_eq!(run.seen.len(), steps, "`optimize` runs once per step");
    }
}

#[test]
fn frozen_parts() {
    let net = Net::new(&flex());
    let head = bits(&net.head);
    let training = Training {
        model: Net {
            head: net.head.no_grad(),
            ..net
        },
        ..Training::new(adamw)
    };
    let run = training.assert_same();
    let found = run.last.iter().filter(|(path, _)| path.starts_with("head"));
    let found: Vec<_> = found.map(|(_, bits)| bits.clone()).collect();
    assert_eq!(
        found,
        head.into_iter().map(|(_, bits)| bits).collect::<Vec<_>>()
    );
}

/// Burn's own gradient checkpointing, asked of the device.
#[test]
fn gradient_checkpointing() {
    let device = flex().gradient_checkpointing();
    Training::on(&device, adamw).assert_same();
}

/// What a device without autodiff means in Burn.
#[test]
fn a_device_without_autodiff() {
    let training = Training {
        device: flex().inner(),
        ..Training::new(adamw)
    };
    training.run(Mode::Stock);
    training.assert_same();
}

/// Whoever trains a learner of ours otherwise trains with plain Burn.
#[test]
fn the_stock_strategy_with_our_learner() {
    let training = Training {
        scheduler: grouped_rates,
        ..Training::new(grouped)
    };
    let expected = training.run(Mode::Stock);
    training.run(Mode::StockWithOurs).assert_same(&expected);
}

#[test]
fn iterations_without_gradients() {
    for step in [Step::Skip, Step::SkipForward] {
        for accumulation in [None, Some(2)] {
            let user = User {
                step,
                ..User::default()
            };
            let training = Training {
                accumulation,
                model: Net {
                    user,
                    ..Net::without_third_use(&flex())
                },
                ..Training::new(adamw)
            };
            training.assert_same();
        }
    }
}

/// As the learner of `Learner::new` has states and a scheduler that stands somewhere, so has ours.
#[test]
fn a_learner_that_was_used_before() {
    let mut lasts = Vec::new();
    for mode in [Mode::Stock, Mode::Released] {
        let training = Training::new(adamw);
        let model = training.model.clone();
        let mut learner = burn_lean::train::release_learner(model, adamw(), rates());
        let mut other = training.clone();
        other.model.user.optimize = Optimize::Default;
        for _ in 0..3 {
            learner.lr_step();
            learner.optimizer_step(other.model.gradients());
        }
        lasts.push(bits(&training.supervised(mode).launch(learner).model));
    }
    assert_eq!(lasts[0], lasts[1]);
    let fresh = Training::new(adamw).run(Mode::Stock).last;
    assert_ne!(lasts[0], fresh);
}

/// LoRA, with the adapted weight frozen, as Burn leaves it, and with one that is trained, too: of
/// that the gradient is an ordinary one.
#[test]
fn adapters() {
    struct Unfreeze;
    impl ModuleMapper for Unfreeze {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            param.set_require_grad(true)
        }
    }
    for is_frozen in [true, false] {
        for accumulation in [None, Some(2)] {
            let net = Net::without_third_use(&flex());
            let query = net.query.apply_lora(Lora::new(2, 4.0));
            let query = match is_frozen {
                true => query,
                false => query.map(&mut Unfreeze),
            };
            let training = Training {
                model: Net { query, ..net },
                accumulation,
                ..Training::new(grouped)
            };
            training.assert_same();
        }
    }
}

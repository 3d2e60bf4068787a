//! The norm as a metric, groups, an optimizer that was used before, and what is refused.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::harness::watched_adamw;

fn clipping() -> Training {
    Training {
        settings: Arc::new(|optim| optim.with_norm_clipping(global_norm_clipping())),
        has_two_passes: true,
        ..Training::new(adamw)
    }
}

/// The first number that a metric has logged.
fn first_logged(training: &Training, metric: &str) -> f64 {
    let lines = training.directory.logged(1, metric);
    lines[0].split(',').next().unwrap().parse().unwrap()
}

#[test]
fn the_norm_and_the_peak_are_metrics() {
    // The first two items make the first batch.
    let model = Training::new(adamw).model;
    let norm = global_norm(&model, &model.gradients());
    let measured = Training {
        settings: Arc::new(ReleaseOptimizer::with_grad_norm),
        ..Training::new(adamw)
    };
    for training in [clipping(), measured] {
        training.run(Mode::Released);
        assert_eq!(first_logged(&training, "Gradient Norm"), norm);
        let peaks = training.directory.logged(2, "Peak Memory");
        let peaks = peaks.iter().filter(|line| !line.ends_with("final"));
        let peaks = peaks.map(|line| line.split(',').next().unwrap().parse::<f64>().unwrap());
        // The peak is reset before each iteration.
        let expected = (BATCHES + 1..=2 * BATCHES).map(|reset| reset as f64);
        assert!(peaks.eq(expected));
    }
}

#[test]
fn the_peak_is_read_after_the_step() {
    /// Notes how many parameters were stepped when the peak was read.
    struct Read(Arc<AtomicUsize>, Arc<Mutex<Vec<usize>>>);
    impl PeakMemory for Read {
        fn reset_peak(&self) {}

        fn peak_bytes(&self) -> u64 {
            self.1.lock().unwrap().push(self.0.load(Ordering::Relaxed));
            0
        }
    }
    let training = Training {
        epochs: 1,
        ..Training::new(adamw)
    };
    let (stepped, read) = (Arc::new(AtomicUsize::new(0)), Arc::default());
    let memory = Read(stepped.clone(), Arc::clone(&read));
    let optim = watched_adamw(move || {
        stepped.fetch_add(1, Ordering::Relaxed);
    });
    let monitor = StepMonitor::new().with_memory(memory);
    let strategy = GradientReleaseStrategy::new(training.device.clone()).with_monitor(monitor);
    let supervised = training.supervised(Mode::Released);
    let supervised = supervised.with_training_strategy(strategy.into());
    supervised.launch(release_learner(training.model.clone(), optim, rates()));
    let read = read.lock().unwrap();
    // All but the one that is not used.
    let expected = (1..=BATCHES).map(|steps| steps * 14);
    assert!(read.iter().copied().eq(expected), "{read:?}");
}

/// A power of two changes no bit. What is skipped in one pass is compared in `clipping`.
#[test]
fn a_loss_that_is_scaled_in_one_pass() {
    let expected = Training::new(adamw).run(Mode::Stock);
    let scaler = LossScalerConfig::new().with_init_scale(1024.0).init();
    let mut training = Training::new(adamw);
    training.model.user.scaler = Some(scaler.clone());
    training.settings = Arc::new(move |optim| optim.with_loss_scaler(scaler.clone()));
    let found = training.run(Mode::Released);
    found.assert_same(&expected, "scaled");
}

/// No parameter after the gradient that is not finite has changed, and the path is named.
#[test]
fn a_gradient_that_is_not_finite_stops_the_training() {
    let mut training = Training {
        settings: Arc::new(ReleaseOptimizer::with_non_finite_stop),
        ..Training::new(adamw)
    };
    training.run(Mode::Released);
    let head = training.model.head.weight;
    training.model.head.weight = head.map(|weight| (weight * f32::NAN).detach().require_grad());
    let text = panic_of(|| training.run(Mode::Released))
        .map(drop)
        .unwrap_err();
    assert!(text.contains("is not finite"), "{text}");
}

/// Groups of the optimizer with release are those of the training, and one without a parameter is
/// refused.
#[test]
fn groups_of_the_optimizer() {
    let sgd = || SgdConfig::new().build();
    let grouped = |group: &'static str| Training {
        settings: Arc::new(move |optim: ReleaseOptimizer| {
            optim.with_group(ParamGroup::from_predicate(group), sgd(), None)
        }),
        ..Training::new(adamw)
    };
    let expected = Training::new(|| {
        let query = ParamGroup::from_predicate("query");
        adamw().with_group(query, SgdConfig::new().build(), None)
    });
    let found = grouped("query").run(Mode::Released);
    found.assert_same(&expected.run(Mode::Stock), "groups");
    let text = panic_of(|| grouped("nothing").run(Mode::Released)).map(drop);
    let text = text.unwrap_err();
    assert!(text.contains("nothing"), "{text}");
}

/// An optimizer that was trained with before goes on, with its states and averages.
#[test]
fn an_optimizer_that_was_used_before() {
    let [expected, found] = [Mode::Stock, Mode::Released].map(|mode| {
        let mut training = Training::new(adamw);
        let optim = adamw().with_gradient_release();
        let mut optim = optim.with_norm_clipping(auto_clip());
        let mut model = training.model.clone();
        for _ in 0..5 {
            let grads = model.gradients();
            model = optim.step(0.01, model, grads);
        }
        let learner = match mode {
            Mode::Stock => {
                training.model.user.stepper = Some(Arc::new(Mutex::new(optim)));
                Learner::new(training.model.clone(), adamw(), rates())
            }
            _ => release_learner(training.model.clone(), optim, rates()),
        };
        bits(&training.supervised(mode).launch(learner).model)
    });
    assert_bits(&found, &expected, "used before");
}

/// States keep their type, which a record of Burn's would turn into that of the device.
#[test]
fn an_optimizer_with_states_in_half_precision() {
    let [expected, found] = [Mode::Stock, Mode::Released].map(|mode| {
        let mut training = Training::new(adamw);
        let head = training.model.head;
        training.model.head = MixedPrecision::bf16().cast(head).unwrap();
        training.model.user.half = Some(DType::BF16);
        let (mut optim, mut model) = (adamw(), training.model.clone());
        for _ in 0..3 {
            let grads = model.gradients();
            model = optim.step(0.01, model, grads);
        }
        let learner = match mode {
            Mode::Stock => Learner::new(model, optim, rates()),
            _ => release_learner(model, optim, rates()),
        };
        bits(&training.supervised(mode).launch(learner).model)
    });
    assert_bits(&found, &expected, "in bf16");
}

#[test]
fn settings_that_a_strategy_does_not_have_are_refused() {
    let refused = |training: Training, mode| {
        let refused = panic_of(|| training.run(mode)).map(drop);
        refused.unwrap_err()
    };
    let text = refused(clipping(), Mode::StockWithOurs);
    for said in ["clipping by norms", "GradientReleaseStrategy"] {
        assert!(text.contains(said), "{text}");
    }
    let in_one_pass = Training {
        has_two_passes: false,
        ..clipping()
    };
    let text = refused(in_one_pass, Mode::Released);
    assert!(text.contains("with_two_passes"), "{text}");

    let unscaled = Training {
        settings: Arc::new(|optim| optim.with_loss_scaler(scaler())),
        ..Training::new(adamw)
    };
    let text = refused(unscaled, Mode::Released);
    assert!(text.contains("scale"), "{text}");

    let replicas = Replicas::new(|| Ok(Alone)).unwrap();
    let reduction = Arc::new(DataParallel::new(replicas));
    let replicated = Training {
        settings: Arc::new(move |optim| optim.with_reduction(reduction.clone())),
        ..Training::new(adamw)
    };
    let text = refused(replicated, Mode::Released);
    assert!(text.contains("with_replicas"), "{text}");
}

//! The peak of a whole training run: nothing in the `Learner` or the strategy holds on to weights.

use burn::module::AutodiffModule;
use burn::optim::{AdamConfig, GradientsParams, Optimizer};
use burn::tensor::backend::AutodiffBackend;
use burn::train::Learner;
use burn::train::checkpoint::KeepLastNCheckpoints;
use burn_gradient_release::WithGradientRelease;
use burn_gradient_release_train::BlockingCheckpointingStrategy;

use super::full_name;
use crate::ALLOCATIONS;
use crate::harness::learner::{Bin, Mode, ModelOf, Released, Stock, Training, WeightLog, launch};
use crate::harness::memory::{alone, parameter_bytes};
use crate::harness::models::{Regression, RegressionModel, Size};
use crate::harness::run::{RATE, Start};
use crate::harness::{Plain, Release, Weights};

fn training() -> Training {
    Training {
        size: Size::Large,
        epochs: 2,
        batches: 6,
        keep_weights: false,
        ..Training::new()
    }
}

fn saving() -> Training<Bin> {
    training().saving_with(Bin::default())
}

/// The next epoch begins when the checkpoint is written.
fn blocking() -> Training<Bin> {
    Training {
        keep: || {
            Box::new(BlockingCheckpointingStrategy::new(
                KeepLastNCheckpoints::new(2),
            ))
        },
        ..saving()
    }
}

/// With so many micro-batches in an optimizer step, and the same number of steps.
fn accumulating(window: usize) -> Training {
    let training = training();
    Training {
        batches: window * training.batches,
        accumulation: Some(window),
        ..training
    }
}

fn mib(bytes: usize) -> f64 {
    bytes as f64 / (1 << 20) as f64
}

/// The most bytes that lived at once while `train` ran, over what lived before there was a model,
/// and the weights it ended with.
fn peak<B: AutodiffBackend>(
    start: &Start,
    train: impl FnOnce(RegressionModel<B>) -> u64,
) -> (usize, u64) {
    let floor = ALLOCATIONS.current_usage();
    let model = start.model::<Regression, B>();
    ALLOCATIONS.reset_peak_usage();
    let weights = train(model);
    (ALLOCATIONS.peak_usage() - floor, weights)
}

/// The `Learner`, in either mode.
fn learner<D: Mode>(start: &Start, training: Training) -> (usize, u64) {
    peak::<D::B>(start, |model| {
        let optim = D::optim::<_, ModelOf<D, Regression>>(AdamConfig::new().init());
        let strategy = D::strategy::<Regression, _, _>(training.monitor.clone());
        launch(Learner::new(model, optim, RATE), strategy, &training)
            .last
            .digest()
    })
}

/// The same data, model and optimizer in the loop of the README.
fn by_hand(start: &Start) -> (usize, u64) {
    peak::<Release>(start, |mut model| {
        let training = training();
        let (train, valid) = (
            training.loader::<Release>(&WeightLog::none()),
            training.valid_loader::<burn::backend::Flex>(),
        );
        let mut optim = AdamConfig::new().init().with_gradient_release();
        for _ in 0..training.epochs {
            for batch in train.iter() {
                model = optim.arm(RATE, model);
                let loss = model.loss(batch.size, batch.seed);
                let grads = GradientsParams::from_grads(loss.backward(), &model);
                model = optim.step(RATE, model, grads);
            }
            let model = model.valid();
            for batch in valid.iter() {
                model.loss(batch.size, batch.seed).into_data();
            }
        }
        // As in the learner, which is gone when its result is looked at.
        drop(optim);
        Weights::of::<Release, _>(&model).digest()
    })
}

#[test]
fn a_whole_run_peaks_where_the_loop_does() {
    let name = full_name(module_path!(), "a_whole_run_peaks_where_the_loop_does");
    alone(&name, || {
        let start = Start::new::<Regression>(Size::Large);
        // Thread pools and caches come into being once, and belong to none of the runs.
        by_hand(&start);
        learner::<Released>(&start, saving());
        learner::<Stock>(&start, saving());

        let (by_hand, expected) = by_hand(&start);
        let (release, release_weights) = learner::<Released>(&start, training());
        let (stock, stock_weights) = learner::<Stock>(&start, training());
        let (release_saving, _) = learner::<Released>(&start, saving());
        let (stock_saving, _) = learner::<Stock>(&start, saving());
        let (release_blocking, _) = learner::<Released>(&start, blocking());
        assert_eq!(
            [release_weights, stock_weights],
            [expected; 2],
            "the same run"
        );

        println!(
            "peak of a run, MiB: loop {:.2}, learner {:.2} ({:+.2} %), stock {:.2} ({:.3} of it); \
             saving checkpoints: learner {:.2}, stock {:.2}; waiting for them: learner {:.2}",
            mib(by_hand),
            mib(release),
            100.0 * (release as f64 / by_hand as f64 - 1.0),
            mib(stock),
            release as f64 / stock as f64,
            mib(release_saving),
            mib(stock_saving),
            mib(release_blocking),
        );
        assert!(
            release as f64 <= 1.02 * by_hand as f64,
            "the learner holds on to something"
        );
        assert!(release < stock, "nothing is saved");
        // How much a checkpoint adds depends on when its file is done: what is being written is
        // held until then, and the steps go on meanwhile.
        assert!(release_saving + SLACK >= release);
    });
}

/// Nodes of the tape, names, threads: everything that is no tensor of weight size.
const SLACK: usize = 512 * 1024;

/// Sums are held, and one gradient is added to them at a time: never a second set of gradients.
#[test]
fn accumulation_adds_the_sums_and_nothing_else() {
    let name = full_name(
        module_path!(),
        "accumulation_adds_the_sums_and_nothing_else",
    );
    alone(&name, || {
        let start = Start::new::<Regression>(Size::Large);
        let bytes = parameter_bytes::<Plain, _>(&start.model::<Regression, Plain>());
        let (gradients, largest) = bytes;
        // Thread pools and caches come into being once, and belong to none of the runs.
        learner::<Released>(&start, accumulating(2));
        learner::<Stock>(&start, accumulating(2));

        let (unaccumulated, _) = learner::<Released>(&start, training());
        for window in [2, 4] {
            let (stock, expected) = learner::<Stock>(&start, accumulating(window));
            let (release, weights) = learner::<Released>(&start, accumulating(window));
            assert_eq!(weights, expected, "the same run");
            println!(
                "peak of a run, windows of {window}, MiB: stock {:.2}, release {:.2}; release \
                 without accumulation {:.2}; G {:.2}, the largest gradient {:.2}",
                mib(stock),
                mib(release),
                mib(unaccumulated),
                mib(gradients),
                mib(largest),
            );
            assert!(release <= unaccumulated + gradients + largest + SLACK);
            // Stock has a second set: the bound above would notice one.
            assert!(stock + SLACK >= release + gradients - 2 * largest);
        }
    });
}

//! The peak of a whole training run: nothing in the `Learner` or the strategy holds on to weights
//! or activations.

use burn::train::Learner;

use crate::harness::learner::*;
use crate::harness::prelude::*;

/// Nodes of the tape, names, threads: everything that is no tensor of weight size.
const SLACK: usize = 512 * 1024;

fn training() -> Training {
    Training {
        size: Size::Large,
        rates: constant(RATE),
        epochs: 2,
        batches: 2,
        keep_weights: false,
        ..Training::new()
    }
}

/// With two micro-batches in an optimizer step, and the same number of steps.
fn accumulating() -> Training {
    let training = training().accumulating(2);
    Training {
        batches: 2 * training.batches,
        ..training
    }
}

/// The most bytes that lived at once while `run` ran, over what lived before there was a model, and
/// what it returns.
fn peak<M, T>(model: impl FnOnce() -> M, run: impl FnOnce(M) -> T) -> (usize, T) {
    let floor = ALLOCATIONS.current_usage();
    let model = model();
    ALLOCATIONS.reset_peak_usage();
    let result = run(model);
    (ALLOCATIONS.peak_usage() - floor, result)
}

/// The `Learner`, in either mode.
fn learner<D: Mode>(task: &Task, training: &Training) -> (usize, Run) {
    let rates = training.rates.clone();
    peak(
        || task.model::<D::B>(),
        |model| {
            let learner = Learner::new(model, D::optim(training), rates);
            launch(learner, D::strategy(training), training)
        },
    )
}

/// The same data, model and optimizer in the loop of the README: the peak, and the last weights.
fn by_hand(task: &Task) -> (usize, Weights) {
    let run = |mut model: RegressionModel<Release>| {
        let training = training();
        let train = training.loader::<Release>(&WeightLog::none());
        let valid = training.valid_loader::<Flex>();
        let mut optim = Released::optim(&training);
        for _ in 0..training.epochs {
            for batch in train.iter() {
                let loss = |model: &RegressionModel<_>| model.loss(batch.size, batch.seed);
                model = armed_step(RATE, model, &mut optim, loss);
            }
            let model = model.valid();
            for batch in valid.iter() {
                model.loss(batch.size, batch.seed).into_data();
            }
        }
        // As in the learner, which is gone when its result is looked at.
        drop(optim);
        Weights::of(&model)
    };
    peak(|| task.model::<Release>(), run)
}

#[test]
fn a_whole_run_peaks_where_the_loop_does() {
    alone(|| {
        let task = Task::large();
        // Thread pools and caches come into being once, and belong to none of the runs.
        by_hand(&task);
        learner::<Released>(&task, &training());
        learner::<Stock>(&task, &training());

        let (by_hand, expected) = by_hand(&task);
        let expected = expected.digest();
        let of = |(peak, run): (usize, Run)| {
            assert_eq!(run.last.digest(), expected, "the same run");
            peak
        };
        let release = of(learner::<Released>(&task, &training()));
        let stock = of(learner::<Stock>(&task, &training()));
        println!("peaks: loop {by_hand}, learner {release}, stock {stock} bytes");
        let holds_nothing = release as f64 <= 1.02 * by_hand as f64;
        assert!(holds_nothing, "the learner holds on to something");
        assert!(release < stock, "nothing is saved");

        // Sums are held, and one gradient is added to them at a time: never a second set of
        // gradients.
        let (gradients, largest) = parameter_bytes::<Plain, _>(&task.model::<Plain>());
        let (stock, expected) = learner::<Stock>(&task, &accumulating());
        let (accumulated, run) = learner::<Released>(&task, &accumulating());
        assert_eq!(run.last.digest(), expected.last.digest(), "the same run");
        println!("accumulating: stock {stock}, learner {accumulated} bytes");
        assert!(accumulated <= release + gradients + largest + SLACK);
        // Stock has a second set: the bound above would notice one.
        assert!(stock + SLACK >= accumulated + gradients - 2 * largest);
    });
}

/// As the strategy says, or with windows the optimizer: stock Burn's weights at every step, at a lower peak.
#[test]
fn recomputing_in_the_learner() {
    alone(|| {
        let task = Task::new(Net::Tall);
        // Both kinds of arming are in the run: that of the last micro-batch, and of those before.
        // The last window of an epoch is not filled by two micro-batches.
        let training = |accumulation, recompute| Training {
            epochs: 1,
            batches: 5,
            valid_batches: 1,
            accumulation,
            recompute,
            ..Training::new()
        };
        // Thread pools and caches come into being once.
        learner::<Stock>(&task, &training(None, Recompute::None));
        for accumulation in [None, Some(2)] {
            let kept = training(accumulation, Recompute::None);
            let (stock, expected) = learner::<Stock>(&task, &kept);
            let budget = Recompute::Budget(24 * TALL_ACTIVATION as u64);
            let [kept, automatic, within] =
                [Recompute::None, Recompute::Automatic, budget].map(|recompute| {
                    let training = training(accumulation, recompute);
                    let (peak, run) = learner::<Released>(&task, &training);
                    let context = format!("{recompute:?}, windows of {accumulation:?}");
                    run.assert_same(&expected, context);
                    peak
                });
            let unit = |peak: usize| peak as f64 / TALL_ACTIVATION as f64;
            println!(
                "peaks with windows of {accumulation:?}, in activations of a layer: stock {:.1}, \
                 release {:.1}, automatic {:.1}, within 24 {:.1}",
                unit(stock),
                unit(kept),
                unit(automatic),
                unit(within),
            );
            assert!(3 * automatic < stock && 3 * automatic < kept);
            assert!(2 * within < stock);
            // It keeps as much as it may.
            assert!(within > automatic + 4 * TALL_ACTIVATION);
        }
    });
}

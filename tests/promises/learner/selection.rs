//! What Burn selects by its metrics: when to stop, and what to keep.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use burn::backend::Flex;
use burn::optim::adaptor::OptimizerAdaptor;
use burn::optim::{Adam, AdamConfig, Optimizer};
use burn::record::Recorder;
use burn::train::checkpoint::MetricCheckpointingStrategy;
use burn::train::metric::LossMetric;
use burn::train::metric::store::{Aggregate, Direction, Split};
use burn::train::{MetricEarlyStoppingStrategy, StoppingCondition};

use crate::harness::Plain;
use crate::harness::learner::{
    Bin, Directory, Mode, ModelOf, Released, Run, Stock, Training, train,
};
use crate::harness::models::{Regression, Size};
use crate::harness::run::Start;
use crate::harness::weights::readable;

/// So high that the loss does not go down in every epoch.
const RATE: f64 = 0.1;

fn run<D: Mode>(start: &Start, training: &Training) -> Run {
    train::<D, Regression, _, _, _>(start, &AdamConfig::new(), RATE, training)
}

/// Stops when the validation loss has not improved for this many epochs.
pub(super) fn early_stopping(n_epochs: usize) -> MetricEarlyStoppingStrategy {
    MetricEarlyStoppingStrategy::new(
        &LossMetric::<Flex>::new(),
        Aggregate::Mean,
        Direction::Lowest,
        Split::Valid,
        StoppingCondition::NoImprovementSince { n_epochs },
    )
}

#[test]
fn early_stopping_stops_at_the_same_epoch() {
    let start = Start::new::<Regression>(Size::Small);
    let training = || Training {
        epochs: 40,
        early_stopping: Some(early_stopping(2)),
        metrics_in_memory: true,
        settles: true,
        ..Training::new()
    };
    let stock = run::<Stock>(&start, &training());
    let release = run::<Released>(&start, &training());
    let epochs = stock.found.len() / training().batches;
    println!("stopped after {epochs} epochs");
    assert!(
        (4..40).contains(&epochs),
        "stopped early, not at once: {epochs}"
    );
    release.assert_same(&stock, "as long as stock, and the same weights");
    assert_eq!(release.renderer.items(), stock.renderer.items());
    assert_eq!(valid_losses(&release), valid_losses(&stock));
}

/// However long the renderer takes: the strategy asks for an epoch's metrics once they are there.
#[test]
fn early_stopping_waits_for_the_metrics() {
    let start = Start::new::<Regression>(Size::Small);
    let training = || Training {
        epochs: 40,
        early_stopping: Some(early_stopping(2)),
        ..Training::new()
    };
    let stock = run::<Stock>(
        &start,
        &Training {
            metrics_in_memory: true,
            settles: true,
            ..training()
        },
    );
    let release = run::<Released>(
        &start,
        &Training {
            rendering: Duration::from_millis(10),
            ..training()
        },
    );
    release.assert_same(&stock, "stopped at the same epoch");
}

fn valid_losses(run: &Run) -> Vec<f64> {
    let shown = run.renderer.valid("Loss");
    shown.iter().map(|shown| shown.value).collect()
}

/// The record of the optimizer in a checkpoint.
fn optim_record(directory: &Directory, epoch: usize) -> serde_json::Value {
    type Model = ModelOf<Stock, Regression>;
    type State = <OptimizerAdaptor<Adam, Model, Plain> as Optimizer<Model, Plain>>::Record;

    let file = directory.checkpoint(&format!("optim-{epoch}"));
    let record: State =
        Recorder::<Plain>::load(&Bin::default(), file, &Default::default()).expect("whole");
    readable::<Plain, _>(record)
}

#[test]
fn the_best_checkpoint_is_the_same() {
    let start = Start::new::<Regression>(Size::Small);
    let training = || {
        Training {
            epochs: 7,
            metrics_in_memory: true,
            settles: true,
            keep: || {
                Box::new(MetricCheckpointingStrategy::new(
                    &LossMetric::<Flex>::new(),
                    Aggregate::Mean,
                    Direction::Lowest,
                    Split::Valid,
                ))
            },
            ..Training::new()
        }
        .saving_with(Bin::default())
    };
    let stock = run::<Stock>(&start, &training());
    let release = run::<Released>(&start, &training());
    release.assert_same(&stock, "release");

    let (expected, found) = (stock.directory, release.directory);
    let files = expected.checkpoints();
    assert_eq!(found.checkpoints(), files);
    let [model, _optim, scheduler] = &files[..] else {
        panic!("one checkpoint is kept: {files:?}");
    };
    let epoch = model.trim_start_matches("model-").trim_end_matches(".bin");
    let epoch: usize = epoch.parse().expect("the epoch");
    println!("best after {epoch} of 7 epochs");
    assert!(
        (2..7).contains(&epoch),
        "neither the first nor the last: {epoch}"
    );
    for file in [model, scheduler] {
        let bytes = |directory: &Directory| fs::read(directory.checkpoint(file)).expect(file);
        assert!(bytes(&found) == bytes(&expected), "{file} differs");
    }
    assert_eq!(optim_record(&found, epoch), optim_record(&expected, epoch));
}

#[test]
fn an_interrupter_stops_both_at_the_same_step() {
    /// In the second epoch.
    const LAST: usize = 9;
    let start = Start::new::<Regression>(Size::Small);
    let training = || {
        let mut training = Training::new().saving_with(Bin::default());
        let interrupter = training.interrupter.clone();
        training.on_step = Arc::new(move |step| {
            if step == LAST {
                interrupter.stop(Some("enough"));
            }
        });
        training
    };
    let stock = run::<Stock>(&start, &training());
    let release = run::<Released>(&start, &training());
    assert_eq!(stock.found.len(), LAST + 1);
    release.assert_same(&stock, "the step that was interrupted is finished");
    // The second epoch was neither validated nor saved.
    assert_eq!(stock.directory.checkpoints().len(), 3);
    assert_eq!(
        release.directory.checkpoints(),
        stock.directory.checkpoints()
    );
    assert_eq!(release.renderer.items(), stock.renderer.items());
    assert_eq!(release.renderer.valid_items(), stock.renderer.valid_items());
}

/// Interrupted while it validates: the epoch is not continued, but saved.
#[test]
fn an_interrupter_stops_validation_as_stock_does() {
    let start = Start::new::<Regression>(Size::Small);
    let training = || {
        let mut training = Training {
            valid_batches: 5,
            ..Training::new()
        }
        .saving_with(Bin::default());
        let interrupter = training.interrupter.clone();
        training.on_valid_step = Arc::new(move |_| interrupter.stop(None));
        training
    };
    let stock = run::<Stock>(&start, &training());
    let release = run::<Released>(&start, &training());
    release.assert_same(&stock, "release");
    assert_eq!(stock.renderer.valid_items(), 1);
    assert_eq!(release.renderer.valid_items(), 1);
    // Both go on to the next epoch, and notice there.
    assert_eq!(release.found.len(), training().batches + 1);
}

#[test]
fn the_summary_is_there_and_says_the_same() {
    let start = Start::new::<Regression>(Size::Small);
    let training = || Training {
        summary: true,
        // Never stops, but waits for the log of every epoch.
        early_stopping: Some(early_stopping(1000)),
        settles: true,
        ..Training::new()
    };
    let stock = run::<Stock>(&start, &training());
    let release = run::<Released>(&start, &training());
    let [stock, release] = [stock, release].map(|run| {
        let (ends, summary) = run.renderer.end();
        assert_eq!(ends, 1, "training ends once");
        let summary = summary.expect("a summary was asked for");
        assert_eq!(summary.epochs, 3);
        summary
    });
    // Burn reads the logs of the last epoch while they may still be written.
    let losses = |metrics: &[burn::train::MetricSummary]| {
        let loss = metrics.iter().find(|metric| metric.name == "Loss");
        let entries = &loss.expect("the loss is a metric").entries;
        let complete = entries.iter().filter(|entry| entry.step < 3);
        complete.map(|entry| entry.value).collect::<Vec<_>>()
    };
    assert_eq!(losses(&stock.metrics.train).len(), 2);
    assert_eq!(losses(&release.metrics.train), losses(&stock.metrics.train));
    assert_eq!(losses(&release.metrics.valid), losses(&stock.metrics.valid));
    let text = release.to_string();
    assert!(text.contains("RegressionModel"), "{text}");
    assert!(text.contains("Released"), "{text}");
}

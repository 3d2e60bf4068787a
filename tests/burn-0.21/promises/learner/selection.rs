//! What Burn selects by its metrics: when to stop, and what to keep.

use std::sync::Arc;
use std::time::Duration;

use burn::train::checkpoint::MetricCheckpointingStrategy;
use burn::train::metric::LossMetric;
use burn::train::metric::store::{Aggregate, Direction, Split};
use burn::train::{MetricEarlyStoppingStrategy, MetricSummary, StoppingCondition};

use crate::harness::learner::*;
use crate::harness::prelude::*;

/// At a rate so high that the loss does not go down in every epoch. The metrics of an epoch are
/// waited for.
fn settling() -> Training {
    Training {
        rates: constant(0.1),
        metrics_in_memory: true,
        settles: true,
        ..Training::new()
    }
}

/// Stops when the validation loss has not improved for this many epochs.
fn early_stopping(n_epochs: usize) -> MetricEarlyStoppingStrategy {
    MetricEarlyStoppingStrategy::new(
        &LossMetric::<Flex>::new(),
        Aggregate::Mean,
        Direction::Lowest,
        Split::Valid,
        StoppingCondition::NoImprovementSince { n_epochs },
    )
}

fn valid_losses(run: &Run) -> Vec<f64> {
    let shown = run.renderer.valid("Loss");
    shown.iter().map(|shown| shown.value).collect()
}

#[test]
fn early_stopping_stops_at_the_same_epoch() {
    let task = Task::new(Net::Chain);
    let training = || Training {
        epochs: 40,
        early_stopping: Some(early_stopping(2)),
        ..settling()
    };
    let [stock, release] = same(&task, training, "as long as stock, and the same weights");
    let epochs = stock.found.len() / training().batches;
    println!("stopped after {epochs} epochs");
    assert!(
        (4..40).contains(&epochs),
        "stopped early, not at once: {epochs}"
    );
    assert_eq!(release.renderer.items(), stock.renderer.items());
    assert_eq!(valid_losses(&release), valid_losses(&stock));

    // However long the renderer takes: the strategy asks for an epoch's metrics once they are
    // there.
    let slow = Training {
        metrics_in_memory: false,
        settles: false,
        rendering: Duration::from_millis(10),
        ..training()
    };
    train::<Released>(&task, &slow).assert_same(&stock, "a slow renderer");
}

#[test]
fn the_best_checkpoint_is_the_same() {
    let task = Task::new(Net::Chain);
    let training = || Training {
        epochs: 7,
        saves: true,
        keep: || {
            Box::new(MetricCheckpointingStrategy::new(
                &LossMetric::<Flex>::new(),
                Aggregate::Mean,
                Direction::Lowest,
                Split::Valid,
            ))
        },
        ..settling()
    };
    let [stock, release] = same(&task, training, "release");

    let files = stock.directory.checkpoints();
    assert_eq!(release.directory.checkpoints(), files);
    let [model, _optim, _scheduler] = &files[..] else {
        panic!("one checkpoint is kept: {files:?}");
    };
    let epoch = model.trim_start_matches("model-").trim_end_matches(".bin");
    let epoch: usize = epoch.parse().expect("the epoch");
    println!("best after {epoch} of 7 epochs");
    assert!(
        (2..7).contains(&epoch),
        "neither the first nor the last: {epoch}"
    );
    release.assert_saved_same(&stock, epoch);
}

/// In the second epoch: the step is finished, and the epoch neither validated nor saved.
#[test]
fn an_interrupter_stops_both_at_the_same_step() {
    const LAST: usize = 9;
    let task = Task::new(Net::Chain);
    let training = || {
        let mut training = Training::saving();
        let interrupter = training.interrupter.clone();
        training.on_step = Arc::new(move |step| {
            if step == LAST {
                interrupter.stop(Some("enough"));
            }
        });
        training
    };
    let [stock, release] = same(&task, training, "release");
    assert_eq!(stock.found.len(), LAST + 1);
    let files = stock.directory.checkpoints();
    assert_eq!(files.len(), 3);
    assert_eq!(release.directory.checkpoints(), files);
    assert_eq!(release.renderer.items(), stock.renderer.items());
    assert_eq!(release.renderer.valid_items(), stock.renderer.valid_items());
}

/// The epoch is not validated any further, but saved; the next one notices at its first step.
#[test]
fn an_interrupter_stops_validation_as_stock_does() {
    let task = Task::new(Net::Chain);
    let training = || {
        let mut training = Training {
            valid_batches: 5,
            ..Training::saving()
        };
        let interrupter = training.interrupter.clone();
        training.on_valid_step = Arc::new(move |_| interrupter.stop(None));
        training
    };
    let [stock, release] = same(&task, training, "release");
    assert_eq!(release.found.len(), training().batches + 1);
    for run in [&stock, &release] {
        assert_eq!(run.renderer.valid_items(), 1);
    }
    assert_eq!(
        release.directory.checkpoints(),
        stock.directory.checkpoints()
    );
}

#[test]
fn the_summary_is_there_and_says_the_same() {
    let task = Task::new(Net::Chain);
    let training = || Training {
        summary: true,
        // Never stops, but waits for the log of every epoch.
        early_stopping: Some(early_stopping(1000)),
        settles: true,
        ..Training::new()
    };
    let [stock, release] = same(&task, training, "release").map(|run| {
        let (ends, summary) = run.renderer.end();
        assert_eq!(ends, 1, "training ends once");
        let summary = summary.expect("a summary was asked for");
        assert_eq!(summary.epochs, 3);
        summary
    });
    // Burn reads the logs of the last epoch while they may still be written.
    let losses = |metrics: &[MetricSummary]| {
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

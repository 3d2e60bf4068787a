//! The claims of the README about the two trainings.

use std::{
    path::Path,
    sync::{Mutex, MutexGuard, PoisonError},
};

use anyhow::Result;
use burn::{
    backend::{Autodiff, Flex},
    data::dataloader::DataLoaderBuilder,
    module::Module,
    nn::transformer::TransformerEncoderConfig,
    optim::AdamConfig,
    tensor::Device,
    train::{Learner, SupervisedTraining, metric::store::Split},
};
use burn_gradient_release::{GradientRelease, WithGradientRelease};
use burn_gradient_release_train::{GradientReleaseStrategy, StepMonitor, metric::ReleasedMetric};
use peak_alloc::PeakAlloc;
use similar::{ChangeTag, TextDiff};
use text_classification::{
    data::{CLASSES, Reviews, TextClassificationBatcher},
    log::{Log, median},
    memory::{MIB, PeakHeapMetric},
    model::{TextClassificationModel, TextClassificationModelConfig},
    renderer::EpochLines,
    training::{ExperimentConfig, plain, release},
    weights,
};

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// Runs trainings one after the other: Flex's random number generator and the allocator's count are
/// shared by the whole process.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn tiny() -> ExperimentConfig {
    ExperimentConfig::new(
        TransformerEncoderConfig::new(256, 256, 4, 2).with_norm_first(true),
        AdamConfig::new(),
    )
    .with_num_names(500)
    .with_num_train(40)
    .with_num_valid(10)
    .with_batch_size(2)
    .with_warmup_steps(10)
    .with_num_epochs(2)
}

/// The changed lines of a diff, without line ends.
fn changes<'a>(before: &'a str, after: &'a str) -> Vec<String> {
    TextDiff::from_lines(before, after)
        .iter_all_changes()
        .filter(|change| change.tag() != ChangeTag::Equal)
        .map(|change| format!("{}{}", change.tag(), change.value().trim_end()))
        .collect()
}

#[test]
fn the_diff_in_the_readme_is_the_diff() {
    let changed = changes(
        include_str!("../src/training/plain.rs"),
        include_str!("../src/training/release.rs"),
    );
    let code: Vec<_> = changed
        .iter()
        .filter(|line| !line.starts_with("+use "))
        .collect();
    let expected = [
        "-type B = Autodiff<Flex>;",
        "+type B = GradientRelease<Autodiff<Flex>>;",
        "-    let optim = config.optimizer.init();",
        "+    let optim = config.optimizer.init().with_gradient_release();",
        "+    let strategy = GradientReleaseStrategy::new(device).with_recompute(Recompute::Automatic);",
        "+        .with_training_strategy(strategy.into())",
    ];
    assert_eq!(code, expected);

    let readme = include_str!("../README.md");
    let (_, rest) = readme.split_once("```diff\n").expect("a diff");
    let (block, _) = rest.split_once("```").expect("its end");
    let documented: Vec<_> = block
        .lines()
        .filter(|line| line.starts_with(['+', '-']))
        .collect();
    assert_eq!(changed, documented);
}

#[test]
fn both_trainings_reach_the_same_weights_and_release_needs_less_memory() -> Result<()> {
    let _alone = alone();
    let folder = tempfile::tempdir()?;
    let [before, after, other] = ["before", "after", "other"].map(|name| folder.path().join(name));
    let config = tiny();

    let plain = plain::train(&config, &before)?;
    let (digest, parameters) = (weights::digest(&plain), plain.num_params());
    // In memory, the model would count in the peak of the next training.
    drop(plain);
    assert_eq!(
        digest,
        weights::digest(&release::train(&config, &after)?),
        "different weights"
    );
    let other_seed = plain::train(&config.clone().with_seed(43), &other)?;
    assert_ne!(
        digest,
        weights::digest(&other_seed),
        "the digest does not depend on the weights"
    );

    let step_peak = |artifact_dir: &Path| -> Result<f64> {
        let peaks = Log::new(artifact_dir).values(PeakHeapMetric::NAME, 1, &Split::Train)?;
        Ok(median(peaks))
    };
    let saved = step_peak(&before)? - step_peak(&after)?;
    let gradients = 4.0 * parameters as f64 / MIB;
    // The saving is less than all gradients, as the peak is now at the beginning of backward, where
    // the activations are.
    assert!(
        saved > gradients / 3.0,
        "{saved:.2} MiB of {gradients:.2} MiB saved"
    );
    Ok(())
}

#[test]
fn every_parameter_is_released_inside_backward() -> Result<()> {
    type B = GradientRelease<Autodiff<Flex>>;

    let _alone = alone();
    let folder = tempfile::tempdir()?;
    let config = tiny();
    let device = Device::<B>::default();
    let reviews = Reviews::new(config.num_names);
    let tokenizer = reviews.tokenizer();
    let batcher = TextClassificationBatcher::new(tokenizer.clone(), config.seq_length);
    let model: TextClassificationModel<B> = TextClassificationModelConfig::new(
        config.transformer.clone(),
        CLASSES.len(),
        tokenizer.vocab_size(),
        config.seq_length,
    )
    .init(&device);
    let monitor = StepMonitor::new();

    let training = SupervisedTraining::new(
        folder.path(),
        DataLoaderBuilder::new(batcher.clone())
            .batch_size(4)
            .build(reviews.train(20)),
        DataLoaderBuilder::new(batcher).build(reviews.valid(1)),
    )
    .metric_train_numeric(ReleasedMetric::new(&monitor))
    .with_training_strategy(
        GradientReleaseStrategy::new(device)
            .with_monitor(monitor)
            .into(),
    )
    .renderer(EpochLines::default());
    let optim = config.optimizer.init().with_gradient_release();
    training.launch(Learner::new(model, optim, 1e-3));

    let released = Log::new(folder.path()).values("Released", 1, &Split::Train)?;
    assert_eq!(released, [100.0; 5]);
    Ok(())
}

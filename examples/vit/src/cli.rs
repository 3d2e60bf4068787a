//! The command line.

use crate::artifacts::Artifacts;
use crate::backend;
use crate::config::{BackendKind, Checkpointing, Engine, Mode, OptimizerKind, Preset, TrainConfig};
use crate::data::{Dataset, Source, Wanted};
use crate::memory::human;
use crate::model::Pool;
use crate::stopping::CTRL_C;
use crate::terminal::{one_line, say, usage};
use crate::train::{Ending, Results, Train};
use anyhow::{Context, Result, ensure};
use burn::train::Interrupter;
use clap::{Args, Parser, Subcommand};
use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;
use std::io::{self, IsTerminal};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::{self, ExitCode};

/// The exit code of a program that Ctrl-C ended.
const INTERRUPTED: u8 = 130;

#[derive(Debug, Parser)]
#[command(
    name = "vit",
    version,
    about = "Trains a vision transformer with gradient release",
    long_about = "Trains a vision transformer with gradient release.\n\nWithout a subcommand this \
                  is `vit train`.",
    args_conflicts_with_subcommands = true
)]
struct Cli {
    #[command(subcommand)]
    command: Option<Task>,
    #[command(flatten)]
    train: TrainArgs,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Train a classifier of images
    Train(TrainArgs),
}

#[derive(Debug, Args)]
struct TrainArgs {
    /// Images: `digits` (bundled), `fashion-mnist` (Debian's package), or a folder, either of IDX
    /// files under MNIST's names or with one folder of .png or .jpg images for each class
    /// [default: digits]
    #[arg(long)]
    data: Option<String>,
    /// Shape of the model [default: tiny]
    #[arg(long, value_enum)]
    preset: Option<Preset>,
    /// Where tensors live; a build has those whose cargo feature is on [default: flex]
    #[arg(long, value_enum)]
    backend: Option<BackendKind>,
    /// Run every operation by itself on a GPU, rather than fused with its neighbours
    #[arg(long)]
    no_fusion: bool,
    /// Fuse again in a run that began with --no-fusion
    #[arg(long, conflicts_with = "no_fusion", requires = "resume")]
    fusion: bool,
    /// With Burn's own strategy, or with gradient release; the weights are the same [default: release]
    #[arg(long, value_enum)]
    mode: Option<Mode>,
    /// What the forward pass keeps for the backward pass [default: none]
    #[arg(long, value_enum)]
    checkpointing: Option<Checkpointing>,
    /// Who turns gradients into steps; not Muon, which takes matrices only [default: adamw]
    #[arg(long, value_enum)]
    optimizer: Option<OptimizerKind>,
    /// Passes over the training images [default: 20]
    #[arg(long)]
    epochs: Option<NonZeroUsize>,
    /// Images in a batch [default: 32]
    #[arg(long)]
    batch_size: Option<NonZeroUsize>,
    /// Batches whose gradients add up to one step; what is left at the end of an epoch is dropped
    /// [default: 1]
    #[arg(long, value_name = "BATCHES")]
    grads_accumulation: Option<NonZeroUsize>,
    /// Stop after this many epochs without a better validation loss [default: never]
    #[arg(long, value_name = "EPOCHS")]
    early_stopping: Option<NonZeroUsize>,
    /// Highest learning rate, after a warm-up over a tenth of the batches and before a cosine down
    /// to zero [default: 0.002]
    #[arg(long, value_name = "RATE")]
    lr: Option<f64>,
    /// Probability of dropout [default: 0.1]
    #[arg(long, value_name = "PROBABILITY")]
    dropout: Option<f64>,
    /// What the classifier reads [default: class-token]
    #[arg(long, value_enum)]
    pool: Option<Pool>,
    /// Width and height of an image [default: the data's own, rounded up to whole patches]
    #[arg(long, value_name = "PIXELS")]
    image_size: Option<usize>,
    /// Width and height of a patch [default: the preset's]
    #[arg(long, value_name = "PIXELS")]
    patch_size: Option<NonZeroUsize>,
    /// Seed of the weights, of the order of the images and of dropout [default: 42]
    #[arg(long)]
    seed: Option<u64>,
    /// Where settings, checkpoints, metrics and results go
    #[arg(long, value_name = "FOLDER", default_value = "artifacts/vit")]
    artifact_dir: PathBuf,
    /// Go on from the newest checkpoint in --artifact-dir; options not given are those of that run, and
    /// only --mode, --backend, --checkpointing and fusion may differ from them
    #[arg(long)]
    resume: bool,
    /// Start anew even where an interrupted run could be resumed
    #[arg(long, conflicts_with = "resume")]
    overwrite: bool,
    /// Stop when this many batches are done, as Ctrl-C would: what the epoch under way has learned is
    /// lost, and --resume goes on after the last whole one
    #[arg(long, value_name = "BATCHES")]
    stop_after: Option<NonZeroUsize>,
    /// Record where the memory of the third and the fourth batch goes; `burn-memory` shows the file
    #[arg(long, value_name = "FILE")]
    memory_timeline: Option<PathBuf>,
    /// Show one line an epoch, on stderr, on a terminal too: Burn's terminal UI keeps a core busy
    #[arg(long)]
    no_tui: bool,
    /// End with one line of JSON on stdout, and show the run as with --no-tui: validation_accuracy,
    /// train_loss, epochs, peak_bytes, peak_reserved_bytes (null on the CPU), weights_digest
    #[arg(long)]
    json: bool,
}

/// Runs a training on the backend that the engine names.
///
/// The program gives it, not this library: with it comes the training on every backend there is, which
/// takes minutes to compile, and which nothing else that uses the library needs.
pub type Run = fn(&Engine, Train<'_>) -> Result<Ending>;

/// Runs the program.
pub fn main(run: Run) -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    let done = match cli.command {
        None => train(&cli.train, run),
        Some(Task::Train(args)) => train(&args, run),
    };
    done.unwrap_or_else(|error| {
        eprintln!("error: {}", one_line(&format!("{error:#}")));
        ExitCode::FAILURE
    })
}

fn train(args: &TrainArgs, run: Run) -> Result<ExitCode> {
    let artifacts = Artifacts::new(&args.artifact_dir);
    let saved = if args.resume {
        Some(artifacts.settings()?)
    } else {
        if !args.overwrite {
            artifacts.ensure_free()?;
        }
        None
    };
    let (config, data) = args.resolve(saved.as_ref())?;
    if args.memory_timeline.is_some() {
        backend::can_record(&config.engine)?;
    }

    let interrupter = Interrupter::new();
    let handle = interrupter.clone();
    ctrlc::set_handler(move || {
        // A second Ctrl-C does not wait for the batch.
        if handle.should_stop() {
            process::exit(INTERRUPTED.into());
        }
        handle.stop(Some(CTRL_C));
    })
    .context("cannot listen for Ctrl-C")?;

    let ending = run(
        &config.engine,
        Train {
            config: &config,
            data: &data,
            artifacts: &artifacts,
            resume: args.resume,
            interrupter,
            stop_after: args.stop_after.map(NonZeroUsize::get),
            memory_timeline: args.memory_timeline.as_deref(),
            // With --json, stdout is for the one line.
            tui: io::stdout().is_terminal() && !args.json && !args.no_tui,
        },
    )?;
    if let Some(file) = &args.memory_timeline {
        let file = file.display();
        eprintln!("memory timeline written: {file}; `burn-memory summary {file}` reads it");
    }
    match ending {
        Ending::Finished(results) => {
            let table = summary(&config, &results);
            if args.json {
                eprintln!("{table}");
                say(&serde_json::to_string(&results)?)?;
            } else {
                say(&table)?;
            }
            Ok(ExitCode::SUCCESS)
        }
        Ending::Interrupted {
            resume_point,
            by_ctrl_c,
        } => {
            let folder = artifacts.folder().display();
            let command = format!("`vit train --resume --artifact-dir {folder}`");
            match resume_point {
                Some(epoch) => {
                    eprintln!("stopped; {command} continues from the checkpoint of epoch {epoch}");
                }
                None => eprintln!(
                    "stopped before the first checkpoint; {command} begins with the first epoch"
                ),
            }
            Ok(if by_ctrl_c {
                ExitCode::from(INTERRUPTED)
            } else {
                ExitCode::SUCCESS
            })
        }
    }
}

impl TrainArgs {
    /// The settings and the images: what is given, else what the resumed run had, else defaults.
    fn resolve(&self, saved: Option<&TrainConfig>) -> Result<(TrainConfig, Dataset)> {
        let was = |value: fn(&TrainConfig) -> &Engine| saved.map(value);
        let engine = was(|config| &config.engine);
        let preset = agreed("preset", self.preset, saved.map(|s| s.preset), Preset::Tiny)?;
        let config = |value: fn(&TrainConfig) -> f64| saved.map(value);
        let learning_rate = agreed("lr", self.lr, config(|s| s.learning_rate), 2e-3)?;
        let dropout = agreed("dropout", self.dropout, config(|s| s.model.dropout), 0.1)?;
        ensure!(
            learning_rate > 0.0 && learning_rate <= 1.0,
            "--lr must be above 0 and at most 1, not {learning_rate}"
        );
        ensure!(
            (0.0..1.0).contains(&dropout),
            "--dropout must be at least 0 and below 1, not {dropout}"
        );

        let number = |value: fn(&TrainConfig) -> usize| saved.map(value);
        let source = agreed(
            "data",
            self.data.clone(),
            saved.map(|s| s.data.clone()),
            Source::Digits.to_string(),
        )?;
        let patch_size = agreed(
            "patch-size",
            self.patch_size.map(NonZeroUsize::get),
            number(|s| s.model.patch_size),
            preset.patch_size(),
        )?;
        let image_size = match number(|s| s.model.image_size) {
            Some(saved) => Some(agreed("image-size", self.image_size, Some(saved), saved)?),
            None => self.image_size,
        };
        let pool = agreed(
            "pool",
            self.pool,
            saved.map(|s| s.model.pool),
            Pool::ClassToken,
        )?;
        let epochs = agreed(
            "epochs",
            self.epochs.map(NonZeroUsize::get),
            number(|s| s.epochs),
            20,
        )?;
        let batch_size = agreed(
            "batch-size",
            self.batch_size.map(NonZeroUsize::get),
            number(|s| s.batch_size),
            32,
        )?;
        let grads_accumulation = agreed(
            "grads-accumulation",
            self.grads_accumulation.map(NonZeroUsize::get),
            number(|s| s.grads_accumulation),
            1,
        )?;
        let early_stopping = self.early_stopping.map(NonZeroUsize::get);
        let early_stopping = match saved.map(|s| s.early_stopping) {
            None => early_stopping,
            Some(None) => {
                ensure!(
                    early_stopping.is_none(),
                    "the run to resume has no --early-stopping"
                );
                None
            }
            Some(Some(saved)) => Some(agreed(
                "early-stopping",
                early_stopping,
                Some(saved),
                saved,
            )?),
        };
        let seed = agreed("seed", self.seed, saved.map(|s| s.seed), 42)?;
        let optimizer = agreed(
            "optimizer",
            self.optimizer,
            engine.map(|e| e.optimizer),
            OptimizerKind::AdamW,
        )?;
        let engine = Engine {
            backend: given(
                self.backend,
                engine.map(|e| e.backend),
                BackendKind::first(),
            ),
            fusion: given(
                match (self.fusion, self.no_fusion) {
                    (true, _) => Some(true),
                    (_, true) => Some(false),
                    _ => None,
                },
                engine.map(|e| e.fusion),
                true,
            ),
            mode: given(self.mode, engine.map(|e| e.mode), Mode::Release),
            checkpointing: given(
                self.checkpointing,
                engine.map(|e| e.checkpointing),
                Checkpointing::None,
            ),
            optimizer,
        };
        backend::require(engine.backend)?;
        ensure!(
            !(self.no_fusion || self.fusion) || !engine.backend.is_on_heap(),
            "--no-fusion and --fusion are for a GPU; {} never fuses",
            engine.backend
        );
        let data = Dataset::load(
            &source.parse()?,
            Wanted {
                image_size,
                patch_size,
            },
        )?;
        let data_digest = data.digest();
        ensure!(
            saved.is_none_or(|saved| saved.data_digest == data_digest),
            "the images of {source} are not those that the run in {} began with",
            self.artifact_dir.display()
        );
        let batches = data.train.len().div_ceil(batch_size);
        ensure!(
            grads_accumulation <= batches,
            "--grads-accumulation {grads_accumulation} is more than the {batches} batches of an \
             epoch: no step would ever be taken"
        );
        let mut model = preset.config(data.size, data.channels, data.classes);
        model.patch_size = patch_size;
        model.dropout = dropout;
        model.pool = pool;
        let config = TrainConfig {
            preset,
            model,
            data: source,
            data_digest,
            engine,
            epochs,
            batch_size,
            grads_accumulation,
            early_stopping,
            learning_rate,
            seed,
        };
        Ok((config, data))
    }
}

fn given<T>(given: Option<T>, saved: Option<T>, default: T) -> T {
    given.or(saved).unwrap_or(default)
}

/// As [`given`], for what may not change between a run and its continuation.
fn agreed<T: Clone + PartialEq + std::fmt::Display>(
    name: &str,
    value: Option<T>,
    saved: Option<T>,
    default: T,
) -> Result<T> {
    if let (Some(value), Some(saved)) = (&value, &saved) {
        ensure!(
            value == saved,
            "the run to resume has --{name} {saved}, not {value}"
        );
    }
    Ok(given(value, saved, default))
}

fn summary(config: &TrainConfig, results: &Results) -> String {
    let all = 4 * config.model.num_params() as u64;
    let largest = 4 * config.model.largest_param() as u64;
    // What accumulation keeps from batch to batch, in either mode.
    let sums = if config.grads_accumulation > 1 {
        all
    } else {
        0
    };
    let and_sums = if sums > 0 { ", and their sums" } else { "" };
    let mut table = Table::new();
    table.load_preset(ASCII_MARKDOWN);
    table.set_header(["", "", "how known"]);
    table.add_row(["epochs", &results.epochs.to_string(), "counted"]);
    table.add_row([
        "validation accuracy",
        &format!("{:.2} %", results.validation_accuracy * 100.0),
        "measured",
    ]);
    let peak = human(results.peak_bytes);
    match results.peak_reserved_bytes {
        None => {
            table.add_row([
                "peak memory",
                &peak,
                "measured, on the heap, beyond the images",
            ]);
        }
        Some(reserved) => {
            table.add_row(["peak memory", &peak, "measured, on the GPU, in use"]);
            table.add_row([
                "peak memory reserved",
                &human(reserved),
                "measured, on the GPU: taken from it, in use or not",
            ]);
        }
    }
    table.add_row([
        "gradients that plain Burn holds at once",
        &human(sums + all),
        &format!("computed: one for every weight{and_sums}"),
    ]);
    if config.engine.mode == Mode::Release {
        table.add_row([
            "gradients that gradient release holds at once",
            &human(sums + largest),
            &format!("computed: the largest one, if alone{and_sums}"),
        ]);
        table.add_row([
            "saved by gradient release, up to",
            &human(all - largest),
            "computed: the difference; the benchmarks measure it",
        ]);
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_resumed_run_keeps_its_settings() {
        assert_eq!(agreed("seed", None, Some(7), 42).unwrap(), 7);
        assert_eq!(agreed("seed", Some(7), Some(7), 42).unwrap(), 7);
        assert_eq!(agreed("seed", None, None, 42).unwrap(), 42);
        let error = agreed(
            "preset",
            Some(Preset::Small),
            Some(Preset::Tiny),
            Preset::Tiny,
        );
        assert_eq!(
            error.unwrap_err().to_string(),
            "the run to resume has --preset tiny, not small"
        );
    }
}

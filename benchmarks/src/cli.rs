//! The command line.

use crate::plan::Request;
use crate::report;
use crate::results::{
    BurnVersion, Checkpointing, LinearGradient, LossChunk, Mode, Operations, Results, Settings,
    TorchMode,
};
use crate::shape::{Kind, Sizes};
use crate::spec;
use crate::suite;
use crate::timeline;
use anyhow::{Context, Result, bail, ensure};
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::env;
use std::fs::{self, File, TryLockError};
use std::io;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::{self, ExitCode};
use std::time::Duration;
use vit_0_21::config::{BackendKind, OptimizerKind, Preset};
use vit_0_21::data::ImageSize;
use vit_0_21::run_folder::has_no_locks;
use vit_0_21::terminal::{self, note, say};

/// The files that a suite writes.
const FILES: [&str; 3] = ["results.json", "table.md", "memory.svg"];

/// Locked while a suite writes to the folder.
const LOCK: &str = "lock";

#[derive(Debug, Parser)]
#[command(
    name = "benchmarks",
    version,
    about = "Memory and time of a training step: Burn, gradient release, PyTorch and optimi",
    args_conflicts_with_subcommands = true,
    args_override_self = true,
    after_long_help = HELP
)]
struct Cli {
    #[command(subcommand)]
    task: Option<Task>,
    #[command(flatten)]
    suite: SuiteArgs,
}

#[derive(Debug, Subcommand)]
enum Task {
    #[command(name = spec::CHILD, hide = true)]
    Measure { spec: String },
}

/// A part of the suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// A vision transformer
    Vit,
    /// A decoder in the style of GPT-2
    Gpt,
    /// Burn's own transformer encoder, as in tracel-ai/burn#5212: --preset tiny, or one size
    Encoder,
    /// The largest vocabulary that gradient release trains in plain Burn's peak
    Vocabulary,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Fusion {
    On,
    Off,
}

#[derive(Debug, Args)]
struct SuiteArgs {
    /// What to measure
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "vit,gpt,vocabulary"
    )]
    part: Vec<Part>,
    /// Size of the models [default: large on a GPU, small otherwise]
    #[arg(long, value_enum)]
    preset: Option<Preset>,
    /// Images or sequences in a step, separated by commas [default: 1 and, for images, 8; 6 for the
    /// encoder]
    #[arg(long, value_delimiter = ',')]
    batch_size: Vec<NonZeroUsize>,
    /// Width and height of an image [default: the preset's]
    #[arg(long, value_name = "PIXELS")]
    image_size: Option<usize>,
    /// Different tokens of the decoder [default: the preset's]
    #[arg(long, value_name = "TOKENS")]
    vocabulary: Option<NonZeroUsize>,
    /// Tokens in a sequence of the decoder [default: the preset's]
    #[arg(long, value_name = "TOKENS")]
    context: Option<NonZeroUsize>,
    /// Versions of Burn, separated by commas; 0.22 on flex
    #[arg(
        long,
        value_enum,
        value_name = "VERSION",
        value_delimiter = ',',
        default_value = "0.21,0.22"
    )]
    burn: Vec<BurnVersion>,
    /// Backends, separated by commas; a build has those whose cargo feature is on
    /// [default: cuda and wgpu where there is a GPU, else flex]
    #[arg(long, value_enum, value_delimiter = ',')]
    backend: Vec<BackendKind>,
    /// Whether a GPU fuses operations that follow each other
    #[arg(long, value_enum, value_delimiter = ',', default_value = "on,off")]
    fusion: Vec<Fusion>,
    /// Modes of Burn, separated by commas
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "plain,release"
    )]
    mode: Vec<Mode>,
    /// What Burn's forward pass keeps for the backward pass, separated by commas
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "none,balanced"
    )]
    checkpointing: Vec<Checkpointing>,
    /// What models are made of, separated by commas: Burn's modules, or those of burn-lean, which
    /// keep little for the backward pass
    #[arg(long, value_enum, value_delimiter = ',', default_value = "default")]
    operations: Vec<Operations>,
    /// How Burn computes the gradient of a linear layer's weight, separated by commas
    #[arg(long, value_enum, value_delimiter = ',', default_value = "default")]
    linear: Vec<LinearGradient>,
    /// Tokens whose loss a language model computes at once in Burn, in a scope that is recomputed:
    /// numbers or `whole`, separated by commas
    #[arg(
        long,
        value_name = "TOKENS",
        value_delimiter = ',',
        default_value = "whole"
    )]
    loss_chunk: Vec<LossChunk>,
    /// Optimizers in Burn, separated by commas [default: Adam, for the encoder AdamW]
    #[arg(long, value_enum, value_delimiter = ',')]
    optimizer: Vec<OptimizerKind>,
    /// Modes of PyTorch, separated by commas
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "foreach,no-foreach,fused,hook,optimi"
    )]
    pytorch: Vec<TorchMode>,
    /// A Python that has PyTorch and, for optimi and torchao-8bit, torch-optimi and torchao
    #[arg(long, default_value = "python3")]
    python: PathBuf,
    /// Leave PyTorch out
    #[arg(long, conflicts_with = "python")]
    no_pytorch: bool,
    /// Measured steps
    #[arg(long, default_value = "5")]
    steps: NonZeroUsize,
    /// Steps before the measured ones, which compile kernels and create the optimizer's state
    #[arg(long, default_value = "3")]
    warm_up: NonZeroUsize,
    /// Repetitions of every run, in turn, every second time in reverse: plain, release, release,
    /// plain, ...
    #[arg(long, default_value = "1")]
    repeat: NonZeroUsize,
    /// Learning rate
    #[arg(long, value_name = "RATE", default_value = "0.001")]
    lr: f64,
    /// Seed of weights and batches
    #[arg(long, default_value = "42")]
    seed: u64,
    /// Also record a memory timeline of each run of Burn: two steps, in one more process, into
    /// timelines/ beside the results; `burn-memory` shows the files
    #[arg(long)]
    memory_timeline: bool,
    /// Time limit of a run; a run that takes longer is left out
    #[arg(long, value_name = "SECONDS", default_value = "900")]
    time_limit: NonZeroUsize,
    /// Start no run after this time; the most important runs come first [default: no limit]
    #[arg(long, value_name = "SECONDS")]
    within: Option<NonZeroUsize>,
    /// Folder for results.json, table.md and memory.svg
    #[arg(long, value_name = "FOLDER", default_value = "artifacts/benchmarks")]
    output: PathBuf,
}

const HELP: &str = "\
Every run has a separate process, so that none sees what another left in memory. In these processes
MALLOC_MMAP_THRESHOLD_ is 4 GiB and MALLOC_TRIM_THRESHOLD_ is 1 TiB, unless they are already set: glibc
then keeps freed memory for the next step, which makes step times comparable.

The results are written after each run, so those of an interrupted suite are there. The exit code is 1 if
a run failed; the results of the other runs are written all the same.

Modes that are not in the suite by default:
  --mode unarmed  the backend of gradient release with nothing armed: the cost of the backend alone
  --mode ideal    bytes only: the peak of one more step, which drops every gradient as soon as it exists
                  and steps no parameter, while the optimizer's state stays, plus the largest gradient
  --pytorch checkpoint,hook-checkpoint
                  foreach and hook, with torch.utils.checkpoint around each block
  --pytorch torchao-8bit
                  torchao's optimizer with moments in 8 bits, which it compiles in the first warm-up step

What cannot be combined is left out, and the table says so. On Burn 0.22 there are --mode plain and release,
--checkpointing none, balanced, blocks and (for the vision transformer) nested, and Burn's own optimizers, all on flex; only 0.22 has sgd and --operations lean. On Burn
0.21, plain Burn has neither --checkpointing blocks nor automatic. Everywhere, an optimizer that is not armed does not recompute by itself, --linear flat is measured on
flex only, moments in 8 bits are not on ndarray, and the loss of the vision transformer has no chunks, nor has
that of lean operations any but its own.";

/// Measures a run, as a measuring process: from its spec in JSON to its result in JSON.
///
/// The binary passes it in. Defined in this library, it would compile the training on every
/// backend, which takes minutes, into the tests of the library too.
pub type Child = fn(&str) -> Result<String>;

/// Runs the program.
pub fn main(child: Child) -> ExitCode {
    terminal::main(|cli: Cli| match cli.task {
        Some(Task::Measure { spec }) => {
            say(&child(&spec)?)?;
            Ok(ExitCode::SUCCESS)
        }
        None => run(&cli.suite),
    })
}

fn run(args: &SuiteArgs) -> Result<ExitCode> {
    let request = args.request()?;
    // Fails before hours of work if the results cannot be written.
    let _lock = claim(&args.output)?;
    if let Some(folder) = &request.timelines {
        ensure_writable(folder)?;
    }
    let results = suite::run(&request, |so_far| {
        // The last of them may have room again, and says so if it has none.
        if let Err(error) = write(so_far, &args.output) {
            note(&format!("{error:#}"));
        }
    })?;
    // First: it is all there is if the files cannot be written.
    let shown = say(&report::table(&results));
    write(&results, &args.output)?;
    shown?;
    for name in FILES {
        note(&format!("written: {}", args.output.join(name).display()));
    }
    Ok(if results.failed.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Makes the folder, and locks it until the file is dropped: two suites would replace each other's
/// results.
fn claim(folder: &Path) -> Result<File> {
    ensure_writable(folder)?;
    let cannot = || format!("cannot lock {}", folder.join(LOCK).display());
    let file = File::create(folder.join(LOCK)).with_context(cannot)?;
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => bail!(
            "another suite writes to {}: wait for it, or choose another --output",
            folder.display()
        ),
        Err(TryLockError::Error(error)) if !has_no_locks(&error) => Err(error).with_context(cannot),
        _ => Ok(file),
    }
}

/// Makes the folder, and writes to it: one that exists may be read-only.
fn ensure_writable(folder: &Path) -> Result<()> {
    let probe = folder.join(format!(".writable-{}", process::id()));
    fs::create_dir_all(folder)
        .and_then(|()| fs::write(&probe, ""))
        .and_then(|()| fs::remove_file(&probe))
        .with_context(|| format!("cannot write to the folder {}", folder.display()))
}

/// Replaces the files of the folder whole: whoever interrupts the suite has those of the runs
/// before.
fn write(results: &Results, folder: &Path) -> Result<()> {
    let table = report::table(results);
    let json = serde_json::to_string_pretty(results)?;
    let contents = [json, format!("{table}\n"), report::plot(results)?];
    for (name, content) in FILES.into_iter().zip(contents) {
        let file = folder.join(name);
        replace(&file, &content).with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}

fn replace(file: &Path, content: &str) -> io::Result<()> {
    let beside = file.with_extension("partial");
    fs::write(&beside, content)?;
    fs::rename(&beside, file)
}

impl SuiteArgs {
    fn request(&self) -> Result<Request> {
        ensure!(
            self.lr > 0.0 && self.lr.is_finite(),
            "--lr must be above 0, not {}",
            self.lr
        );
        ensure!(
            !self.memory_timeline || self.steps.get() >= timeline::STEPS,
            "--memory-timeline records the last {} of the measured steps: have at least --steps {}",
            timeline::STEPS,
            timeline::STEPS
        );
        let has = |part| self.part.contains(&part);
        ensure!(
            (self.vocabulary.is_none() && self.context.is_none())
                || has(Part::Gpt)
                || has(Part::Vocabulary),
            "--vocabulary and --context are sizes of the decoder: add --part gpt"
        );
        let kinds = [
            (Part::Vit, Kind::Vit),
            (Part::Gpt, Kind::Gpt),
            (Part::Encoder, Kind::Encoder),
        ];
        let seconds = |limit: NonZeroUsize| Duration::from_secs(limit.get() as u64);
        if let Some(size) = self.image_size {
            let preset = self.preset.context("--image-size needs a --preset")?;
            let requested = ImageSize {
                requested: Some(size),
                patch_size: preset.patch_size(),
            };
            requested.resolve(size)?;
        }
        Ok(Request {
            command: command(),
            kinds: kinds
                .into_iter()
                .filter(|(part, _)| has(*part))
                .map(|(_, kind)| kind)
                .collect(),
            vocabulary: has(Part::Vocabulary),
            preset: self.preset,
            sizes: Sizes {
                image: self.image_size,
                vocabulary: self.vocabulary.map(NonZeroUsize::get),
                context: self.context.map(NonZeroUsize::get),
            },
            batch_sizes: self.batch_size.iter().map(|size| size.get()).collect(),
            burns: self.burn.clone(),
            backends: self.backend.clone(),
            fusion: self
                .fusion
                .iter()
                .map(|fusion| *fusion == Fusion::On)
                .collect(),
            modes: self.mode.clone(),
            checkpointing: self.checkpointing.clone(),
            operations: self.operations.clone(),
            linear: self.linear.clone(),
            loss_chunks: self.loss_chunk.clone(),
            optimizers: self.optimizer.clone(),
            python: (!self.no_pytorch).then(|| self.python.clone()),
            torch_modes: self.pytorch.clone(),
            timelines: self
                .memory_timeline
                .then(|| self.output.join(timeline::FOLDER)),
            settings: Settings {
                warm_up: self.warm_up.get(),
                steps: self.steps.get(),
                repeat: self.repeat.get(),
                learning_rate: self.lr,
                seed: self.seed,
            },
            time_limit: seconds(self.time_limit),
            within: self.within.map(seconds),
        })
    }
}

/// The command line, without the folder of the program.
fn command() -> Vec<String> {
    let mut command: Vec<String> = env::args().collect();
    if let Some(program) = command.first_mut() {
        let name = Path::new(program.as_str()).file_name();
        *program = name.map_or_else(String::new, |name| name.to_string_lossy().into());
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn clap_accepts_the_command_line() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_folder_has_one_suite_at_a_time() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("results");
        let held = claim(&folder).unwrap();
        let text = claim(&folder).unwrap_err().to_string();
        assert!(text.starts_with("another suite writes to "), "{text}");
        drop(held);
        claim(&folder).unwrap();
        assert_eq!(fs::read_dir(folder).unwrap().count(), 1);
    }

    /// Of the system, where not even root may write.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_folder_that_exists_may_be_read_only() {
        let text = claim(Path::new("/sys/kernel")).unwrap_err().to_string();
        assert_eq!(text, "cannot write to the folder /sys/kernel");
    }
}

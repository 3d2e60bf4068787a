//! Trains a model of the Hub on a text, and writes what the Hub's programs read.
//!
//! ```sh
//! cargo run --release -p finetune -- MODEL_FOLDER TEXT_FILE --output NEW_FOLDER
//! ```
//!
//! The text is plain, or has a line of JSON for each conversation (`.jsonl`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use burn::module::Module;
use burn::tensor::{DType, Device};
use burn_lean::safetensors::Weights;
use clap::{CommandFactory, FromArgMatches, Parser};
use finetune::config::ModelConfig;
use finetune::model::{self, Batch, Decoder};
use finetune::settings::{How, MAY_CHANGE, Settings};
use finetune::train::{PARTS, Training};
use lean_run_folder::{Checkpoints, RunFolder, fail, given_options, identity, resumed};
use lean_text::{Order, Text, read, tokenizer};
use peak_alloc::PeakAlloc;

#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

/// Trains a model of the Llama family.
#[derive(Debug, Parser)]
struct Options {
    #[command(flatten)]
    settings: Settings,
    /// A new folder for what is learned
    #[arg(long)]
    output: PathBuf,
    /// Go on with the training in the folder, from its last checkpoint
    #[arg(long)]
    resume: bool,
    /// Steps from one checkpoint to the next; 0 for none
    #[arg(long, default_value_t = 100)]
    save_every: usize,
    /// A text whose loss is told before and after
    #[arg(long)]
    validation: Option<PathBuf>,
}

fn main() -> ExitCode {
    let matches = Options::command().get_matches();
    let options = Options::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    run(options, &given_options(&matches))
        .map_or_else(|error| fail(&*error), |()| ExitCode::SUCCESS)
}

fn run(options: Options, given: &[String]) -> Result<()> {
    let (output, mut settings) = (&options.output, options.settings);
    // Checkpoints, and a lock: two programs cannot have one folder.
    let path = output.join("training");
    let mut folder = None;
    if options.resume {
        let of_run = RunFolder::open(&path, &PARTS)?;
        let shown = output.display();
        ensure!(
            !of_run.is_finished(),
            "the training in {shown} is over: train what it has written"
        );
        settings = resumed(&of_run.settings()?, &settings, given, &MAY_CHANGE)?;
        folder = Some(of_run);
    } else {
        ensure_new(output)?;
    }
    let config = ModelConfig::open(&settings.model)?;
    settings.check(&config)?;
    let tokenizer = tokenizer(&settings.model, config.vocabulary, &config.special_tokens)?;
    let open = |path| read(path, &settings.model, &tokenizer, settings.context);
    let texts = open(&settings.text)?;
    let validation = options.validation.as_deref().map(open).transpose()?;
    let weights = model::open(&settings.model)?;
    let types = weights
        .tensors()
        .map(|(name, dtype, _)| (name.to_owned(), dtype));
    let types: BTreeMap<_, _> = types.collect();
    let parameters: usize = parameters(&weights).map(|(_, numbers)| numbers).sum();
    let (memory, disk) = estimate(&weights, &config, &settings);
    let [memory, disk] = [memory, disk].map(mib);
    println!("{} texts; about {memory:.0} MiB of memory", texts.len());
    if let Some(folder) = &settings.scratch {
        println!("and {disk:.0} MiB of the disk of {}", folder.display());
    }

    let identity = identity(&settings, &MAY_CHANGE)?;
    let checkpoints = |folder: &RunFolder| folder.checkpoints().of_run(&identity);
    let of_before = folder.as_ref().map(checkpoints);
    let last = of_before
        .as_ref()
        .map_or(Ok(None), Checkpoints::resume_point)?;
    let from = of_before.as_ref().zip(last);
    let device = Device::flex().autodiff();
    device.seed(settings.seed);
    let mut training = Training::open(&settings, &config, weights, from, &device)?;
    let (now, peak) = (mib(HEAP.current_usage()), mib(HEAP.peak_usage()));
    println!("the model: {now:.0} MiB, and {peak:.0} MiB while it was read");
    HEAP.reset_peak_usage();
    // Nothing is left of a training that was refused until here.
    let folder = match folder {
        Some(folder) => folder,
        None => {
            ensure_new(output)?;
            let folder = RunFolder::create::<Settings>(&path, &PARTS, false)?;
            folder.start(&settings)?;
            folder
        }
    };
    folder.save_settings(&settings)?;
    let checkpoints = checkpoints(&folder);

    let mut last = last.unwrap_or(0);
    if options.resume {
        println!("going on after step {last}");
    }
    let mut order = Order::new(texts.len(), settings.seed).skip(last * settings.batch);
    if let Some(texts) = &validation {
        println!("validation: {:.4}", validate(&training.model, texts));
    }
    for step in last + 1..=settings.steps {
        let start = Instant::now();
        let chosen = order.by_ref().take(settings.batch);
        let chosen: Vec<_> = chosen.map(|place| &texts[place]).collect();
        let loss = training.model.loss(Batch::new(&chosen, &device));
        let value = loss.clone().into_scalar::<f32>();
        ensure!(value.is_finite(), "the loss of step {step} is {value}");
        let rate = settings.rate();
        training.model = training.optim.backward(rate, loss, training.model);
        if step <= 3 || step % 10 == 0 || step == settings.steps {
            let seconds = start.elapsed().as_secs_f64();
            println!("step {step}: loss {value:.4}, {seconds:.2} s");
        }
        if step % options.save_every.max(1) == 0 && options.save_every > 0 && step < settings.steps
        {
            let saved = training.save(settings.how, &checkpoints, step);
            saved.with_context(|| format!("make room, and --resume goes on after step {last}"))?;
            last = step;
        }
    }
    if let Some(texts) = &validation {
        println!("validation: {:.4}", validate(&training.model, texts));
    }
    if let Err(error) = training.give(&settings, &types, output) {
        // A checkpoint may fit where the weights do not, as on another disk.
        if training
            .save(settings.how, &checkpoints, settings.steps)
            .is_ok()
        {
            last = settings.steps;
        }
        return Err(error.context(format!("make room, and --resume goes on after step {last}")));
    }
    // Writing takes less than training.
    println!("the peak of memory: {:.0} MiB", mib(HEAP.peak_usage()));
    // Weight, gradient and two moments, in f32.
    let plain = mib(16 * parameters);
    println!("all weights with Burn's AdamW: {plain:.0} MiB, and activations");
    folder.save_results(&settings.steps)?;
    // Nothing goes on from them any more.
    Ok(checkpoints.clear()?)
}

fn ensure_new(output: &Path) -> Result<()> {
    let shown = output.display();
    ensure!(
        !output.exists(),
        "{shown} is there: choose a new folder, or go on with the training in it with --resume"
    );
    Ok(())
}

fn mib(bytes: usize) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// The names of the parameters, and how many numbers each has.
fn parameters(weights: &Weights) -> impl Iterator<Item = (&str, usize)> {
    // bitsandbytes has two numbers in a byte, and scales beside them.
    let is_beside = |name: &str| name.contains(".weight.");
    let tensors = weights.tensors().filter(move |(name, ..)| !is_beside(name));
    tensors.map(|(name, dtype, shape)| {
        let in_byte = if dtype == DType::U8 { 2 } else { 1 };
        (name, in_byte * shape.iter().product::<usize>())
    })
}

/// Bytes of memory for weights and states, the largest gradient and activations, and bytes of disk.
fn estimate(weights: &Weights, config: &ModelConfig, settings: &Settings) -> (usize, usize) {
    let (mut inside, mut outside, mut largest) = (0, 0, 0);
    for (name, numbers) in parameters(weights) {
        largest = largest.max(numbers);
        match name.contains(".layers.") {
            true => inside += numbers,
            false => outside += numbers,
        }
    }
    let (queries, keys) = (
        config.heads * config.head_size,
        config.key_heads * config.head_size,
    );
    // Input and output of each linear layer.
    let sides = 2 * (config.width + queries) + 2 * (config.width + keys);
    let sides = config.windows.len() * (sides + 3 * (config.width + config.hidden));
    let adapters = sides * settings.rank * 12;
    let held = match settings.how {
        How::FiveBytes => (inside + outside) * 506 / 100,
        How::Lora => (inside + outside) * 2 + adapters,
        How::Nf4 => inside * 516 / 1000 + outside * 2 + adapters,
    };
    // One of them and its gradient are in f32 for a moment.
    let stepped = match settings.how {
        How::FiveBytes => largest * 6,
        How::Lora | How::Nf4 => 0,
    };
    let tokens = settings.batch * settings.context;
    let in_layer = 4 * config.width + 3 * config.heads * config.head_size + 4 * config.hidden;
    let scopes = config.windows.len() * config.width;
    let activations = tokens * 2 * (scopes + 2 * in_layer);
    let (in_memory, on_disk) = match settings.scratch {
        None => (held, 0),
        Some(_) => (held.min((settings.memory as usize) << 20), held),
    };
    (in_memory + stepped + activations, on_disk)
}

/// The mean loss of all texts.
fn validate(model: &Decoder, texts: &[Text]) -> f64 {
    let model = model.valid();
    let (mut sum, mut tokens) = (0.0, 0);
    for text in texts {
        let batch = Batch::new(&[text], &Device::flex());
        let places = batch.places.dims()[0];
        sum += f64::from(model.loss(batch).into_scalar::<f32>()) * places as f64;
        tokens += places;
    }
    sum / tokens as f64
}

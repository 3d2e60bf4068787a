//! Trains a model of the Hub on a text, and writes what the Hub's programs read.
//!
//! ```sh
//! cargo run --release -p finetune -- MODEL_FOLDER TEXT_FILE --output NEW_FOLDER
//! ```
//!
//! The text is plain, or has a line of JSON for each conversation (`.jsonl`).

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use burn::module::{Lora, Module, ModuleVisitor, Param, ParamGroup};
use burn::optim::{AdamWConfig, OptimizerRecord};
use burn::tensor::{DType, Device, FloatDType, Tensor};
use burn_lean::operations::Nf4;
use burn_lean::optim::{InFiveBytes, InOnePass, Lean};
use burn_lean::safetensors::{read_all, save};
use burn_lean::{MixedPrecision, ReleaseOptimizer, WithGradientRelease, no_decay, save_adapters};
use clap::{Parser, ValueEnum};
use finetune::config::ModelConfig;
use finetune::data::{Data, tokenizer};
use finetune::model::Decoder;
use peak_alloc::PeakAlloc;
use tokenizers::Tokenizer;

#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

/// Trains a model of the Llama family.
#[derive(Debug, Parser)]
struct Options {
    /// The folder of `config.json`, `tokenizer.json` and `model.safetensors`
    model: PathBuf,
    /// Plain text, or `.jsonl` with `messages` or `text` in each line
    text: PathBuf,
    /// A new folder for what is learned
    #[arg(long)]
    output: PathBuf,
    /// What is trained
    #[arg(long, value_enum, default_value = "five-bytes")]
    how: How,
    /// Steps of the training
    #[arg(long, default_value_t = 100)]
    steps: usize,
    /// Texts of a step
    #[arg(long, default_value_t = 1)]
    batch: usize,
    /// Tokens of a text
    #[arg(long, default_value_t = 512)]
    context: usize,
    /// The learning rate: 1e-5, and 1e-4 with adapters, if not given
    #[arg(long)]
    rate: Option<f64>,
    /// AdamW's weight decay, not of biases and gains
    #[arg(long, default_value_t = 0.0)]
    decay: f32,
    /// The rank of adapters. Their scale is 2
    #[arg(long, default_value_t = 16)]
    rank: usize,
    /// A text whose loss is told before and after
    #[arg(long)]
    validation: Option<PathBuf>,
    /// What the model goes on with at the end
    #[arg(long)]
    prompt: Option<String>,
    /// Decides the order of texts, and roundings
    #[arg(long, default_value_t = 42)]
    seed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum How {
    /// All weights, in bf16, with AdamW in five bytes a weight
    FiveBytes,
    /// Adapters, over weights in bf16
    Lora,
    /// Adapters, over weights in four bits
    Nf4,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let device = Device::flex().autodiff();
    device.seed(options.seed);
    let config = ModelConfig::open(&options.model)?;
    let time = options.context;
    ensure!(
        (2..=config.positions).contains(&time),
        "a context of {time} tokens: the model has 2 to {}",
        config.positions
    );
    ensure!(
        options.batch > 0 && options.rank > 0,
        "a batch or a rank of 0"
    );
    let tokenizer = tokenizer(&options.model, config.vocabulary)?;
    let open = |path| Data::open(path, &options.model, &tokenizer, time, options.seed);
    let mut data = open(&options.text)?;
    let validation = options.validation.as_deref().map(open).transpose()?;
    let mut weights = finetune::model::open(&options.model)?;
    let types = weights
        .tensors()
        .map(|(name, dtype, _)| (name.to_owned(), dtype));
    let types: BTreeMap<_, _> = types.collect();
    let is_wide = types.values().any(|&dtype| dtype != DType::BF16);
    // All bits of f32 and f16 are for the optimizer.
    if options.how != How::FiveBytes || !is_wide {
        weights = weights.with_precision(MixedPrecision::bf16());
    }
    let model = weights.load(config.init(time, &device), str::to_owned)?;
    // Two runs cannot have one folder.
    fs::create_dir(&options.output)
        .with_context(|| format!("a new folder {}", options.output.display()))?;
    println!(
        "{} texts; about {:.0} MiB of memory",
        data.len(),
        mib(estimate(&model, &config, &options))
    );

    let (mut model, mut optim) = prepare(model, &options)?;
    read_all(&model);
    let loading = HEAP.peak_usage();
    println!(
        "the model: {:.0} MiB, and {:.0} MiB while it was read",
        mib(HEAP.current_usage()),
        mib(loading)
    );
    HEAP.reset_peak_usage();
    if let Some(data) = &validation {
        println!("validation: {:.4}", validate(&model, data));
    }
    let rate = options.rate.unwrap_or(match options.how {
        How::FiveBytes => 1e-5,
        How::Lora | How::Nf4 => 1e-4,
    });
    for step in 1..=options.steps {
        let start = Instant::now();
        let loss = model.loss(data.next(options.batch, &device));
        let value = loss.clone().into_scalar::<f32>();
        ensure!(value.is_finite(), "the loss of step {step} is {value}");
        model = optim.backward(rate, loss, model);
        if step <= 3 || step % 10 == 0 || step == options.steps {
            println!(
                "step {step}: loss {value:.4}, {:.2} s",
                start.elapsed().as_secs_f64()
            );
        }
    }
    println!("the peak of memory: {:.0} MiB", mib(HEAP.peak_usage()));
    if let Some(data) = &validation {
        println!("validation: {:.4}", validate(&model, data));
    }
    if let Some(prompt) = &options.prompt {
        println!("{prompt}{}", write(&model, prompt, &tokenizer, time)?);
    }
    match options.how {
        How::FiveBytes => {
            if is_wide {
                let adamw = AdamWConfig::new().in_five_bytes(options.seed);
                model = adamw.weights_to_f32(model, optim.to_record())?;
            }
            drop(optim);
            let file = options.output.join("model.safetensors");
            save(&model, file, str::to_owned, |name, _| types[name])?;
            copy_rest(&options.model, &options.output)
        }
        // Modules have the names of Python's.
        How::Lora | How::Nf4 => Ok(save_adapters(
            &model,
            &lora(options.rank),
            &options.output,
            str::to_owned,
        )?),
    }
}

fn mib(bytes: usize) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Adapters of all linear layers but the head.
fn lora(rank: usize) -> Lora {
    Lora::new(rank, 2.0 * rank as f64)
        .set_param_group(ParamGroup::from_predicate("layers"))
        .set_dtype(FloatDType::F32)
}

/// The model as it is trained, and its optimizer.
fn prepare(model: Decoder, options: &Options) -> Result<(Decoder, ReleaseOptimizer)> {
    let adamw = |decay| {
        AdamWConfig::new()
            .with_epsilon(1e-8)
            .with_weight_decay(decay)
    };
    let five_bytes = |decay| adamw(decay).in_five_bytes(options.seed);
    let lora = lora(options.rank);
    let model = match options.how {
        How::FiveBytes => {
            let group = MixedPrecision::bf16().params(&model)?;
            let no_decay = no_decay(&model);
            let record = OptimizerRecord::default();
            let (model, record) =
                five_bytes(0.0).weights_from_f32(model, &group, DType::BF16, record)?;
            let optim = five_bytes(options.decay).init().with_gradient_release();
            let optim = optim.with_group(no_decay, five_bytes(0.0), None);
            return Ok((model, optim.load_record(record)));
        }
        How::Lora => model.apply_lora(lora),
        How::Nf4 => {
            let nf4 = Nf4::new().with_group(ParamGroup::from_predicate("layers"));
            nf4.with_lora(lora).pack(model)?
        }
    };
    let optim = adamw(options.decay).in_one_pass().init();
    Ok((model, optim.with_gradient_release()))
}

/// Bytes of the weights and states, of the largest gradient and of activations.
fn estimate(model: &Decoder, config: &ModelConfig, options: &Options) -> usize {
    #[derive(Default)]
    struct Sizes {
        /// Of the layers, and of all else.
        numbers: [usize; 2],
        largest: usize,
        /// Of a factor of rank 1 for each matrix of the layers.
        factors: usize,
        path: Vec<String>,
    }
    impl ModuleVisitor for Sizes {
        fn enter_module(&mut self, name: &str, _container: &str) {
            self.path.push(name.into());
        }
        fn exit_module(&mut self, _name: &str, _container: &str) {
            self.path.pop();
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let shape = param.lazy_shape();
            let is_outside = !self.path.iter().any(|name| name == "layers");
            self.numbers[usize::from(is_outside)] += shape.num_elements();
            self.largest = self.largest.max(shape.num_elements());
            if D == 2 && !is_outside {
                self.factors += shape.iter().sum::<usize>();
            }
        }
    }
    let mut sizes = Sizes::default();
    model.visit(&mut sizes);
    let [inside, outside] = sizes.numbers;
    let weights = match options.how {
        // Weights, their states, and the gradient of one of them, in f32 for a moment.
        How::FiveBytes => (inside + outside) * 506 / 100 + sizes.largest * 6,
        How::Lora => (inside + outside) * 2 + sizes.factors * options.rank * 12,
        How::Nf4 => inside * 516 / 1000 + outside * 2 + sizes.factors * options.rank * 12,
    };
    let tokens = options.batch * options.context;
    let in_layer = 4 * config.width + 3 * config.heads * config.head_size + 4 * config.hidden;
    let scopes = config.windows.len() * config.width;
    weights + tokens * 2 * (scopes + 2 * in_layer)
}

/// The mean loss of all texts.
fn validate(model: &Decoder, data: &Data) -> f64 {
    let model = model.valid();
    let (mut sum, mut tokens) = (0.0, 0);
    for batch in data.all(&Device::flex()) {
        let places = batch.places.dims()[0];
        sum += f64::from(model.loss(batch).into_scalar::<f32>()) * places as f64;
        tokens += places;
    }
    sum / tokens as f64
}

/// What the model says most likely after a prompt.
fn write(model: &Decoder, prompt: &str, tokenizer: &Tokenizer, time: usize) -> Result<String> {
    let model = model.valid();
    let encoding = tokenizer.encode(prompt, true).map_err(anyhow::Error::msg)?;
    let mut tokens = encoding.get_ids().to_vec();
    let length = tokens.len();
    while tokens.len() < time.min(length + 32) {
        tokens.push(model.next(&tokens, &Device::flex()));
    }
    let said = tokenizer.decode(&tokens[length.min(tokens.len())..], false);
    said.map_err(anyhow::Error::msg)
}

/// Copies what belongs to a model beside its weights.
fn copy_rest(from: &Path, to: &Path) -> Result<()> {
    for entry in fs::read_dir(from)? {
        let (path, name) = entry.map(|it| (it.path(), it.file_name()))?;
        let is_kept = ["json", "jinja"]
            .iter()
            .any(|it| path.extension() == Some(it.as_ref()));
        if is_kept && !name.to_string_lossy().contains("safetensors") && path.is_file() {
            fs::copy(&path, to.join(name)).with_context(|| path.display().to_string())?;
        }
    }
    Ok(())
}

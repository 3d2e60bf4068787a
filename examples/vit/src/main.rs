//! Trains a vision transformer in less memory: with gradient release, and with scopes around its blocks. `--mode plain` is
//! plain Burn, which has the same weights, bit for bit.
//!
//! From top to bottom: [`train`] has what a program needs around a training, [`Training::epochs`] is the loop with the
//! line of gradient release, [`Training::open`] makes model and optimizer, or reads those of a checkpoint.

#![forbid(unsafe_code)]

mod device;

use crate::device::Memory;
use anyhow::{Context, Result, ensure};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::optim::{AdamWConfig, GradientsParams, ModuleOptimizer, OptimizerRecord};
use burn::store::ModuleRecord;
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use burn_lean::optim::{EightBitMoments, InFiveBytes, InOnePass, Lean};
use burn_lean::timeline::{self, Heap, Recorder, Recording};
use burn_lean::{
    CastError, DataParallel, EarlyGradients, MixedPrecision, ReleaseError, ReleaseOptimizer,
    SaveStatesError, WithGradientRelease,
};
use clap::Parser;
use lean_run_folder::{CannotWrite, Run, command_line, fail, note};
use peak_alloc::PeakAlloc;
use serde_json::json;
use std::f64::consts::PI;
use std::fmt::Display;
use std::num::NonZeroUsize;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use vit::model::{LeanVit, Model, Vit, digest, drawn};
use vit_inputs::{
    Checkpointing, Dataset, Image, Mode, Operations, OptimizerKind, Options, Preset, SeededRng,
    Settings, Split, WEIGHT_DECAY, agree, join, labels,
};

/// Counts every byte on the heap, which is where the CPU keeps its tensors, and can record them.
#[global_allocator]
static ALLOCATOR: Heap<PeakAlloc> = Heap::from_allocator(PeakAlloc);

/// What is saved after an epoch.
const PARTS: [&str; 2] = [MODEL, OPTIMIZER];
const MODEL: &str = "model.bpk";
const OPTIMIZER: &str = "optim.bpk";

#[derive(Debug, Parser)]
#[command(version, about = "Trains a vision transformer on Burn 0.22")]
enum Program {
    /// Trains a vision transformer on Burn 0.22, plainly or with gradient release
    #[command(mut_arg("checkpointing", |it| it.default_value("blocks").default_value_if("mode", "plain", "none")))]
    Train {
        #[command(flatten)]
        options: Box<Options>,
        /// Stop after this many batches of the whole run, resumed or not: the current epoch is lost, and
        /// --resume continues after the last complete one
        #[arg(long, value_name = "BATCHES")]
        stop_after: Option<NonZeroUsize>,
    },
}

fn main() -> ExitCode {
    let (program, given) = match command_line() {
        Ok(read) => read,
        Err(code) => return code,
    };
    let Program::Train {
        options,
        stop_after,
    } = program;
    // Until the error is told: the others may not answer when this process leaves them.
    let parallel = match options.data_parallel.then(join).transpose() {
        Ok(replicas) => replicas.map(DataParallel::new),
        Err(error) => return fail(&*error),
    };
    let parallel = match options.shard_optimizer {
        true => parallel.map(DataParallel::with_sharded_optimizer),
        false => parallel,
    };
    let stop_after = stop_after.map_or(usize::MAX, NonZeroUsize::get);
    let trained = train(&options, &given, parallel.as_ref(), stop_after);
    trained.map_or_else(|error| fail(&*error), |()| ExitCode::SUCCESS)
}

fn train(
    options: &Options,
    given: &[String],
    parallel: Option<&DataParallel>,
    stop_after: usize,
) -> Result<()> {
    let replicas = parallel.map(DataParallel::replicas);
    let mut pending = options.open("vit", &PARTS, given, replicas)?;
    let data = pending.settings.load(replicas)?;
    let settings = &pending.settings;
    ensure!(
        settings.checkpointing != Checkpointing::Automatic,
        "--checkpointing automatic is for Burn 0.21: use blocks or nested"
    );
    ensure!(
        settings.optimizer != OptimizerKind::AdamWFiveBytes
            || settings.operations == Operations::Lean,
        "--optimizer adamw-five-bytes trains in bf16 with norms in f32, which need --operations lean"
    );
    let device = device::open(settings.backend)?;
    // Before there are tensors. Of several processes, all would write the same file.
    let file = options.memory_timeline.as_ref();
    let file = file.filter(|_| pending.is_first());
    ensure!(
        file.is_none() || settings.backend.is_on_heap(),
        "--memory-timeline records the heap, and tensors are there with --backend flex alone"
    );
    let title = format!("ViT, {}, {}", settings.preset, settings.mode);
    let record = |file| Recorder::new(title).with_file(file).start();
    let recording = file.map(record).transpose()?;

    // From here on, the folder changes.
    let Some(run) = pending.begin(|settings| agree(replicas, settings))? else {
        return Ok(());
    };
    let training = Training {
        settings: &run.settings,
        data: &data,
        device: &device,
        parallel,
        run: Some(&run),
        stop_after,
        is_recorded: recording.is_some(),
    };
    match run.settings.operations {
        Operations::Default => training.run::<Vit>(&run, recording),
        Operations::Lean => training.run::<LeanVit>(&run, recording),
    }
}

/// What a training has besides model and optimizer.
#[derive(Clone, Copy)]
struct Training<'a> {
    settings: &'a Settings,
    data: &'a Dataset,
    device: &'a Device,
    /// The processes that train together, if there are several.
    parallel: Option<&'a DataParallel>,
    /// Where its checkpoints are, unless it only measures.
    run: Option<&'a Run<Settings>>,
    stop_after: usize,
    is_recorded: bool,
}

/// With gradient release, or without. A program that always has it needs no choice.
enum Optim {
    Release(ReleaseOptimizer),
    Plain(ModuleOptimizer),
}

impl Training<'_> {
    /// Trains all epochs, or those that are left of a run. The model, unless it was stopped.
    fn epochs<M: Model>(self, memory: &mut Memory) -> Result<Option<M>> {
        let Self { settings, data, .. } = self;
        let batches = settings.batches(data);
        let iterations = settings.epochs * batches;
        let rank = self.parallel.map_or(0, |it| it.replicas().rank());
        let device = match settings.checkpointing {
            Checkpointing::Balanced => self.device.clone().autodiff().gradient_checkpointing(),
            _ => self.device.clone().autodiff(),
        };
        let (mut model, mut optim) = self.open::<M>(&device)?;

        for epoch in self.done() + 1..=settings.epochs {
            let mut rng = SeededRng::new(&[settings.seed, 0, epoch as u64]);
            let order = rng.permutation(data.train.len());
            let mut losses = Vec::new();
            for (index, places) in order.chunks(settings.batch_size).enumerate() {
                let iteration = (epoch - 1) * batches + index;
                if iteration >= self.stop_after {
                    let last = epoch - 1;
                    if self.run.is_some() {
                        note(&format!("stopped: --resume goes on after epoch {last}"));
                    }
                    return Ok(None);
                }
                // Of several processes, each trains on its share of a batch.
                let places = match self.parallel {
                    Some(parallel) => &places[parallel.replicas().share(places.len())],
                    None => places,
                };
                let (images, labels) = self.batch(&data.train, places, &device);
                // Of the iteration: a resumed run has the masks of the uninterrupted one.
                let seed = [settings.seed, 1, iteration as u64, rank as u64];
                let seed = SeededRng::new(&seed[..3 + rank.min(1)]).next_u64();
                let lr = rate(settings.lr, iteration, iterations);

                let forward = || cross_entropy(model.forward(images, Some(seed)), labels);
                let loss = timeline::forward(&model, forward);
                losses.push(loss.clone().without_autodiff() * places.len() as f64);
                memory.look();
                model = match &mut optim {
                    // Each parameter steps inside the backward pass, and its gradient is freed.
                    Optim::Release(optim) => {
                        let stepped = timeline::backward(|| optim.try_backward(lr, loss, model));
                        stepped.map_err(ReleaseError::from)?
                    }
                    // All gradients first. `timeline::step` is `optim.step`, and tells a recording.
                    Optim::Plain(optim) => {
                        let grads = timeline::backward(|| loss.backward());
                        let grads = GradientsParams::from_grads(grads, &model);
                        timeline::step(optim, lr, model, grads)
                    }
                };
                memory.look();
            }
            let loss = self.mean_loss(losses, &model)?;
            ensure!(
                loss.is_finite(),
                "the loss is {loss} in epoch {epoch}: try a smaller --lr"
            );
            let Some(run) = self.run else {
                continue;
            };
            if run.is_first {
                let (validation, accuracy) = self.validate(&model);
                note(&format!(
                    "epoch {epoch:>3}/{}  loss {loss:.4}  validation loss {validation:.4}  accuracy {accuracy:.2} %  \
                     peak {}",
                    settings.epochs,
                    memory.look()
                ));
            }
            self.save(run, epoch, &model, &optim)
                .with_context(|| format!("cannot save the checkpoint of epoch {epoch}"))?;
        }
        Ok(Some(model))
    }

    /// Model and optimizer: new, or of the checkpoint to resume from.
    fn open<M: Model>(&self, device: &Device) -> Result<(M, Optim)> {
        let settings = self.settings;
        self.device.seed(settings.seed);
        let mut model =
            drawn(M::new(&settings.model(self.data), device).recomputing(settings.checkpointing));
        if self.dtype() == DType::BF16 {
            // But for norms, which stay in f32.
            model = MixedPrecision::bf16()
                .cast(model)
                .map_err(CastError::from)?;
        }
        // A GPU still has the weights from before a cast.
        self.device.memory_cleanup();
        let adamw = AdamWConfig::new().with_weight_decay(WEIGHT_DECAY as f32);
        let optim = match settings.optimizer {
            OptimizerKind::AdamW => adamw.init(),
            OptimizerKind::AdamW8bit => adamw.in_one_pass().with_8_bit_moments(&model).init(),
            OptimizerKind::AdamWFiveBytes => adamw.in_five_bytes(settings.seed).init(),
        };
        let mut optim = match settings.mode {
            Mode::Plain => Optim::Plain(optim),
            Mode::Release => {
                // Else gradients of `Linear` may come last, all at once.
                model = model.apply_reparameterization(EarlyGradients);
                let optim = optim.with_gradient_release();
                Optim::Release(match self.parallel {
                    None => optim,
                    Some(parallel) => optim.with_reduction(Arc::new(parallel.clone())),
                })
            }
        };

        let saved = self.run.filter(|run| run.resume_point.is_some());
        let file = |part| saved.map(|run| run.checkpoints.file(part, self.done()));
        let cannot = || format!("cannot load the checkpoint of epoch {}", self.done());
        if let Some(file) = file(MODEL) {
            let record = ModuleRecord::load(file).with_context(cannot)?;
            model = model.try_load_record(record).with_context(cannot)?;
        }
        if let Some(parallel) = self.parallel {
            let begins = format!("the beginning of epoch {}", self.done() + 1);
            parallel.replicas().meet(&begins)?;
            // The model of the first process.
            model = parallel.broadcast(model)?;
        }
        if let Some(file) = file(OPTIMIZER) {
            optim = optim.load(self.parallel, &file).with_context(cannot)?;
        }
        if self.is_recorded && settings.mode == Mode::Plain {
            model = timeline::watched(model);
        }
        Ok((model, optim))
    }

    /// Writes a checkpoint. Of several processes, the first does, and the others bring their states.
    fn save(
        self,
        run: &Run<Settings>,
        epoch: usize,
        model: &impl Model,
        optim: &Optim,
    ) -> Result<()> {
        let states = |file: &Path| optim.save(self.parallel, model, file);
        if !run.is_first {
            return states(&run.checkpoints.file(OPTIMIZER, epoch));
        }
        run.checkpoints.save(epoch, |part, file| match part {
            MODEL => written(file, model.clone().into_record().save(file)),
            _ => states(file),
        })
    }

    /// The mean loss of the training images. Of several processes, all have the same model by now.
    fn mean_loss(self, losses: Vec<Tensor<1>>, model: &impl Model) -> Result<f64> {
        let mut loss = sum(losses);
        if let Some(parallel) = self.parallel {
            parallel.verify(model)?;
            let of_all = parallel.replicas().numbers("the losses", loss)?;
            loss = of_all.iter().sum();
        }
        Ok(loss / self.data.train.len() as f64)
    }

    /// Loss and accuracy, in percent, on the validation images.
    fn validate(self, model: &impl Model) -> (f64, f64) {
        let model = model.valid();
        let split = &self.data.validation;
        let places: Vec<usize> = (0..split.len()).collect();
        let (mut losses, mut correct) = (Vec::new(), 0);
        for places in places.chunks(self.settings.batch_size) {
            let (images, labels) = self.batch(split, places, self.device);
            let scores = model.forward(images, None);
            let best = scores.clone().argmax(1).flatten::<1>(0, 1);
            correct += best.equal(labels.clone()).int().sum().into_scalar::<i64>();
            losses.push(cross_entropy(scores, labels) * places.len() as f64);
        }
        let images = split.len().max(1) as f64;
        (sum(losses) / images, correct as f64 / images * 100.0)
    }

    /// `[batch, channels, size, size]` images, and `[batch]` labels.
    fn batch(
        self,
        split: &Split,
        places: &[usize],
        device: &Device,
    ) -> (Tensor<4>, Tensor<1, Int>) {
        let images: Vec<Image> = places
            .iter()
            .filter_map(|place| split.get(*place))
            .collect();
        let (pixels, shape) = self.data.pixels(&images);
        let (pixels, labels) = (TensorData::new(pixels, shape), labels(&images));
        let labels = TensorData::new(labels, [images.len()]);
        (
            Tensor::from_data(pixels, (device, self.dtype())),
            Tensor::from_data(labels, device),
        )
    }

    fn dtype(self) -> DType {
        match self.settings.optimizer {
            OptimizerKind::AdamWFiveBytes => DType::BF16,
            _ => DType::F32,
        }
    }

    /// The epochs that are done.
    fn done(&self) -> usize {
        self.run.and_then(|run| run.resume_point).unwrap_or(0)
    }

    /// Trains, and writes the results unless it was stopped.
    fn run<M: Model>(self, run: &Run<Settings>, recording: Option<Recording>) -> Result<()> {
        let mut memory = Memory::start(self.device);
        let model = self.epochs::<M>(&mut memory)?;
        // Before the validation, which is not part of the training.
        let peak = memory.look();
        if let Some(parallel) = self.parallel {
            let rank = parallel.replicas().rank();
            note(&format!("peak of process {rank}: {peak}"));
        }
        let recorded = recording.map(Recording::finish).transpose();
        if let Some(model) = model.filter(|_| run.is_first) {
            let (loss, accuracy) = self.validate(&model);
            let epochs = self.settings.epochs;
            run.folder.save_results(&json!({
                "epochs": epochs,
                "validation_loss": loss,
                "validation_accuracy": accuracy / 100.0,
                "peak_bytes": memory.peak,
                "peak_reserved_bytes": memory.reserved,
                "weights_digest": digest(&model),
            }))?;
            drop(model);
            let plain = self.plain_peak(&mut memory)?;
            note(&format!(
                "validation accuracy {accuracy:.2} % after {epochs} epochs, peak memory {peak}{plain}"
            ));
        }
        // Last: a timeline that cannot be written does not cost the results.
        recorded?;
        Ok(())
    }

    /// What two batches of the digits take with plain Burn. A larger model may not fit so.
    fn plain_peak(self, memory: &mut Memory) -> Result<String> {
        let is_small = self.settings.preset == Preset::Tiny && self.settings.data == "digits";
        if !is_small || self.settings.mode == Mode::Plain || self.parallel.is_some() {
            return Ok(String::new());
        }
        let settings = Settings {
            mode: Mode::Plain,
            checkpointing: Checkpointing::None,
            operations: Operations::Default,
            optimizer: OptimizerKind::AdamW,
            ..self.settings.clone()
        };
        let plain = Training {
            settings: &settings,
            run: None,
            stop_after: 2,
            ..self
        };
        memory.reset();
        plain.epochs::<Vit>(memory)?;
        Ok(format!(" (plain Burn: {})", memory.look()))
    }
}

impl Optim {
    /// Writes the states of all parameters: either optimizer loads those of the other. All processes call it.
    fn save(&self, parallel: Option<&DataParallel>, model: &impl Model, file: &Path) -> Result<()> {
        match (self, parallel) {
            (Self::Plain(optim), _) => written(file, optim.save(file)),
            (Self::Release(optim), None) => written(file, optim.save_states(model, file)),
            (Self::Release(optim), Some(parallel)) => match parallel.save_states(optim, file) {
                Err(SaveStatesError::File { reason }) => written(file, Err(reason)),
                saved => Ok(saved?),
            },
        }
    }

    fn load(self, parallel: Option<&DataParallel>, file: &Path) -> Result<Self> {
        Ok(match (self, parallel) {
            (Self::Plain(optim), _) => Self::Plain(optim.load(file)?),
            (Self::Release(optim), None) => {
                Self::Release(optim.load_record(OptimizerRecord::load(file)?))
            }
            (Self::Release(optim), Some(parallel)) => {
                Self::Release(parallel.load_states(optim, file)?)
            }
        })
    }
}

/// Burn's errors do not keep the system's, by which `fail` chooses the exit code.
fn written<E: Display>(file: &Path, result: Result<(), E>) -> Result<()> {
    Ok(result.map_err(|error| CannotWrite::to(file, error))?)
}

/// The mean cross-entropy of `[batch, classes]` scores and `[batch]` labels, in f32.
fn cross_entropy(scores: Tensor<2>, labels: Tensor<1, Int>) -> Tensor<1> {
    let loss = CrossEntropyLossConfig::new().init(&scores.device());
    loss.forward(scores.cast(DType::F32), labels)
}

/// The sum of the losses of batches. They are read at the end of an epoch: a GPU would have to be awaited, else.
fn sum(losses: Vec<Tensor<1>>) -> f64 {
    Tensor::cat(losses, 0).sum().into_scalar()
}

/// The learning rate of an iteration, counted from 0: a rise over a tenth of them, and a cosine from there to zero. Burn's
/// schedulers have a state, which a resumed run would have to load.
fn rate(highest: f64, iteration: usize, iterations: usize) -> f64 {
    let warm_up = (iterations / 10).max(1);
    let rise = ((iteration + 1) as f64 / (warm_up + 1) as f64).min(1.0);
    let fall = (1.0 + (PI * iteration as f64 / iterations as f64).cos()) / 2.0;
    highest * rise * fall
}

//! What happens in the process of a run.

use crate::results::Settings;
use crate::shape::Shape;
use crate::stepper::{self, Stepper};
use crate::timeline::{self, Plan};
use crate::workload::{HostBatch, Workload};
use anyhow::{Context, Result};
use burn::module::Module;
use burn::optim::{AdamConfig, GradientsParams};
use burn::tensor::backend::AutodiffBackend;
use burn::tensor::{Device, ElementConversion};
#[cfg(feature = "cuda")]
use burn_device_memory::MeteredCudaUnfused;
#[cfg(feature = "wgpu")]
use burn_device_memory::MeteredWgpuUnfused;
use burn_gradient_release::{ReleaseBackend, WithGradientRelease};
use burn_memory_timeline::{RecordSteps, backward, forward};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::time::Instant;
use vit::backend::{self, Job};
use vit::config::{self, BackendKind, Checkpointing, Engine, OptimizerKind};
use vit::digest;
use vit::memory::Memory;

/// How the optimizer gets its gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Burn as it comes: all gradients first, then the step
    Plain,
    /// Gradient release: every parameter steps inside the backward pass
    Release,
    /// The backend of gradient release with nothing armed: what it costs by itself
    Unarmed,
    /// The floor, bytes only: gradients dropped as they come, no optimizer run, plus the largest
    /// gradient
    Ideal,
}

/// What a process is started for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Purpose {
    /// Bytes, and seconds where counting takes no time.
    Memory,
    /// Seconds.
    Time,
    /// Whose the bytes are: the last [`timeline::STEPS`] of the measured steps are recorded.
    Timeline(Plan),
}

/// A run in Burn; travels to its process as JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Spec {
    /// The model.
    pub model: Shape,
    /// Where the tensors live.
    pub backend: BackendKind,
    /// Whether a GPU fuses operations that follow each other.
    pub fusion: bool,
    /// How the optimizer gets its gradients.
    pub mode: Mode,
    /// What the forward pass keeps.
    pub checkpointing: Checkpointing,
    /// What the process is for.
    pub measure: Purpose,
    /// Images or sequences in a step.
    pub batch_size: usize,
    /// What all runs of a suite have in common.
    #[serde(flatten)]
    pub settings: Settings,
}

/// What a process measured, in Rust or in Python.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Measured {
    /// The backend by its own name.
    pub backend: String,
    /// Numbers in the model.
    pub parameters: u64,
    /// Numbers in its largest parameter.
    pub largest_parameter: u64,
    /// Seconds of each measured step, from the batch on the host to after the optimizer.
    pub step_seconds: Vec<f64>,
    /// Loss of the last measured step, before its update.
    pub final_loss: f64,
    /// SHA-256 of the weights after it.
    pub weights_digest: String,
    /// Bytes, where they were counted.
    pub memory: Option<Bytes>,
}

/// Bytes in use, all beyond those before the model was built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bytes {
    /// The most at once in any measured step.
    pub peak_bytes: u64,
    /// The most that was taken from the device, as far as somebody counts it.
    pub peak_reserved_bytes: Option<u64>,
    /// The most at once while the model was built and in the steps that are not measured.
    pub warm_up_peak_bytes: u64,
    /// What dropping the optimizer's state set free at the end.
    pub optimizer_state_bytes: u64,
    /// In one more step, at whose stages the device is waited for: before the batch is made.
    pub live_before: u64,
    /// After the forward pass.
    pub live_after_forward: u64,
    /// After the backward pass.
    pub live_after_backward: u64,
    /// After the optimizer.
    pub live_after_step: u64,
    /// The most at once in the forward pass.
    pub peak_in_forward: u64,
    /// The most at once in the backward pass.
    pub peak_in_backward: u64,
    /// The most at once in the optimizer's step after it.
    pub peak_in_step: u64,
}

/// Measures one run.
pub fn run<W: Workload>(spec: &Spec, work: &W) -> Result<Measured> {
    let engine = Engine {
        backend: spec.backend,
        fusion: spec.fusion,
        mode: match spec.mode {
            Mode::Plain => config::Mode::Plain,
            Mode::Release | Mode::Unarmed | Mode::Ideal => config::Mode::Release,
        },
        checkpointing: spec.checkpointing,
        optimizer: OptimizerKind::Adam,
    };
    let job = Measure {
        spec,
        work,
        // Made here, before anybody counts.
        batches: work.batches(
            spec.batch_size,
            spec.settings.warm_up + spec.settings.steps,
            spec.settings.seed,
        ),
    };
    match spec.measure {
        Purpose::Memory => counted(&engine, job),
        Purpose::Time => timed(&engine, job),
        Purpose::Timeline(_) => backend::run(&engine, job),
    }
}

/// Whether bytes are counted where time is taken. With fusion they are not: it costs a little.
/// Without, where a step is several times as long, both are taken on the metered backend, which
/// spares the build much of its code.
pub fn counts_with_time(backend: BackendKind, fusion: bool) -> bool {
    backend.is_on_heap() || !fusion
}

/// On the backend as it comes, if it does not count.
fn timed<J: Job>(engine: &Engine, job: J) -> Result<J::Output> {
    match engine.backend {
        #[cfg(feature = "wgpu")]
        BackendKind::Wgpu if engine.fusion => {
            backend::on::<burn::backend::Wgpu, J>(engine, job, |_| None)
        }
        #[cfg(feature = "cuda")]
        BackendKind::Cuda if engine.fusion => {
            backend::on::<burn::backend::Cuda, J>(engine, job, |_| None)
        }
        _ => counted(engine, job),
    }
}

/// On a backend that counts and that nobody can record: to be recordable costs a little, too.
fn counted<J: Job>(engine: &Engine, job: J) -> Result<J::Output> {
    match engine.backend {
        #[cfg(feature = "flex")]
        BackendKind::Flex => backend::on::<burn::backend::Flex, J>(engine, job, backend::heap),
        #[cfg(feature = "wgpu")]
        BackendKind::Wgpu if !engine.fusion => {
            let memory = backend::metered::<MeteredWgpuUnfused>;
            backend::on::<MeteredWgpuUnfused, J>(engine, job, memory)
        }
        #[cfg(feature = "cuda")]
        BackendKind::Cuda if !engine.fusion => {
            let memory = backend::metered::<MeteredCudaUnfused>;
            backend::on::<MeteredCudaUnfused, J>(engine, job, memory)
        }
        _ => backend::run(engine, job),
    }
}

struct Measure<'a, W> {
    spec: &'a Spec,
    work: &'a W,
    batches: Vec<HostBatch>,
}

impl<W: Workload> Job for Measure<'_, W> {
    type Output = Measured;

    fn plain<B: AutodiffBackend>(
        self,
        device: Device<B>,
        memory: Option<Memory>,
    ) -> Result<Measured> {
        let optimizer = Box::new(AdamConfig::new().init::<B, W::Model<B>>().recorded());
        self.run::<B>(device, memory, optimizer, None)
    }

    fn release<B: ReleaseBackend>(
        self,
        device: Device<B>,
        memory: Option<Memory>,
    ) -> Result<Measured> {
        let adam = AdamConfig::new().init::<B, W::Model<B>>().recorded();
        let optimizer: Box<dyn Stepper<W::Model<B>, B>> = match self.spec.mode {
            Mode::Plain | Mode::Unarmed => Box::new(adam),
            Mode::Release | Mode::Ideal => Box::new(adam.with_gradient_release()),
        };
        let discard = (self.spec.mode == Mode::Ideal).then(stepper::discard);
        self.run::<B>(device, memory, optimizer, discard)
    }
}

/// What a step came to.
#[derive(Default)]
struct Taken {
    seconds: f64,
    loss: f64,
}

impl<W: Workload> Measure<'_, W> {
    /// `discard`: what takes the optimizer's place in the one step that is measured for the floor.
    fn run<B: AutodiffBackend>(
        self,
        device: Device<B>,
        mut memory: Option<Memory>,
        mut optimizer: Box<dyn Stepper<W::Model<B>, B>>,
        discard: Option<Box<dyn Stepper<W::Model<B>, B>>>,
    ) -> Result<Measured> {
        let spec = self.spec;
        let largest = spec.model.largest_param() as u64;
        if let Some(memory) = &memory {
            memory.reset_peak();
        }
        B::seed(&device, spec.settings.seed);
        let mut model = self.work.init::<B>(&device);
        // Parameters are drawn when first looked at: look now, in the order of the model.
        let parameters = model.num_params() as u64;

        let mut number = 0;
        let mut next = || {
            number += 1;
            number - 1
        };
        for _ in 0..spec.settings.warm_up {
            (model, _) = self.step(model, optimizer.as_mut(), next(), &device, &mut ())?;
        }
        let warm_up_peak = memory.as_ref().map(|memory| memory.peak().in_use);
        if let Some(memory) = &memory {
            memory.reset_peak();
        }
        let mut taken = Taken::default();
        let mut step_seconds = Vec::with_capacity(spec.settings.steps);
        let mut recording = None;
        for left in (1..=spec.settings.steps).rev() {
            if let (Purpose::Timeline(plan), timeline::STEPS) = (&spec.measure, left) {
                recording = Some(plan.start(memory.clone())?);
            }
            (model, taken) = self.step(model, optimizer.as_mut(), next(), &device, &mut ())?;
            step_seconds.push(taken.seconds);
        }
        if let Some(recording) = recording {
            recording.finish().context("no memory timeline")?;
            // Their peaks are in the recording.
            memory = None;
        }
        let mut peak = memory.as_ref().map(Memory::peak);
        if let (Some(memory), Some(peak), Some(mut discard)) = (&memory, &mut peak, discard) {
            // The optimizer's state stays alive, as it would, and nobody steps.
            memory.reset_peak();
            (model, _) = self.step(model, discard.as_mut(), next(), &device, &mut ())?;
            *peak = memory.peak();
            peak.in_use += 4 * largest;
        }
        let weights_digest = digest::weights(&model);

        let bytes = match (memory, peak, warm_up_peak) {
            (Some(memory), Some(peak), Some(warm_up_peak)) => {
                let mut stages = Stages::new(&memory);
                (model, _) = self.step(model, optimizer.as_mut(), next(), &device, &mut stages)?;
                let [before, forward, backward, step] = stages.taken;
                let kept = memory.in_use();
                drop(optimizer);
                Some(Bytes {
                    peak_bytes: peak.in_use,
                    peak_reserved_bytes: peak.reserved,
                    warm_up_peak_bytes: warm_up_peak,
                    optimizer_state_bytes: kept - memory.in_use(),
                    live_before: before.live,
                    live_after_forward: forward.live,
                    live_after_backward: backward.live,
                    live_after_step: step.live,
                    peak_in_forward: forward.peak,
                    peak_in_backward: backward.peak,
                    peak_in_step: step.peak,
                })
            }
            _ => None,
        };
        drop(model);
        Ok(Measured {
            backend: B::name(&device),
            parameters,
            largest_parameter: largest,
            step_seconds,
            final_loss: taken.loss,
            weights_digest,
            memory: bytes,
        })
    }

    /// One step as users write it.
    fn step<B: AutodiffBackend>(
        &self,
        mut model: W::Model<B>,
        optimizer: &mut dyn Stepper<W::Model<B>, B>,
        number: usize,
        device: &Device<B>,
        watch: &mut dyn Watch,
    ) -> Result<(W::Model<B>, Taken)> {
        let rate = self.spec.settings.learning_rate;
        watch.ends(Stage::Before);

        let start = Instant::now();
        model = optimizer.arm(rate, model)?;
        let (loss, value) = forward(&model, || {
            let batch = self.batches[number % self.batches.len()].clone();
            let loss = W::loss(&model, batch, device);
            let value = loss.clone().into_scalar().elem::<f64>();
            (loss, value)
        });
        watch.ends(Stage::Forward);
        let grads = GradientsParams::from_grads(backward(|| loss.backward()), &model);
        watch.ends(Stage::Backward);
        model = optimizer.step(rate, model, grads)?;
        B::sync(device).context("the device failed")?;
        let seconds = start.elapsed().as_secs_f64();
        watch.ends(Stage::Step);

        let taken = Taken {
            seconds,
            loss: value,
        };
        Ok((model, taken))
    }
}

#[derive(Clone, Copy)]
enum Stage {
    Before,
    Forward,
    Backward,
    Step,
}

/// Somebody who looks at a step from outside.
trait Watch {
    fn ends(&mut self, stage: Stage);
}

/// Nobody: the step is as users write it.
impl Watch for () {
    fn ends(&mut self, _stage: Stage) {}
}

#[derive(Clone, Copy, Default)]
struct Seen {
    live: u64,
    peak: u64,
}

/// Counts the bytes at the end of each stage, and the most within it.
struct Stages<'a> {
    memory: &'a Memory,
    taken: [Seen; 4],
}

impl<'a> Stages<'a> {
    fn new(memory: &'a Memory) -> Self {
        Self {
            memory,
            taken: Default::default(),
        }
    }
}

impl Watch for Stages<'_> {
    fn ends(&mut self, stage: Stage) {
        // Reading what lives also has everything done that is queued.
        let live = self.memory.in_use();
        self.taken[stage as usize] = Seen {
            live,
            peak: self.memory.peak().in_use,
        };
        self.memory.reset_peak();
    }
}

//! Measures a run, inside its process.

use crate::discard::discard;
use crate::optimizer;
use crate::results::{Checkpointing, LinearGradient, Measured, Mode};
use crate::spec::{Purpose, Spec};
use crate::stages::{Stage, StageObserver, Stages, StepResult};
use crate::stepper::Stepper;
use crate::timeline;
use crate::workload::{HostBatch, Workload};
use anyhow::{Context, Result, ensure};
use burn::module::Module;
use burn::optim::GradientsParams;
use burn::tensor::backend::AutodiffBackend;
use burn::tensor::{Device, ElementConversion};
use burn_gradient_release::{Recompute, ReleaseBackend};
#[cfg(feature = "cuda")]
use burn_gradient_release_device_memory::MeteredCudaUnfused;
#[cfg(feature = "wgpu")]
use burn_gradient_release_device_memory::MeteredWgpuUnfused;
#[cfg(feature = "flex")]
use burn_gradient_release_flat_linear::FlatLinear;
use burn_gradient_release_optim::LeanBackend;
#[cfg(feature = "flex")]
use burn_gradient_release_timeline::Recorded;
use burn_gradient_release_timeline::{backward, forward};
use std::time::Instant;
use vit_0_21::backend::{self, Job};
use vit_0_21::config::{self, BackendKind, Engine, OptimizerKind};
use vit_0_21::digest;
use vit_0_21::memory::Memory;

/// Measures one run.
pub fn run<W: Workload>(spec: &Spec, work: &W) -> Result<Measured> {
    let engine = Engine {
        backend: spec.backend,
        fusion: spec.fusion,
        mode: match spec.mode {
            Mode::Plain => config::Mode::Plain,
            Mode::Release | Mode::Unarmed | Mode::Ideal => config::Mode::Release,
        },
        checkpointing: spec
            .checkpointing
            .on_burn_0_21()
            .context("scopes in scopes are measured on Burn 0.22")?,
        activation_budget: None,
        optimizer: spec.arithmetic.optimizer.unwrap_or(W::OPTIMIZER),
    };
    let linear = spec.arithmetic.linear;
    // As `plan` has it.
    ensure!(
        linear == LinearGradient::Default || spec.backend == BackendKind::Flex,
        "flat linear layers are measured on flex only"
    );
    let job = Measure {
        spec,
        work,
        optimizer: engine.optimizer,
        recompute: engine.recompute(),
        // Made here, before bytes are counted.
        batches: work.batches(
            spec.batch_size,
            spec.settings.warm_up + spec.settings.steps,
            spec.settings.seed,
        ),
    };
    match spec.measure {
        Purpose::Memory => counted(&engine, linear, job),
        Purpose::Time => timed(&engine, linear, job),
        Purpose::Timeline(_) => recorded(&engine, linear, job),
    }
}

/// Runs the job on a backend that can be recorded.
fn recorded<J: Job>(engine: &Engine, linear: LinearGradient, job: J) -> Result<J::Output> {
    match linear {
        #[cfg(feature = "flex")]
        LinearGradient::Flat => {
            backend::on::<Recorded<FlatLinear<burn::backend::Flex>>, J>(engine, job, backend::heap)
        }
        _ => backend::run(engine, job),
    }
}

/// Runs the job for its time. With fusion that is on the backend that does not count bytes:
/// counting costs a little. Without fusion a step takes several times as long, and the metered
/// backend serves for both, which saves compiling the training once more. `plan` relies on this.
fn timed<J: Job>(engine: &Engine, linear: LinearGradient, job: J) -> Result<J::Output> {
    match engine.backend {
        #[cfg(feature = "wgpu")]
        BackendKind::Wgpu if engine.fusion => {
            backend::on::<burn::backend::Wgpu, J>(engine, job, |_| None)
        }
        #[cfg(feature = "cuda")]
        BackendKind::Cuda if engine.fusion => {
            backend::on::<burn::backend::Cuda, J>(engine, job, |_| None)
        }
        _ => counted(engine, linear, job),
    }
}

/// Runs the job on a backend that counts bytes and cannot be recorded, as recording costs a little
/// too.
#[cfg_attr(not(feature = "flex"), allow(unused_variables))] // Only Flex has the choice.
fn counted<J: Job>(engine: &Engine, linear: LinearGradient, job: J) -> Result<J::Output> {
    match engine.backend {
        #[cfg(feature = "flex")]
        BackendKind::Flex => match linear {
            LinearGradient::Default => {
                backend::on::<burn::backend::Flex, J>(engine, job, backend::heap)
            }
            LinearGradient::Flat => {
                backend::on::<FlatLinear<burn::backend::Flex>, J>(engine, job, backend::heap)
            }
        },
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
    optimizer: OptimizerKind,
    recompute: Recompute,
    batches: Vec<HostBatch>,
}

impl<W: Workload> Job for Measure<'_, W> {
    type Output = Measured;

    fn plain<B: AutodiffBackend<InnerBackend: LeanBackend>>(
        self,
        device: Device<B>,
        memory: Option<Memory>,
    ) -> Result<Measured> {
        let kind = self.optimizer;
        self.run::<B>(
            device,
            memory,
            |model| optimizer::plain::<W, B>(kind, model),
            None,
        )
    }

    fn release<B: ReleaseBackend<InnerBackend: LeanBackend>>(
        self,
        device: Device<B>,
        memory: Option<Memory>,
    ) -> Result<Measured> {
        let (mode, kind, recompute) = (self.spec.mode, self.optimizer, self.recompute);
        let discard = (mode == Mode::Ideal).then(|| discard(recompute));
        let optimizer = |model: &W::Model<B>| match mode {
            Mode::Plain | Mode::Unarmed => optimizer::plain::<W, B>(kind, model),
            Mode::Release | Mode::Ideal => optimizer::release::<W, B>(kind, model, recompute),
        };
        self.run::<B>(device, memory, optimizer, discard)
    }
}

impl<W: Workload> Measure<'_, W> {
    /// `discard` replaces the optimizer in the one step that is measured for the floor.
    fn run<B: AutodiffBackend>(
        self,
        device: Device<B>,
        mut memory: Option<Memory>,
        optimizer: impl FnOnce(&W::Model<B>) -> Box<dyn Stepper<W::Model<B>, B>>,
        discard: Option<Box<dyn Stepper<W::Model<B>, B>>>,
    ) -> Result<Measured> {
        let spec = self.spec;
        let largest = spec.model.largest_param() as u64;
        if let Some(memory) = &memory {
            memory.reset_peak();
        }
        B::seed(&device, spec.settings.seed);
        let recomputes_blocks = spec.checkpointing == Checkpointing::Blocks;
        let mut model = self.work.init::<B>(recomputes_blocks, &device);
        // Burn draws parameters on first access: access them now, in the order of the model.
        let parameters = model.num_params() as u64;
        let mut optimizer = optimizer(&model);

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
        let mut last = StepResult::default();
        let mut step_seconds = Vec::with_capacity(spec.settings.steps);
        let mut recording = None;
        for left in (1..=spec.settings.steps).rev() {
            if let (Purpose::Timeline(timeline), timeline::STEPS) = (&spec.measure, left) {
                recording = Some(timeline.start(memory.clone())?);
            }
            (model, last) = self.step(model, optimizer.as_mut(), next(), &device, &mut ())?;
            step_seconds.push(last.seconds);
        }
        if let Some(recording) = recording {
            recording.finish().context("no memory timeline")?;
            // The recording contains the peaks.
            memory = None;
        }
        let recomputed = optimizer
            .last_step()
            .map(|report| report.recomputed().into());
        let mut peak = memory.as_ref().map(Memory::peak);
        if let (Some(memory), Some(peak), Some(mut discard)) = (&memory, &mut peak, discard) {
            // The optimizer's state stays alive, as in a training, and no parameter is stepped. In
            // the first step automatic checkpointing learns what to recompute.
            (model, _) = self.step(model, discard.as_mut(), next(), &device, &mut ())?;
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
                let kept = memory.in_use();
                drop(optimizer);
                let state = kept - memory.in_use();
                Some(stages.bytes(peak, warm_up_peak, state))
            }
            _ => None,
        };
        drop(model);
        Ok(Measured {
            backend: B::name(&device),
            parameters,
            largest_parameter: largest,
            step_seconds,
            final_loss: last.loss,
            weights_digest,
            memory: bytes,
            recomputed,
        })
    }

    /// One step as users write it.
    fn step<B: AutodiffBackend>(
        &self,
        mut model: W::Model<B>,
        optimizer: &mut dyn Stepper<W::Model<B>, B>,
        number: usize,
        device: &Device<B>,
        observer: &mut dyn StageObserver,
    ) -> Result<(W::Model<B>, StepResult)> {
        let rate = self.spec.settings.learning_rate;
        observer.ends(Stage::Before);

        let start = Instant::now();
        model = optimizer.arm(rate, model)?;
        let (loss, value) = forward(&model, || {
            let batch = self.batches[number % self.batches.len()].clone();
            let loss = W::loss(&model, batch, self.spec.arithmetic.loss_chunk, device);
            let value = loss.clone().into_scalar().elem::<f64>();
            (loss, value)
        });
        observer.ends(Stage::Forward);
        let grads = GradientsParams::from_grads(backward(|| loss.backward()), &model);
        observer.ends(Stage::Backward);
        model = optimizer.step(rate, model, grads)?;
        B::sync(device).context("the device failed")?;
        let seconds = start.elapsed().as_secs_f64();
        observer.ends(Stage::Step);

        let result = StepResult {
            seconds,
            loss: value,
        };
        Ok((model, result))
    }
}

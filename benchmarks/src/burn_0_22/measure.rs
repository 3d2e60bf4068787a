//! Measures a run on Burn 0.22, inside its process: what [`measure`](crate::measure) does on Burn
//! 0.21.

use super::encoder::{Encoder, LeanEncoder};
use super::gpt::{Gpt, LeanGpt};
use super::optimizer::Stepper;
use super::trainee::{HostBatch, Trainee, draw};
use crate::results::{Checkpointing, LinearGradient, Measured, Operations};
use crate::shape::Shape;
use crate::spec::{Purpose, Spec};
use crate::stages::{Stage, StageObserver, Stages, StepResult};
use anyhow::{Context, Result, bail, ensure};
use burn_0_22::module::Module;
use burn_0_22::optim::GradientsParams;
use burn_0_22::tensor::Device;
use std::time::Instant;
use vit::digest;
use vit::model::{LeanVit, Recomputed, Vit};
use vit_0_21::config::BackendKind;
use vit_0_21::memory::{Heap, Memory};
use vit_0_21::rng::SeededRng;

/// Measures one run.
///
/// # Errors
///
/// The run is none that `plan` asks for, or the training fails.
pub fn run(spec: &Spec) -> Result<Measured> {
    ensure!(
        spec.backend == BackendKind::Flex && spec.arithmetic.linear == LinearGradient::Default,
        "Burn 0.22 is measured on flex only, with its own linear layers"
    );
    ensure!(
        !matches!(spec.measure, Purpose::Timeline(_)),
        "the recorder of memory timelines is for Burn 0.21"
    );
    match (&spec.model, spec.arithmetic.operations) {
        (Shape::Vit(config), Operations::Default) => train::<Vit, _>(spec, config),
        (Shape::Vit(config), Operations::Lean) => train::<LeanVit, _>(spec, config),
        (Shape::Encoder(config), Operations::Default) => train::<Encoder, _>(spec, config),
        (Shape::Encoder(config), Operations::Lean) => train::<LeanEncoder, _>(spec, config),
        (Shape::Gpt(config), Operations::Default) => train::<Gpt, _>(spec, config),
        (Shape::Gpt(config), Operations::Lean) => train::<LeanGpt, _>(spec, config),
    }
}

fn train<M: Module, W: Trainee<M>>(spec: &Spec, work: &W) -> Result<Measured> {
    let device = match spec.checkpointing {
        Checkpointing::None | Checkpointing::Blocks | Checkpointing::Nested => {
            Device::flex().autodiff()
        }
        Checkpointing::Balanced => Device::flex().autodiff().gradient_checkpointing(),
        Checkpointing::Automatic => bail!("burn-lean recomputes what is in a `checkpoint` only"),
    };
    let settings = &spec.settings;
    // Made here, before bytes are counted.
    let steps = settings.warm_up + settings.steps;
    let batches = work.host_batches(spec.batch_size, steps, settings.seed)?;
    let memory = Memory::Heap(Heap::start());

    device.seed(settings.seed);
    let recomputed = match spec.checkpointing {
        Checkpointing::Blocks => Recomputed::Blocks,
        Checkpointing::Nested => Recomputed::Nested,
        _ => Recomputed::Nothing,
    };
    let model = work.build(recomputed, &device);
    draw(&model);
    let parameters = model.num_params() as u64;
    let kind = spec.arithmetic.optimizer.unwrap_or(W::OPTIMIZER);
    let mut training = Training::<M, W> {
        work,
        spec,
        batches,
        device,
        optimizer: Stepper::new(spec.mode, kind, &model)?,
        model: Some(model),
        number: 0,
    };

    for _ in 0..settings.warm_up {
        training.step(&mut ())?;
    }
    let warm_up_peak = memory.peak().in_use;
    memory.reset_peak();
    let mut last = StepResult::default();
    let mut step_seconds = Vec::with_capacity(settings.steps);
    for _ in 0..settings.steps {
        last = training.step(&mut ())?;
        step_seconds.push(last.seconds);
    }
    let peak = memory.peak();
    let weights_digest = digest::weights(training.model()?);

    let mut stages = Stages::new(&memory);
    training.step(&mut stages)?;
    let kept = memory.in_use();
    drop(training.optimizer);
    let state = kept - memory.in_use();
    Ok(Measured {
        backend: format!("{:?}", training.device),
        parameters,
        largest_parameter: spec.model.largest_param() as u64,
        step_seconds,
        final_loss: last.loss,
        weights_digest,
        memory: Some(stages.bytes(peak, warm_up_peak, state)),
        recomputed: None,
    })
}

/// A training and its next step.
struct Training<'a, M: Module, W: Trainee<M>> {
    work: &'a W,
    spec: &'a Spec,
    batches: Vec<HostBatch>,
    device: Device,
    optimizer: Stepper,
    /// None after a step that failed.
    model: Option<M>,
    /// Index of the next step.
    number: usize,
}

impl<M: Module, W: Trainee<M>> Training<'_, M, W> {
    fn model(&self) -> Result<&M> {
        self.model.as_ref().context("a step failed")
    }

    /// One step as users write it.
    fn step(&mut self, observer: &mut dyn StageObserver) -> Result<StepResult> {
        let rate = self.spec.settings.learning_rate;
        let number = self.number;
        self.number += 1;
        let seed = SeededRng::new(&[self.spec.settings.seed, number as u64]).next_u64();
        observer.ends(Stage::Before);

        let start = Instant::now();
        let model = self.model.take().context("a step failed")?;
        let model = self.optimizer.arm(rate, model)?;
        let batch = self.batches[number % self.batches.len()].clone();
        let chunk = self.spec.arithmetic.loss_chunk;
        let loss = self.work.loss_of(&model, batch, chunk, seed, &self.device);
        let value = loss.clone().into_scalar::<f64>();
        observer.ends(Stage::Forward);
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        observer.ends(Stage::Backward);
        let model = self.optimizer.step(rate, model, grads)?;
        self.device.sync().context("the device failed")?;
        let seconds = start.elapsed().as_secs_f64();
        observer.ends(Stage::Step);

        self.model = Some(model);
        Ok(StepResult {
            seconds,
            loss: value,
        })
    }
}

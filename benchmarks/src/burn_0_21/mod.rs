//! The worker for Burn 0.21, where a backend is a type parameter: plain, or with gradient release
//! around it.

mod models;
mod optimizer;

use self::models::{Language, Trainee};
use self::optimizer::{Boxed, Optimizers, Plain, Release};
use anyhow::{Context, Result, bail};
use benchmarks::measure::{Counter, Purpose, Spec, Stage, Training, measure};
use benchmarks::results::Measured;
use benchmarks::shape::{HostBatch, Shape};
use benchmarks::subject::{Burn, Checkpointing, LinearGradient, Mode};
use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::strategy::{
    BalancedCheckpointing, CheckpointStrategy, NoCheckpointing,
};
use burn::optim::GradientsParams;
use burn::tensor::backend::AutodiffBackend;
use burn::tensor::{Device, ElementConversion};
use burn_gradient_release::GradientRelease;
#[cfg(any(feature = "wgpu", feature = "cuda"))]
use burn_gradient_release_device_memory::{DeviceMemory, MeteredBackend};
#[cfg(feature = "cuda")]
use burn_gradient_release_device_memory::{MeteredCuda, MeteredCudaUnfused};
#[cfg(feature = "wgpu")]
use burn_gradient_release_device_memory::{MeteredWgpu, MeteredWgpuUnfused};
#[cfg(feature = "flex")]
use burn_gradient_release_flat_linear::FlatLinear;
use burn_gradient_release_optim::LeanBackend;
use std::time::Instant;
use vit_0_21::memory::Memory;
use vit_0_21::model::{Vit, digest};
use vit_inputs::BackendKind;

/// Measures one run.
///
/// With fusion, the time is that of a backend that does not count bytes, as counting costs a little.
/// Without, a step takes several times as long, and the metered backend serves for both, which saves
/// compiling the training once more: `Subject::counts_for_free` relies on this.
pub(crate) fn run(spec: &Spec, run: &Burn) -> Result<Measured> {
    let for_time = spec.measure == Purpose::Time;
    match (run.backend, run.linear) {
        #[cfg(feature = "flex")]
        (BackendKind::Flex, LinearGradient::Default) => {
            on::<burn::backend::Flex>(spec, run, |_| Some(heap()))
        }
        #[cfg(feature = "flex")]
        (BackendKind::Flex, LinearGradient::Flat) => {
            on::<FlatLinear<burn::backend::Flex>>(spec, run, |_| Some(heap()))
        }
        #[cfg(feature = "wgpu")]
        (BackendKind::Wgpu, LinearGradient::Default) => match (run.fusion, for_time) {
            (true, true) => on::<burn::backend::Wgpu>(spec, run, |_| None),
            (true, false) => on::<MeteredWgpu>(spec, run, metered::<MeteredWgpu>),
            (false, _) => on::<MeteredWgpuUnfused>(spec, run, metered::<MeteredWgpuUnfused>),
        },
        #[cfg(feature = "cuda")]
        (BackendKind::Cuda, LinearGradient::Default) => match (run.fusion, for_time) {
            (true, true) => on::<burn::backend::Cuda>(spec, run, |_| None),
            (true, false) => on::<MeteredCuda>(spec, run, metered::<MeteredCuda>),
            (false, _) => on::<MeteredCudaUnfused>(spec, run, metered::<MeteredCudaUnfused>),
        },
        (backend, linear) => {
            bail!("{backend} with {linear} linear is not measured (for time: {for_time})")
        }
    }
}

#[cfg(feature = "flex")]
fn heap() -> Memory {
    Memory::heap()
}

#[cfg(any(feature = "wgpu", feature = "cuda"))]
fn metered<B: MeteredBackend>(device: &Device<B>) -> Option<Memory> {
    Some(Memory::Device(DeviceMemory::of::<B>(device)))
}

/// Burn's balanced checkpointing is part of the backend. The model recomputes its blocks, and the
/// optimizer what is automatic: Burn's tape keeps all that it is given.
fn on<B: LeanBackend>(
    spec: &Spec,
    run: &Burn,
    memory: impl FnOnce(&Device<B>) -> Option<Memory>,
) -> Result<Measured> {
    let device = Device::<B>::default();
    let memory = memory(&device);
    match run.checkpointing {
        Checkpointing::Balanced => in_mode::<B, BalancedCheckpointing>(spec, run, device, memory),
        _ => in_mode::<B, NoCheckpointing>(spec, run, device, memory),
    }
}

fn in_mode<B: LeanBackend, C: CheckpointStrategy>(
    spec: &Spec,
    run: &Burn,
    device: Device<B>,
    memory: Option<Memory>,
) -> Result<Measured> {
    type Released<B, C> = GradientRelease<Autodiff<B, C>>;
    match run.mode {
        Mode::Plain => model::<Autodiff<B, C>, Plain>(spec, run, device, memory),
        Mode::Unarmed => model::<Released<B, C>, Plain>(spec, run, device, memory),
        Mode::Release | Mode::Ideal => model::<Released<B, C>, Release>(spec, run, device, memory),
    }
}

fn model<B: AutodiffBackend, O: Optimizers<B>>(
    spec: &Spec,
    run: &Burn,
    device: Device<B>,
    memory: Option<Memory>,
) -> Result<Measured> {
    match &spec.case.model {
        Shape::Vit(shape) => train::<B, O, Vit<B>>(spec, run, shape, device, memory),
        Shape::Gpt(shape) | Shape::Encoder(shape) => {
            train::<B, O, Language<B>>(spec, run, shape, device, memory)
        }
    }
}

fn train<B: AutodiffBackend, O: Optimizers<B>, M: Trainee<B>>(
    spec: &Spec,
    run: &Burn,
    shape: &M::Shape,
    device: Device<B>,
    memory: Option<Memory>,
) -> Result<Measured> {
    let settings = spec.settings;
    let steps = settings.warm_up.get() + settings.steps.get();
    // Made here, before bytes are counted.
    let batches = spec
        .case
        .model
        .batches(spec.case.batch_size, steps, settings.seed);
    if let Some(memory) = &memory {
        memory.reset_peak();
    }
    B::seed(&device, settings.seed);
    let model = M::build(shape, run.checkpointing == Checkpointing::Blocks, &device);
    // Burn draws parameters on first access: access them now, in the order of the model.
    let parameters = model.num_params();
    let kind = run.optimizer.unwrap_or(spec.case.model.optimizer());
    let training = Train {
        optimizer: Some(O::optimizer(kind, run, &model)?),
        discard: O::discard,
        kept: None,
        model: Some(model),
        number: 0,
        rate: settings.lr,
        run,
        batches,
        device: device.clone(),
    };
    measure(
        spec,
        memory.as_ref().map(|memory| memory as &dyn Counter),
        B::name(&device),
        parameters,
        training,
    )
}

/// A training and its next step.
struct Train<'a, B: AutodiffBackend, M> {
    run: &'a Burn,
    rate: f64,
    batches: Vec<HostBatch>,
    device: Device<B>,
    optimizer: Option<Boxed<M, B>>,
    /// Makes what takes the place of the optimizer where gradients are discarded.
    discard: fn(&Burn) -> Option<Boxed<M, B>>,
    /// The optimizer whose place was taken.
    kept: Option<Boxed<M, B>>,
    /// None after a step that failed.
    model: Option<M>,
    /// Index of the next step.
    number: usize,
}

impl<B: AutodiffBackend, M: Trainee<B>> Training for Train<'_, B, M> {
    fn step(&mut self, ends: &mut dyn FnMut(Stage)) -> Result<(f64, f64)> {
        let number = self.number;
        self.number += 1;
        let optimizer = self.optimizer.as_mut().context("there is no optimizer")?;
        ends(Stage::Before);

        let start = Instant::now();
        let model = self.model.take().context("a step failed")?;
        let model = optimizer.arm(self.rate, model)?;
        let batch = self.batches[number % self.batches.len()].clone();
        let loss = model.loss(batch, self.run.loss_chunk, &self.device);
        let value = loss.clone().into_scalar().elem::<f64>();
        ends(Stage::Forward);
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        ends(Stage::Backward);
        let model = optimizer.step(self.rate, model, grads)?;
        B::sync(&self.device).context("the device failed")?;
        let seconds = start.elapsed().as_secs_f64();
        ends(Stage::Step);

        self.model = Some(model);
        Ok((seconds, value))
    }

    fn weights_digest(&self) -> Result<String> {
        let model = self.model.as_ref().context("a step failed")?;
        Ok(digest(model))
    }

    fn discard_gradients(&mut self) -> Result<()> {
        let discard = (self.discard)(self.run).context("this mode keeps its gradients")?;
        self.kept = self.optimizer.replace(discard);
        Ok(())
    }

    fn drop_optimizer(&mut self) {
        self.optimizer = None;
        self.kept = None;
    }
}

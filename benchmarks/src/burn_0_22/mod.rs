//! The worker for Burn 0.22, where a backend is no type parameter and gradient release is
//! `burn-lean`.

#[cfg(feature = "cube")]
mod memory;
mod models;
mod optimizer;

use self::models::{Language, LeanLanguage, Trainee, half};
use anyhow::{Context, Result, bail, ensure};
#[cfg(feature = "cube")]
use benchmarks::device::configure;
use benchmarks::measure::{Counter, Purpose, Spec, Stage, Training, measure};
use benchmarks::results::Measured;
use benchmarks::shape::{HostBatch, Shape};
use benchmarks::subject::{Burn, Checkpointing, LinearGradient, Mode, Operations, Pools};
use burn_0_22::optim::{GradientsParams, ModuleOptimizer};
use burn_0_22::tensor::{DType, Device};
#[cfg(feature = "cube")]
use burn_cubecl::cubecl::config::memory::PersistentMemory;
use burn_lean::{
    CastError, EarlyGradients, MixedPrecision, ReleaseError, ReleaseOptimizer, WithGradientRelease,
};
use std::time::Instant;
use vit::model::{LeanVit, Vit, digest, drawn};
use vit_0_21::memory::Memory;
use vit_inputs::BackendKind;
use vit_inputs::SeededRng;

pub(crate) fn run(spec: &Spec, run: &Burn) -> Result<Measured> {
    ensure!(
        run.linear == LinearGradient::Default,
        "Burn 0.22 is measured with its own linear layers"
    );
    let lean = run.operations == Operations::Lean;
    match (&spec.case.model, lean) {
        (Shape::Vit(shape), false) => train::<Vit>(spec, run, shape),
        (Shape::Vit(shape), true) => train::<LeanVit>(spec, run, shape),
        (Shape::Gpt(shape) | Shape::Encoder(shape), false) => train::<Language>(spec, run, shape),
        (Shape::Gpt(shape) | Shape::Encoder(shape), true) => {
            train::<LeanLanguage>(spec, run, shape)
        }
    }
}

/// The device, without autodiff, whose pools are what the run asks for.
fn open(run: &Burn) -> Result<Device> {
    #[cfg(feature = "cube")]
    match run.pools {
        Pools::Default | Pools::Cleanup => {}
        Pools::SizeMatch => burn_lean::reuse_device_memory()?,
        Pools::Disabled => configure(|config| {
            config.memory.persistent_memory = PersistentMemory::Disabled;
        })?,
    }
    Ok(match run.backend {
        #[cfg(feature = "flex")]
        BackendKind::Flex => Device::flex(),
        #[cfg(feature = "wgpu")]
        BackendKind::Wgpu => Device::wgpu(Default::default()),
        #[cfg(feature = "cuda")]
        BackendKind::Cuda => Device::cuda(burn_0_22::tensor::DeviceIndex::Default),
        #[allow(unreachable_patterns)] // With every feature on, no backend remains.
        _ => return Err(run.backend.not_compiled_in()),
    })
}

fn train<M: Trainee>(spec: &Spec, run: &Burn, shape: &M::Shape) -> Result<Measured> {
    let inner = open(run)?;
    let device = inner.clone().autodiff();
    let device = match run.checkpointing {
        Checkpointing::Balanced => device.gradient_checkpointing(),
        Checkpointing::Automatic => bail!("burn-lean recomputes what is in a `checkpoint` only"),
        _ => device,
    };
    let settings = spec.settings;
    let steps = settings.warm_up.get() + settings.steps.get();
    // Made here, before bytes are counted.
    let batches = spec
        .case
        .model
        .batches(spec.case.batch_size, steps, settings.seed);
    let memory: Option<Box<dyn Counter>> = match (spec.measure, run.backend.is_on_heap()) {
        (Purpose::Memory, true) => Some(Box::new(Memory::heap())),
        #[cfg(feature = "cube")]
        (Purpose::Memory, false) => Some(Box::new(memory::DeviceMemory::start(&inner))),
        // Time, or a GPU that this build does not have.
        _ => None,
    };

    device.seed(settings.seed);
    let model = drawn(M::build(shape, run.checkpointing, &device));
    let parameters = model.num_params();
    let kind = run.optimizer.unwrap_or(spec.case.model.optimizer());
    let model = match kind.is_in_half() {
        // But for norms, which stay in f32.
        true => match half(&device) {
            DType::BF16 => MixedPrecision::bf16(),
            _ => MixedPrecision::f16(),
        }
        .cast(model)
        .map_err(CastError::from)?,
        false => model,
    };
    let model = match run.mode {
        Mode::Release => model.apply_reparameterization(EarlyGradients),
        _ => model,
    };
    // A GPU still has the weights from before a cast.
    inner.memory_cleanup();
    let optimizer = optimizer::ordinary(kind, settings.seed, &model);
    let training = Train {
        spec,
        run,
        batches,
        device: device.clone(),
        optimizer: Some(match run.mode {
            Mode::Plain => Optimizer::Plain(optimizer),
            Mode::Release => Optimizer::Release(optimizer.with_gradient_release()),
            Mode::Unarmed | Mode::Ideal => bail!("Burn 0.22 is measured plain and with release"),
        }),
        model: Some(model),
        number: 0,
    };
    let backend = format!("{device:?}");
    measure(spec, memory.as_deref(), backend, parameters, training)
}

enum Optimizer {
    Plain(ModuleOptimizer),
    Release(ReleaseOptimizer),
}

/// A training and its next step.
struct Train<'a, M> {
    spec: &'a Spec,
    run: &'a Burn,
    batches: Vec<HostBatch>,
    device: Device,
    optimizer: Option<Optimizer>,
    /// None after a step that failed.
    model: Option<M>,
    /// Index of the next step.
    number: usize,
}

impl<M: Trainee> Training for Train<'_, M> {
    fn step(&mut self, ends: &mut dyn FnMut(Stage)) -> Result<(f64, f64)> {
        let settings = self.spec.settings;
        let number = self.number;
        self.number += 1;
        let dropout = SeededRng::new(&[settings.seed, number as u64]).next_u64();
        let optimizer = self.optimizer.as_mut().context("there is no optimizer")?;
        ends(Stage::Before);

        let start = Instant::now();
        let model = self.model.take().context("a step failed")?;
        let batch = self.batches[number % self.batches.len()].clone();
        if self.run.pools == Pools::Cleanup && number == 1 {
            self.device.memory_cleanup();
        }
        let loss = model.loss(batch, self.run, dropout, &self.device);
        let value = loss.clone().into_scalar::<f64>();
        ends(Stage::Forward);
        let model = match optimizer {
            Optimizer::Plain(optimizer) => {
                let grads = GradientsParams::from_grads(loss.backward(), &model);
                ends(Stage::Backward);
                optimizer.step(settings.lr, model, grads)
            }
            Optimizer::Release(optimizer) => {
                let stepped = optimizer.try_backward(settings.lr, loss, model);
                ends(Stage::Backward);
                stepped.map_err(ReleaseError::from)?
            }
        };
        self.device.sync().context("the device failed")?;
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
        bail!("the optimizer that drops gradients is written for Burn 0.21")
    }

    fn drop_optimizer(&mut self) {
        self.optimizer = None;
    }
}

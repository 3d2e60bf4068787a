//! The training strategy, and its settings.

use burn::tensor::Device;

use super::StepMonitor;
use super::processes::Processes;
#[cfg(feature = "data-parallel")]
use crate::DataParallel;

/// Trains on one device with gradient release, and is otherwise Burn's strategy for one device.
///
/// Each iteration moves the scheduler on, runs the model's `TrainStep::step`, which leaves its loss with
/// [`output`](super::output()), and runs backward, in which the parameters are stepped. A step that runs
/// backward itself trains as with plain Burn, and a warning in the log says so once. With gradients
/// accumulated over `n` iterations, all but the last of a window add theirs to the sums inside backward,
/// and the last one steps with the sums. An incomplete window at the end of an epoch is stepped with, as
/// in Burn 0.22.
///
/// `TrainStep::optimize` is left out, also for a step that runs backward itself: a model that overrides
/// it is refused in the first iteration. What it does is seen by one call for a copy of the model, whose
/// weights and gradients are numbers to recognize; an override that does something else only later, or to
/// what is not a parameter of the model, is not noticed.
///
/// # Example
///
/// ```no_run
/// # use std::sync::Arc;
/// # use burn::data::dataloader::DataLoader;
/// # use burn::optim::AdamConfig;
/// # use burn::tensor::Device;
/// # use burn::train::{InferenceStep, LearnerModel, SupervisedTraining, TrainStep};
/// use burn_lean::train::{GradientReleaseStrategy, release_learner};
///
/// # fn train<M: LearnerModel>(
/// #     model: M,
/// #     train: Arc<dyn DataLoader<<M as TrainStep>::Input>>,
/// #     valid: Arc<dyn DataLoader<<M as InferenceStep>::Input>>,
/// # ) {
/// let device = Device::flex().autodiff();
/// let optim = AdamConfig::new().init();
/// let result = SupervisedTraining::new("artifacts", train, valid)
///     .with_training_strategy(GradientReleaseStrategy::new(device).into())
///     .num_epochs(10)
///     .launch(release_learner(model, optim, 1e-3));
/// # let _ = result.model;
/// # }
/// ```
///
/// # Panics
///
/// Training panics, as Burn's traits leave no other way:
///
/// - with a `Learner` that [`release_learner`](crate::train::release_learner) has not made;
/// - with an optimizer that [needs two passes](crate::ReleaseOptimizer::needs_two_passes), and a
///   strategy without [`with_two_passes`](Self::with_two_passes);
/// - with a model that overrides `TrainStep::optimize`;
/// - where gradient release refuses a step, with the text of the [`ReleaseError`](crate::ReleaseError).
#[derive(Clone, Debug)]
pub struct GradientReleaseStrategy {
    pub(super) device: Device,
    pub(super) monitor: StepMonitor,
    pub(super) processes: Processes,
}

/// A [`GradientReleaseStrategy`] [with two passes](GradientReleaseStrategy::with_two_passes).
#[derive(Clone, Debug)]
pub struct TwoPassStrategy(pub(super) GradientReleaseStrategy);

impl GradientReleaseStrategy {
    /// Trains and validates on this device.
    ///
    /// Burn tells a strategy nothing of `SupervisedTraining::gradient_checkpointing`: ask the
    /// device for it, `device.autodiff().gradient_checkpointing()`.
    pub fn new(device: Device) -> Self {
        let device = match device.is_autodiff() {
            true => device,
            false => device.autodiff(),
        };
        Self {
            device,
            monitor: StepMonitor::new(),
            processes: Processes::default(),
        }
    }

    /// Reports each step to the metrics made with this monitor.
    pub fn with_monitor(mut self, monitor: StepMonitor) -> Self {
        self.monitor = monitor;
        self
    }

    /// Trains replicas of the model, one in each process, with the mean of their gradients.
    ///
    /// Every process builds the same learner, with the same model ([`DataParallel::broadcast`]) or
    /// the same checkpoint, and a data loader with its share of the items. All of them iterate
    /// equally often. The first one validates, stops early and saves checkpoints, with the
    /// optimizer states of all. Each process has its own folder of logs. Its training metrics cover
    /// its own share. At the end of an epoch they compare what is trained, and all take over the
    /// running statistics of the first one. An interruption of any of them stops all after the
    /// iteration.
    ///
    /// # Panics
    ///
    /// Training panics where the replicas do not agree, with the text of the
    /// [`ReplicaError`](crate::ReplicaError); that ends all of them.
    #[cfg(feature = "data-parallel")]
    pub fn with_replicas(mut self, parallel: DataParallel) -> Self {
        self.processes.parallel = Some(parallel);
        self
    }

    /// Runs the model's `TrainStep` twice for each optimizer step: once to measure the norm of all
    /// gradients, once to step. Clipping by the global norm and ZClip are refused without this. With
    /// a [`LossScaler`](crate::LossScaler), the whole step is skipped if a gradient has overflowed.
    ///
    /// Batches are cloned. Both runs have the same random numbers and running statistics (see
    /// [`TwoPasses`](crate::TwoPasses)); what the first one returns is dropped.
    ///
    /// Comes after the other settings.
    pub fn with_two_passes(self) -> TwoPassStrategy {
        TwoPassStrategy(self)
    }
}

//! The training strategy.

use std::marker::PhantomData;
use std::sync::Arc;

use burn::tensor::Device;
use burn::train::{
    Learner, LearnerModel, SupervisedLearningStrategy, SupervisedTrainingEventProcessor,
    TrainLoader, TrainingComponents, TrainingStrategy, ValidLoader,
};

use super::StepMonitor;
use super::events::{Events, Split};
use super::learner::Parts;
use super::passes::{InOnePass, InTwoPasses, Passes};
use super::processes::Processes;
use super::settings::Settings;
use super::stepping::{Batch, Stepping};
#[cfg(feature = "data-parallel")]
use crate::DataParallel;
use crate::FirstPass;

/// Trains on one device with gradient release, and is otherwise Burn's strategy for one device.
///
/// Each iteration moves the scheduler on, arms the model with that rate, runs the model's
/// `TrainStep::step`, in whose backward the parameters are stepped, and lets `TrainStep::optimize`
/// finish the step. With gradients accumulated over `n` iterations, all but the last of a window
/// add theirs to the sums inside backward, and the last one steps with the sums. An incomplete
/// window at the end of an epoch is stepped with, as in Burn 0.22.
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
/// - where gradient release refuses a step, as after a `TrainStep` that ran backward twice, with
///   the text of the [`ReleaseError`](crate::ReleaseError).
#[derive(Clone, Debug)]
pub struct GradientReleaseStrategy<P = InOnePass> {
    device: Device,
    monitor: StepMonitor,
    first_pass: Option<FirstPass>,
    processes: Processes,
    passes: PhantomData<fn(P)>,
}

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
            first_pass: None,
            processes: Processes::default(),
            passes: PhantomData,
        }
    }

    /// Runs the model's `TrainStep` twice for each optimizer step: once to measure the norm of all
    /// gradients, once to step. Clipping by the global norm and ZClip are refused without this. With
    /// a [`LossScaler`](crate::LossScaler), the whole step is skipped if a gradient has overflowed.
    ///
    /// Batches are cloned. Both runs have the same random numbers and running statistics (see
    /// [`TwoPasses`](crate::TwoPasses)); what the first one returns is dropped.
    pub fn with_two_passes(self) -> GradientReleaseStrategy<InTwoPasses> {
        GradientReleaseStrategy {
            device: self.device,
            monitor: self.monitor,
            first_pass: self.first_pass,
            processes: self.processes,
            passes: PhantomData,
        }
    }
}

impl<P> GradientReleaseStrategy<P> {
    /// Reports each step to the metrics made with this monitor.
    pub fn with_monitor(mut self, monitor: StepMonitor) -> Self {
        self.monitor = monitor;
        self
    }

    /// Trains replicas of the model, one in each process, with the mean of their gradients.
    ///
    /// Every process builds the same learner, with the same model
    /// ([`DataParallel::broadcast`]) or the same checkpoint, and a data loader with its share of the
    /// items. All of them iterate equally often. The first one validates, stops early and saves
    /// checkpoints, with the optimizer states of all. Each trains with a folder of its own for its
    /// logs; its metrics of training are those of its share. At the end of an epoch they compare what
    /// is trained, and all take over the running statistics of the first one. An interruption of any
    /// of them stops all after the iteration.
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

    /// Chooses when parameters are stepped in the first pass: see [`FirstPass`]. A run that is
    /// resumed ends with the bits of the run that was not interrupted with
    /// [`FirstPass::Exact`]; the default needs less memory in that pass. Without this, the optimizer
    /// [chooses](crate::ReleaseOptimizer::with_first_pass).
    pub fn with_first_pass(mut self, first_pass: FirstPass) -> Self {
        self.first_pass = Some(first_pass);
        self
    }
}

impl<M: LearnerModel, P: Passes<Batch<M>>> From<GradientReleaseStrategy<P>>
    for TrainingStrategy<M>
{
    fn from(strategy: GradientReleaseStrategy<P>) -> Self {
        Self::Custom(Arc::new(Settings {
            device: strategy.device,
            monitor: strategy.monitor,
            first_pass: strategy.first_pass,
            processes: strategy.processes,
            has_two_passes: P::ARE_TWO,
            again: P::again,
        }))
    }
}

impl<M: LearnerModel> SupervisedLearningStrategy<M> for Settings<Batch<M>> {
    fn fit(
        &self,
        components: TrainingComponents<M>,
        mut learner: Learner<M>,
        dataloader_train: TrainLoader<M>,
        dataloader_valid: ValidLoader<M>,
        starting_epoch: usize,
    ) -> (M, SupervisedTrainingEventProcessor<M>) {
        let dataloader_train = dataloader_train.to_device(&self.device);
        let dataloader_valid = dataloader_valid.to_device(&self.device.clone().inner());
        let store = components.event_store;
        let mut parts = Parts::of(&mut learner, &store, &self.device).expect(
            "gradient release: Burn keeps the optimizer of a `Learner` private; make the learner \
             with `burn_lean::train::release_learner` in place of `Learner::new`",
        );
        let model = learner.model();
        // It would hold the first weights.
        drop(learner);
        assert!(
            self.has_two_passes || !parts.optim.needs_two_passes(),
            "gradient release: clipping by a norm of all gradients needs two passes; add \
             `with_two_passes()` to the `GradientReleaseStrategy`"
        );
        if let Some(first_pass) = self.first_pass {
            parts.optim = parts.optim.with_first_pass(first_pass);
        }
        let model = model.fork(&self.device);
        let processes = &self.processes;
        parts.optim = processes.with_reduction(parts.optim, &model);
        let mut stepping = Stepping::new(self, model, parts, components.grad_accumulation);
        let mut checkpointer = components.checkpointer;
        let mut early_stopping = components.early_stopping;
        let interrupter = components.interrupter.clone();
        let mut events = Events {
            processor: components.event_processor,
            interrupter: components.interrupter,
        };

        for epoch in starting_epoch..=components.num_epochs {
            events.start(Split::Train, epoch, dataloader_train.num_items());
            stepping.train(&dataloader_train, epoch, &mut events);
            events.end(Split::Train, epoch);
            let at = || format!("the end of the batches of epoch {epoch}");
            if processes.should_stop(at, &interrupter) {
                if let Some(interruption) = interrupter.interruption() {
                    let reason = interruption.reason.as_deref().unwrap_or("reason unknown");
                    log::info!("Training interrupted: {reason}");
                }
                break;
            }

            if processes.is_first() {
                events.start(Split::Valid, epoch, dataloader_valid.num_items());
                stepping.validate(&dataloader_valid, epoch, &mut events);
                events.end(Split::Valid, epoch);
            }
            events.end_epoch(epoch);
            if checkpointer.is_some() || early_stopping.is_some() {
                events.flush();
            }
            let at = || format!("the end of the validation of epoch {epoch}");
            if processes.should_stop(at, &interrupter) {
                break;
            }

            if let Some(checkpointer) = &mut checkpointer
                && let Some(learner) = stepping.learner()
            {
                checkpointer.checkpoint(&learner, epoch, &store);
            }
            if let Some(early_stopping) = &mut early_stopping {
                let is_done = processes.is_first() && early_stopping.should_stop(epoch, &store);
                if processes.first_says(|| format!("the end of epoch {epoch}"), is_done) {
                    break;
                }
            }
        }

        (stepping.into_model(), events.processor)
    }
}

//! The training strategy.

mod stepping;

use std::{any::TypeId, marker::PhantomData, sync::Arc};

use burn::{
    data::dataloader::Progress,
    lr_scheduler::LrScheduler,
    module::AutodiffModule,
    optim::SimpleOptimizer,
    tensor::{
        Device,
        backend::{Backend, DeviceOps},
    },
    train::{
        EventProcessorTraining, InferenceStep, Interrupter, Learner, LearnerEvent,
        LearningComponentsMarker, LearningComponentsTypes, SupervisedLearningStrategy,
        SupervisedTrainingEventProcessor, TrainLoader, TrainStep, TrainingComponents,
        TrainingStrategy, ValidLoader,
    },
};
use burn_gradient_release::{
    ModuleLrScheduler, Recompute, ReleaseAccumulator, ReleaseBackend, ReleaseOptimizer,
};
use burn_gradient_release_data_parallel::{DataParallel, ReplicaError};

use self::stepping::Stepping;
use crate::{
    StepMonitor,
    passes::{InOnePass, InTwoPasses, Passes},
    replication::{OneProcess, Replication},
};

/// What the reason begins with that a replica's interrupter gives once another replica was
/// interrupted. A colon and the reason there follow.
pub const INTERRUPTED_ELSEWHERE: &str = "Another replica was interrupted";

/// The components of a learner whose optimizer releases gradients.
type Components<B, LR, M, O> = LearningComponentsMarker<B, LR, M, ReleaseOptimizer<O, M, B>>;

/// Trains on one device with gradient release; else as Burn's `SingleDeviceTrainingStrategy`.
///
/// Each iteration steps the scheduler, arms the model with that rate, runs the model's
/// [`TrainStep`], in whose backward the parameters are stepped, and lets
/// [`TrainStep::optimize`] finish the step. With gradients accumulated over `n` iterations, the
/// first `n - 1` add theirs to the sums inside backward, and the last one steps with the sums.
///
/// # Example
///
/// ```no_run
/// # use burn::{
/// #     backend::{Autodiff, Flex},
/// #     data::dataloader::DataLoader,
/// #     module::{AutodiffModule, Module},
/// #     optim::AdamConfig,
/// #     train::{InferenceStep, Learner, SupervisedTraining, TrainStep},
/// # };
/// # use std::sync::Arc;
/// use burn_gradient_release::{GradientRelease, WithGradientRelease};
/// use burn_gradient_release_train::GradientReleaseStrategy;
///
/// type B = GradientRelease<Autodiff<Flex>>;
///
/// # fn train<M>(
/// #     model: M,
/// #     train: Arc<dyn DataLoader<B, M::Input>>,
/// #     valid: Arc<dyn DataLoader<Flex, <M::InnerModule as InferenceStep>::Input>>,
/// # ) where
/// #     M: TrainStep + AutodiffModule<B> + std::fmt::Display + 'static,
/// #     M::InnerModule: InferenceStep,
/// # {
/// let device = Default::default();
/// let optim = AdamConfig::new().init().with_gradient_release();
/// let result = SupervisedTraining::new("artifacts", train, valid)
///     .with_training_strategy(GradientReleaseStrategy::new(device).into())
///     .num_epochs(10)
///     .launch(Learner::new(model, optim, 1e-3));
/// # let _ = result.model;
/// # }
/// ```
///
/// # Panics
///
/// Training panics where gradient release refuses a step, as after a [`TrainStep`] that ran
/// backward twice, with the text of the
/// [`ReleaseError`](burn_gradient_release::ReleaseError): Burn's trait leaves no other way.
#[derive(Clone, Debug)]
pub struct GradientReleaseStrategy<B: Backend, P = InOnePass, R = OneProcess> {
    device: Device<B>,
    monitor: StepMonitor,
    recompute: Option<Recompute>,
    parallel: Option<DataParallel>,
    types: PhantomData<fn(P, R)>,
}

impl<B: Backend> GradientReleaseStrategy<B> {
    /// Trains and validates on this device.
    pub fn new(device: Device<B>) -> Self {
        Self {
            device,
            monitor: StepMonitor::new(),
            recompute: None,
            parallel: None,
            types: PhantomData,
        }
    }
}

impl<B: Backend, R> GradientReleaseStrategy<B, InOnePass, R> {
    /// Runs the model's [`TrainStep`] twice for each optimizer step: once to measure the norm of
    /// all gradients, once to step. Rules of [`NormClipping`](burn_gradient_release::NormClipping)
    /// that need two passes are refused without this.
    ///
    /// Batches are cloned. Both runs have the same random numbers and running means
    /// ([`TwoPasses`](burn_gradient_release::TwoPasses)); what the first one returns is dropped.
    pub fn with_two_passes(self) -> GradientReleaseStrategy<B, InTwoPasses, R> {
        GradientReleaseStrategy {
            device: self.device,
            monitor: self.monitor,
            recompute: self.recompute,
            parallel: self.parallel,
            types: PhantomData,
        }
    }
}

impl<B: Backend, P> GradientReleaseStrategy<B, P> {
    /// Trains replicas of the model, one in each process, with the mean of their gradients.
    ///
    /// Every process builds the same learner, with the same model ([`DataParallel::broadcast`]) or
    /// the same checkpoint, and with a data loader that gives it its share of every batch
    /// ([`ShareBatcher`](burn_gradient_release_data_parallel::ShareBatcher)). All of them iterate equally often. The
    /// first one validates, decides on early stopping, and saves checkpoints, with the optimizer
    /// states of all; its metrics of training are those of whole batches
    /// ([`GatherOutput`](crate::GatherOutput)). Before a validation, all of them take over its running
    /// statistics. An interruption of any of them stops all after the iteration.
    ///
    /// The optimizer of the learner need not know of the others. Give the processes folders of
    /// their own, or let only the first one log.
    ///
    /// # Panics
    ///
    /// Training panics where the replicas do not agree, with the text of the
    /// [`ReplicaError`](burn_gradient_release_data_parallel::ReplicaError); that ends all of them.
    pub fn with_replicas(
        self,
        parallel: DataParallel,
    ) -> GradientReleaseStrategy<B, P, DataParallel> {
        GradientReleaseStrategy {
            device: self.device,
            monitor: self.monitor,
            recompute: self.recompute,
            parallel: Some(parallel),
            types: PhantomData,
        }
    }
}

impl<B: Backend, P, R> GradientReleaseStrategy<B, P, R> {
    /// Recomputes activations in the backward passes of the training: see [`Recompute`]. Without
    /// this call, the setting of the optimizer counts.
    ///
    /// # Panics
    ///
    /// If it is a [budget](Recompute::Budget) of no bytes.
    pub fn with_recompute(mut self, recompute: Recompute) -> Self {
        self.recompute = Some(recompute.checked());
        self
    }

    /// Tells the metrics made with this monitor what each step did.
    pub fn with_monitor(mut self, monitor: StepMonitor) -> Self {
        self.monitor = monitor;
        self
    }
}

impl<B, P, R, LR, M, O> From<GradientReleaseStrategy<B, P, R>>
    for TrainingStrategy<Components<B, LR, M, O>>
where
    B: ReleaseBackend,
    P: Passes<M::Input>,
    R: Replication<M::Output>,
    LR: LrScheduler + 'static,
    M: TrainStep + AutodiffModule<B> + core::fmt::Display + 'static,
    M::InnerModule: InferenceStep,
    O: SimpleOptimizer<B::InnerBackend> + 'static,
{
    fn from(strategy: GradientReleaseStrategy<B, P, R>) -> Self {
        Self::Custom(Arc::new(Strategy {
            device: strategy.device,
            monitor: strategy.monitor,
            recompute: strategy.recompute,
            parallel: strategy.parallel,
            again: P::again,
            gather: R::gather,
        }))
    }
}

/// A [`GradientReleaseStrategy`] as burn-train sees it: one type for any number of passes and
/// replicas there are, so that a training is compiled once.
struct Strategy<B: Backend, I, T> {
    device: Device<B>,
    monitor: StepMonitor,
    recompute: Option<Recompute>,
    parallel: Option<DataParallel>,
    /// The batch for the second pass, if there is one.
    again: fn(&I) -> Option<I>,
    /// The outputs of all replicas.
    gather: fn(&DataParallel, T) -> Result<T, ReplicaError>,
}

impl<B, LR, M, O> SupervisedLearningStrategy<Components<B, LR, M, O>>
    for Strategy<B, M::Input, M::Output>
where
    B: ReleaseBackend,
    LR: LrScheduler + 'static,
    M: TrainStep + AutodiffModule<B> + core::fmt::Display + 'static,
    M::InnerModule: InferenceStep,
    O: SimpleOptimizer<B::InnerBackend> + 'static,
{
    fn fit(
        &self,
        components: TrainingComponents<Components<B, LR, M, O>>,
        mut learner: Learner<Components<B, LR, M, O>>,
        dataloader_train: TrainLoader<Components<B, LR, M, O>>,
        dataloader_valid: ValidLoader<Components<B, LR, M, O>>,
        starting_epoch: usize,
    ) -> (M, SupervisedTrainingEventProcessor<Components<B, LR, M, O>>) {
        let dataloader_train = dataloader_train.to_device(&self.device);
        let dataloader_valid = dataloader_valid.to_device(self.device.inner());
        learner.fork(&self.device);
        let mut processor = components.event_processor;
        let mut checkpointer = components.checkpointer;
        let mut early_stopping = components.early_stopping;
        let interrupter = components.interrupter;
        let mut optim = ReleaseOptimizer::handle_of(&learner)
            .expect("cloning a learner clones its optimizer, once");
        // Burn's `Learner` hands out the rate of the base alone.
        let is_by_module = TypeId::of::<LR>() == TypeId::of::<ModuleLrScheduler>();
        assert!(
            !is_by_module || optim.learning_rates().is_some(),
            "gradient release: the `Learner` has a `ModuleLrScheduler`, and its optimizer would not read \
             the rates of the groups; build it `with_learning_rates(scheduler.rates())`, or, without \
             groups, give the `Learner` the scheduler of the base"
        );
        if let Some(recompute) = self.recompute {
            optim = optim.with_recompute(recompute);
        }
        if let Some(parallel) = &self.parallel {
            expect(parallel.verify(&learner.model()));
            optim = optim.with_reduction(Arc::new(parallel.clone()));
        }
        let mut stepping = Stepping {
            strategy: self,
            learner,
            accumulator: ReleaseAccumulator::new().with_recompute(optim.recompute()),
            optim,
            grad_accumulation: components.grad_accumulation,
        };

        if starting_epoch > 1 {
            // Burn's event store counts the epochs it has seen the end of, and would file the first
            // epoch of a resumed run under 1.
            let done = starting_epoch - 1;
            processor.process_train(LearnerEvent::EndEpoch(done));
            processor.process_valid(LearnerEvent::EndEpoch(done));
        }

        for epoch in starting_epoch..=components.num_epochs {
            let progress = Progress::new(epoch, components.num_epochs);
            log::info!("Executing training step for epoch {epoch}");
            if stepping.train(&dataloader_train, &progress, &mut processor, &interrupter) {
                let reason = interrupter
                    .get_message()
                    .unwrap_or(String::from("Reason unknown"));
                log::info!("Training interrupted: {reason}");
                break;
            }

            if let Some(parallel) = &self.parallel {
                expect(parallel.share_running_states(&stepping.learner.model()));
            }
            if self.is_first() {
                log::info!("Executing validation step for epoch {epoch}");
                stepping.validate(&dataloader_valid, &progress, &mut processor, &interrupter);
                wait_for_metrics::<Components<B, LR, M, O>>(&mut processor);
            }

            if let Some(parallel) = &self.parallel {
                // What is saved is what all of them have.
                expect(parallel.verify(&stepping.learner.model()));
            }
            let learner = &stepping.learner;
            let mut save = || {
                if let Some(checkpointer) = &mut checkpointer {
                    checkpointer.checkpoint(learner, epoch, &components.event_store);
                }
            };
            match &self.parallel {
                Some(parallel) => expect(parallel.save_on_first(&mut stepping.optim, save)),
                None => save(),
            }

            let mut is_done = match &mut early_stopping {
                Some(early_stopping) if self.is_first() => {
                    early_stopping.should_stop(epoch, &components.event_store)
                }
                _ => false,
            };
            if let Some(parallel) = &self.parallel {
                let what = format!("the end of epoch {epoch}");
                is_done = expect(parallel.replicas().first_says(&what, is_done));
            }
            if is_done {
                break;
            }
        }

        (stepping.learner.model(), processor)
    }
}

impl<B: Backend, I, T> Strategy<B, I, T> {
    /// Whether this process does what is done once.
    fn is_first(&self) -> bool {
        let parallel = self.parallel.as_ref();
        parallel.is_none_or(|parallel| parallel.replicas().is_first())
    }

    /// Whether this process, or another, was interrupted.
    fn should_stop(&self, at: impl Fn() -> String, interrupter: &Interrupter) -> bool {
        let Some(parallel) = &self.parallel else {
            return interrupter.should_stop();
        };
        let unknown = || String::from("Reason unknown");
        let own = interrupter
            .should_stop()
            .then(|| interrupter.get_message().unwrap_or_else(unknown));
        let reason = expect(parallel.replicas().anybody_says(&at(), own));
        // One of its own stays, be it of meanwhile.
        if let Some(reason) = &reason
            && !interrupter.should_stop()
        {
            interrupter.stop(Some(&format!("{INTERRUPTED_ELSEWHERE}: {reason}")));
        }
        reason.is_some()
    }
}

/// Waits until the processor, which runs on a thread of its own, has handled every event so far:
/// checkpointing and early stopping are about to ask for the metrics of the whole epoch.
///
/// The channel holds one event and the start of a validation does nothing, so once the second is
/// accepted, what came before the first has been handled.
fn wait_for_metrics<LC: LearningComponentsTypes>(
    processor: &mut SupervisedTrainingEventProcessor<LC>,
) {
    for _ in 0..2 {
        processor.process_valid(LearnerEvent::Start);
    }
}

/// Burn's trait leaves no way but a panic.
fn expect<T, E: std::fmt::Display>(result: Result<T, E>) -> T {
    result.unwrap_or_else(|error| panic!("gradient release: {error}"))
}

#[cfg(test)]
mod tests {
    use burn::backend::{Flex, flex::FlexDevice};
    use lean_replicas::Threads;

    use super::*;

    #[test]
    fn a_replica_keeps_its_own_reason() {
        let reasons = Threads::run(3, |replicas| {
            let rank = replicas.rank();
            let strategy = Strategy::<Flex, (), ()> {
                device: FlexDevice,
                monitor: StepMonitor::new(),
                recompute: None,
                parallel: Some(DataParallel::new(replicas)),
                again: |()| None,
                gather: |_, output| Ok(output),
            };
            let interrupter = Interrupter::new();
            if rank == 0 {
                interrupter.stop(Some("Ctrl-C"));
            }
            // After it has said that it has none.
            let at = || {
                if rank == 1 {
                    interrupter.stop(Some("no room"));
                }
                String::from("the end")
            };
            assert!(strategy.should_stop(at, &interrupter));
            interrupter.get_message().unwrap()
        });
        let elsewhere = format!("{INTERRUPTED_ELSEWHERE}: Ctrl-C");
        assert_eq!(reasons, ["Ctrl-C", "no room", &elsewhere]);
    }
}

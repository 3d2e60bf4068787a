//! The training strategy.

use std::{marker::PhantomData, sync::Arc};

use burn::{
    data::dataloader::Progress,
    lr_scheduler::LrScheduler,
    module::AutodiffModule,
    optim::{GradientsParams, SimpleOptimizer},
    tensor::{
        Device,
        backend::{Backend, DeviceOps},
    },
    train::{
        EventProcessorTraining, InferenceStep, Interrupter, Learner, LearnerEvent,
        LearningComponentsMarker, LearningComponentsTypes, SupervisedLearningStrategy,
        SupervisedTrainingEventProcessor, TrainLoader, TrainStep, TrainingComponents, TrainingItem,
        TrainingStrategy, ValidLoader,
    },
};
use burn_gradient_release::{
    Recompute, ReleaseAccumulator, ReleaseBackend, ReleaseOptimizer, StepReport, TwoPasses,
};

use crate::{
    StepMonitor,
    passes::{InOnePass, InTwoPasses, Passes},
};

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
pub struct GradientReleaseStrategy<B: Backend, P = InOnePass> {
    device: Device<B>,
    monitor: StepMonitor,
    recompute: Recompute,
    passes: PhantomData<fn(P)>,
}

impl<B: Backend> GradientReleaseStrategy<B> {
    /// Trains and validates on this device.
    pub fn new(device: Device<B>) -> Self {
        Self {
            device,
            monitor: StepMonitor::new(),
            recompute: Recompute::None,
            passes: PhantomData,
        }
    }

    /// Runs the model's [`TrainStep`] twice for each optimizer step: once to measure the norm of all
    /// gradients, once to step. Rules of
    /// [`NormClipping`](burn_gradient_release::NormClipping) that need two passes are refused without
    /// this.
    ///
    /// Batches are cloned. Both runs have the same random numbers and running means
    /// ([`TwoPasses`]); what the first one returns is dropped.
    pub fn with_two_passes(self) -> GradientReleaseStrategy<B, InTwoPasses> {
        GradientReleaseStrategy {
            device: self.device,
            monitor: self.monitor,
            recompute: self.recompute,
            passes: PhantomData,
        }
    }
}

impl<B: Backend, P> GradientReleaseStrategy<B, P> {
    /// Recomputes activations in the backward passes of the training: see [`Recompute`].
    pub fn with_recompute(mut self, recompute: Recompute) -> Self {
        self.recompute = recompute;
        self
    }

    /// Tells the metrics made with this monitor what each step did.
    pub fn with_monitor(mut self, monitor: StepMonitor) -> Self {
        self.monitor = monitor;
        self
    }
}

impl<B, P, LR, M, O> From<GradientReleaseStrategy<B, P>>
    for TrainingStrategy<Components<B, LR, M, O>>
where
    B: ReleaseBackend,
    P: Passes<M::Input>,
    LR: LrScheduler + 'static,
    M: TrainStep + AutodiffModule<B> + core::fmt::Display + 'static,
    M::InnerModule: InferenceStep,
    O: SimpleOptimizer<B::InnerBackend> + 'static,
{
    fn from(strategy: GradientReleaseStrategy<B, P>) -> Self {
        Self::Custom(Arc::new(Strategy {
            device: strategy.device,
            monitor: strategy.monitor,
            recompute: strategy.recompute,
            again: P::again,
        }))
    }
}

/// What a [`GradientReleaseStrategy`] is to burn-train: the same type however many passes there are,
/// so that a training is compiled once.
struct Strategy<B: Backend, I> {
    device: Device<B>,
    monitor: StepMonitor,
    recompute: Recompute,
    /// The batch for the second pass, if there is one.
    again: fn(&I) -> Option<I>,
}

impl<B, LR, M, O> SupervisedLearningStrategy<Components<B, LR, M, O>> for Strategy<B, M::Input>
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
        let optim = ReleaseOptimizer::handle_of(&learner)
            .expect("cloning a learner clones its optimizer, once")
            .with_recompute(self.recompute);
        let mut stepping = Stepping {
            strategy: self,
            learner,
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
            stepping.train(&dataloader_train, &progress, &mut processor, &interrupter);

            if interrupter.should_stop() {
                let reason = interrupter
                    .get_message()
                    .unwrap_or(String::from("Reason unknown"));
                log::info!("Training interrupted: {reason}");
                break;
            }

            log::info!("Executing validation step for epoch {epoch}");
            stepping.validate(&dataloader_valid, &progress, &mut processor, &interrupter);
            wait_for_metrics::<Components<B, LR, M, O>>(&mut processor);

            if let Some(checkpointer) = &mut checkpointer {
                checkpointer.checkpoint(&stepping.learner, epoch, &components.event_store);
            }

            if let Some(early_stopping) = &mut early_stopping
                && early_stopping.should_stop(epoch, &components.event_store)
            {
                break;
            }
        }

        (stepping.learner.model(), processor)
    }
}

/// The learner with a handle to the optimizer inside it.
struct Stepping<'a, LC: LearningComponentsTypes, I> {
    strategy: &'a Strategy<LC::Backend, I>,
    learner: Learner<LC>,
    optim: LC::Optimizer,
    grad_accumulation: Option<usize>,
}

impl<B, LR, M, O> Stepping<'_, Components<B, LR, M, O>, M::Input>
where
    B: ReleaseBackend,
    LR: LrScheduler + 'static,
    M: TrainStep + AutodiffModule<B> + core::fmt::Display + 'static,
    M::InnerModule: InferenceStep,
    O: SimpleOptimizer<B::InnerBackend> + 'static,
{
    fn train(
        &mut self,
        dataloader: &TrainLoader<Components<B, LR, M, O>>,
        global_progress: &Progress,
        processor: &mut SupervisedTrainingEventProcessor<Components<B, LR, M, O>>,
        interrupter: &Interrupter,
    ) {
        let monitor = &self.strategy.monitor;
        let epoch = global_progress.items_processed;
        let window = self.grad_accumulation.unwrap_or(1);
        let mut iterator = dataloader.iter();
        let mut iteration = 0;
        // As in Burn: what is left of a window at the end of an epoch is dropped.
        let mut accumulator = ReleaseAccumulator::new().with_recompute(self.strategy.recompute);
        let mut accumulated = 0;

        while let Some(item) = iterator.next() {
            iteration += 1;
            self.learner.lr_step();
            log::info!("Iteration {iteration}");

            let progress = iterator.progress();
            monitor.begin();
            accumulated += 1;
            let (item, report) = if accumulated < window {
                (self.accumulate(&mut accumulator, item), None)
            } else {
                accumulated = 0;
                self.step(accumulator.grads(), item)
            };
            monitor.end(epoch, iteration, report);

            let item = TrainingItem::new(
                item,
                progress,
                global_progress.clone(),
                Some(iteration),
                Some(self.learner.lr_current()),
            );
            processor.process_train(LearnerEvent::ProcessedItem(item));

            if interrupter.should_stop() {
                break;
            }
        }
        processor.process_train(LearnerEvent::EndEpoch(epoch));
    }

    /// A micro-batch that is not the last of its window.
    fn accumulate(
        &mut self,
        accumulator: &mut ReleaseAccumulator<M, B>,
        item: M::Input,
    ) -> M::Output {
        let learner = &mut self.learner;
        expect(
            accumulator.try_arm_by_fork(learner.model(), || learner.fork(&self.strategy.device)),
        );
        let output = learner.train_step(item);
        expect(accumulator.try_accumulate(&learner.model(), output.grads));
        output.item
    }

    /// An optimizer step, with the gradients of the micro-batches before this one.
    fn step(&mut self, grads: GradientsParams, item: M::Input) -> (M::Output, Option<StepReport>) {
        let output = match (self.strategy.again)(&item) {
            Some(again) => self.two_passes(grads, item, again),
            None => {
                self.arm(grads);
                let output = self.learner.train_step(item);
                self.learner.optimizer_step(output.grads);
                output.item
            }
        };
        // An `optimize` that leaves the step out comes too late.
        expect(self.optim.check_finished());
        (output, self.optim.last_step())
    }

    fn arm(&mut self, grads: GradientsParams) {
        let learner = &mut self.learner;
        expect(
            self.optim
                .try_arm_by_fork(learner.lr_current(), learner.model(), grads, || {
                    learner.fork(&self.strategy.device)
                }),
        );
    }

    fn two_passes(&mut self, grads: GradientsParams, item: M::Input, again: M::Input) -> M::Output {
        let learner = &mut self.learner;
        expect(
            self.optim
                .try_arm_to_measure_by_fork(learner.model(), grads, || {
                    learner.fork(&self.strategy.device)
                }),
        );
        let model = learner.model();
        let (output, passes) = TwoPasses::first(&model, || learner.train_step(item));
        let measured = expect(self.optim.try_measured(&model, output.grads));
        drop(model);
        if !measured.is_finite() {
            self.learner.optimizer_step(GradientsParams::new());
            return output.item;
        }
        drop(output.item);
        self.arm(GradientsParams::new());
        let learner = &mut self.learner;
        let (output, draws_all) = passes.second(learner.model(), || learner.train_step(again));
        assert!(
            draws_all,
            "gradient release: the second of two passes draws fewer random numbers than the first; both \
             runs of a `TrainStep` must be the same"
        );
        self.learner.optimizer_step(output.grads);
        output.item
    }

    fn validate(
        &self,
        dataloader: &ValidLoader<Components<B, LR, M, O>>,
        global_progress: &Progress,
        processor: &mut SupervisedTrainingEventProcessor<Components<B, LR, M, O>>,
        interrupter: &Interrupter,
    ) {
        let model = self.learner.model().valid();
        let mut iterator = dataloader.iter();
        let mut iteration = 0;

        while let Some(item) = iterator.next() {
            let progress = iterator.progress();
            iteration += 1;

            let item = TrainingItem::new(
                model.step(item),
                progress,
                global_progress.clone(),
                Some(iteration),
                None,
            );
            processor.process_valid(LearnerEvent::ProcessedItem(item));

            if interrupter.should_stop() {
                break;
            }
        }
        processor.process_valid(LearnerEvent::EndEpoch(global_progress.items_processed));
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

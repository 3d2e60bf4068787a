//! The iterations of a training.

use burn::{
    data::dataloader::Progress,
    lr_scheduler::LrScheduler,
    module::AutodiffModule,
    optim::{GradientsParams, SimpleOptimizer},
    train::{
        EventProcessorTraining, InferenceStep, Interrupter, Learner, LearnerEvent,
        LearningComponentsTypes, SupervisedTrainingEventProcessor, TrainLoader, TrainStep,
        TrainingItem, ValidLoader,
    },
};
use burn_gradient_release::{ReleaseAccumulator, ReleaseBackend, StepReport, TwoPasses};

use super::{Components, Strategy, expect};

/// The learner with a handle to the optimizer inside it.
pub(super) struct Stepping<'a, LC, I, T>
where
    LC: LearningComponentsTypes<Backend: ReleaseBackend>,
{
    pub(super) strategy: &'a Strategy<LC::Backend, I, T>,
    pub(super) learner: Learner<LC>,
    pub(super) optim: LC::Optimizer,
    /// Kept over the epochs, with its plan of what is recomputed.
    pub(super) accumulator: ReleaseAccumulator<LC::TrainingModel, LC::Backend>,
    pub(super) grad_accumulation: Option<usize>,
}

impl<B, LR, M, O> Stepping<'_, Components<B, LR, M, O>, M::Input, M::Output>
where
    B: ReleaseBackend,
    LR: LrScheduler + 'static,
    M: TrainStep + AutodiffModule<B> + core::fmt::Display + 'static,
    M::InnerModule: InferenceStep,
    O: SimpleOptimizer<B::InnerBackend> + 'static,
{
    /// Trains one epoch. Returns whether it was interrupted.
    pub(super) fn train(
        &mut self,
        dataloader: &TrainLoader<Components<B, LR, M, O>>,
        global_progress: &Progress,
        processor: &mut SupervisedTrainingEventProcessor<Components<B, LR, M, O>>,
        interrupter: &Interrupter,
    ) -> bool {
        let monitor = &self.strategy.monitor;
        let epoch = global_progress.items_processed;
        let window = self.grad_accumulation.unwrap_or(1);
        let mut iterator = dataloader.iter();
        let mut iteration = 0;
        let mut accumulated = 0;

        while let Some(item) = iterator.next() {
            iteration += 1;
            self.learner.lr_step();
            log::info!("Iteration {iteration}");

            let progress = iterator.progress();
            monitor.begin();
            accumulated += 1;
            let (item, report) = if accumulated < window {
                (self.accumulate(item), None)
            } else {
                accumulated = 0;
                self.step(item)
            };
            monitor.end(epoch, iteration, report);
            let item = match &self.strategy.parallel {
                Some(parallel) => expect((self.strategy.gather)(parallel, item)),
                None => item,
            };

            let item = TrainingItem::new(
                item,
                progress,
                global_progress.clone(),
                Some(iteration),
                Some(self.learner.lr_current()),
            );
            processor.process_train(LearnerEvent::ProcessedItem(item));

            let at = || format!("the end of iteration {iteration} of epoch {epoch}");
            if self.strategy.should_stop(at, interrupter) {
                break;
            }
        }
        // As in Burn: what is left of a window at the end of an epoch is dropped.
        drop(self.accumulator.grads());
        processor.process_train(LearnerEvent::EndEpoch(epoch));
        assert!(
            iteration == 0 || iteration >= window || interrupter.should_stop(),
            "gradient release: no step was taken in epoch {epoch}: its {iteration} iterations are fewer than \
             the {window} whose gradients are added up; set `grads_accumulation` to {iteration} at most"
        );
        let at = || format!("the end of the batches of epoch {epoch}");
        self.strategy.should_stop(at, interrupter)
    }

    /// A micro-batch that is not the last of its window.
    fn accumulate(&mut self, item: M::Input) -> M::Output {
        let learner = &mut self.learner;
        let copy = learner.model();
        let fork = || learner.fork(&self.strategy.device);
        expect(self.accumulator.try_arm_by_fork(copy, fork));
        let output = learner.train_step(item);
        let model = learner.model();
        expect(self.accumulator.try_accumulate(&model, output.grads));
        output.item
    }

    /// An optimizer step, with the gradients of the micro-batches before this one.
    fn step(&mut self, item: M::Input) -> (M::Output, Option<StepReport>) {
        let grads = self.accumulator.grads();
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
        let (output, mut passes) = TwoPasses::first(&model, || learner.train_step(item));
        let measured = expect(self.optim.try_measured(&model, output.grads));
        drop(model);
        if !measured.is_finite() {
            self.learner.optimizer_step(GradientsParams::new());
            return output.item;
        }
        drop(output.item);
        self.arm(GradientsParams::new());
        let learner = &mut self.learner;
        // A pass that differs from the first panics in backward, before that steps anything.
        let (output, _) = passes.second(learner.model(), || learner.train_step(again));
        self.learner.optimizer_step(output.grads);
        output.item
    }

    pub(super) fn validate(
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

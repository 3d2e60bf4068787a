//! The iterations of a training.

use burn::lr_scheduler::module_lr_scheduler::{ModuleLearningRate, ModuleLrScheduler};
use burn::optim::ModuleOptimizer;
use burn::train::{InferenceStep, Learner, LearnerModel, TrainLoader, TrainStep, ValidLoader};

use super::StepMonitor;
use super::events::Events;
use super::learner::Parts;
use crate::error::expect;
use crate::optimizer::{Handover, ordinary};
use crate::{ReleaseAccumulator, ReleaseOptimizer};

/// The state of a learner while it trains with gradient release.
pub(super) struct Stepping<M> {
    /// The model. `None` while it is changed.
    model: Option<M>,
    optim: ReleaseOptimizer,
    scheduler: ModuleLrScheduler,
    lr: ModuleLearningRate,
    accumulator: ReleaseAccumulator,
    handover: Handover,
    /// The optimizer for `TrainStep::optimize`.
    user_optim: ModuleOptimizer,
    monitor: StepMonitor,
    /// Iterations of a window.
    window: usize,
}

impl<M: LearnerModel> Stepping<M> {
    pub(super) fn new(
        model: M,
        optim: ReleaseOptimizer,
        parts: Parts,
        monitor: StepMonitor,
        grad_accumulation: Option<usize>,
    ) -> Self {
        let handover = Handover::default();
        Self {
            model: Some(model),
            optim,
            scheduler: parts.scheduler,
            // As in Burn, before the first step.
            lr: 0.0.into(),
            accumulator: ReleaseAccumulator::new(),
            user_optim: handover.optimizer(parts.optim),
            handover,
            monitor,
            window: grad_accumulation.unwrap_or(1),
        }
    }

    /// Trains one epoch.
    pub(super) fn train(
        &mut self,
        dataloader: &TrainLoader<M>,
        epoch: usize,
        events: &mut Events<M>,
    ) {
        log::info!("Executing training step for epoch {epoch}");
        let mut iterator = dataloader.iter();
        let mut iteration = 0;
        let mut accumulated = 0;

        while let Some(item) = iterator.next() {
            let item = match item {
                Ok(item) => item,
                Err(error) => {
                    events.interrupter.fail(error);
                    break;
                }
            };
            iteration += 1;
            log::info!("Iteration {iteration}");

            let progress = iterator.progress();
            accumulated += 1;
            // Burn steps with the gradients of an incomplete window when the data end.
            let output = if accumulated < self.window && !progress.is_completed() {
                self.accumulate(item, iteration)
            } else {
                accumulated = 0;
                self.step(item, iteration)
            };
            events.trained(output, progress, iteration, self.lr.clone());
            if events.interrupter.should_stop() {
                break;
            }
        }
        // The sums of a window that was interrupted are dropped, as in Burn.
        drop(self.accumulator.grads());
        self.model = self.model.take().map(ordinary);
    }

    /// An iteration that is not the last of its window.
    fn accumulate(
        &mut self,
        item: <M as TrainStep>::Input,
        iteration: usize,
    ) -> <M as TrainStep>::Output {
        let model = self.accumulator.arm(self.model.take().expect(THERE));
        let output = TrainStep::step(&model, item);
        self.accumulator.accumulate_if_any(&model, output.grads);
        self.model = Some(model);
        self.monitor.end(iteration, None);
        output.item
    }

    /// An optimizer step, with the sums of the iterations before this one.
    fn step(
        &mut self,
        item: <M as TrainStep>::Input,
        iteration: usize,
    ) -> <M as TrainStep>::Output {
        self.lr = self.scheduler.step();
        let (lr, sums) = (self.lr.clone(), self.accumulator.grads());
        let model = self.model.take().expect(THERE);
        let model = self.optim.arm_accumulated(lr.clone(), model, sums);
        let output = TrainStep::step(&model, item);
        let handed_over = self
            .optim
            .hand_over(&lr, &model, output.grads, &self.handover);
        let (marks, report) = expect(handed_over);
        self.monitor
            .end(iteration, Some((report.clone(), lr.base())));
        let model = model.optimize(&mut self.user_optim, lr, marks);
        self.model = Some(expect(self.optim.take_back(model, report, &self.handover)));
        output.item
    }

    /// Validates one epoch.
    pub(super) fn validate(
        &self,
        dataloader: &ValidLoader<M>,
        epoch: usize,
        events: &mut Events<M>,
    ) {
        log::info!("Executing validation step for epoch {epoch}");
        let model = self.model().valid();
        let mut iterator = dataloader.iter();
        let mut iteration = 0;

        while let Some(item) = iterator.next() {
            let item = match item {
                Ok(item) => item,
                Err(error) => {
                    events.interrupter.fail(error);
                    break;
                }
            };
            let progress = iterator.progress();
            iteration += 1;

            events.validated(InferenceStep::step(&model, item), progress, iteration);
            if events.interrupter.should_stop() {
                break;
            }
        }
    }

    /// The learner between two epochs, for a checkpoint.
    pub(super) fn learner(&self) -> Learner<M> {
        let optim = expect(self.optim.own_optimizer());
        Learner::new(self.model().clone(), optim, self.scheduler.clone())
    }

    pub(super) fn into_model(self) -> M {
        self.model.expect(THERE)
    }

    fn model(&self) -> &M {
        self.model.as_ref().expect(THERE)
    }
}

const THERE: &str = "only a panic takes the model";

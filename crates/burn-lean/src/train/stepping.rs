//! The iterations of a training.

use burn::lr_scheduler::module_lr_scheduler::{ModuleLearningRate, ModuleLrScheduler};
use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::train::{
    InferenceStep, Learner, LearnerModel, TrainLoader, TrainOutput, TrainStep, ValidLoader,
};

use super::events::Events;
use super::learner::{Parts, to_save};
use super::strategy::GradientReleaseStrategy;
use crate::error::{ReleaseError, expect};
use crate::optimizer::Handover;
use crate::{ReleaseAccumulator, ReleaseOptimizer, TwoPasses};

/// The state of a learner while it trains with gradient release.
pub(super) struct Stepping<'a, M: LearnerModel> {
    strategy: &'a GradientReleaseStrategy,
    again: Again<Batch<M>>,
    /// The model. `None` while it is changed.
    model: Option<M>,
    optim: ReleaseOptimizer,
    scheduler: ModuleLrScheduler,
    lr: ModuleLearningRate,
    accumulator: ReleaseAccumulator,
    handover: Handover,
    /// The optimizer for `TrainStep::optimize`.
    user_optim: ModuleOptimizer,
    /// Iterations of a window.
    window: usize,
}

/// Clones a batch for the second pass, if there is one.
pub(super) type Again<Batch> = Option<fn(&Batch) -> Batch>;

pub(super) type Batch<M> = <M as TrainStep>::Input;
type Output<M> = <M as TrainStep>::Output;

impl<'a, M: LearnerModel> Stepping<'a, M> {
    pub(super) fn new(
        strategy: &'a GradientReleaseStrategy,
        again: Again<Batch<M>>,
        model: M,
        Parts { optim, scheduler }: Parts,
        grad_accumulation: Option<usize>,
    ) -> Self {
        let handover = Handover::default();
        Self {
            strategy,
            again,
            model: Some(model),
            scheduler,
            // As in Burn, before the first step.
            lr: 0.0.into(),
            accumulator: optim.accumulator(),
            user_optim: handover.optimizer(expect(optim.own_optimizer())),
            optim,
            handover,
            window: grad_accumulation.unwrap_or(1),
        }
    }

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
            iteration += 1;
            let item = item.map_err(|error| events.interrupter.fail(error));
            let at = || format!("the beginning of iteration {iteration} of epoch {epoch}");
            // Between the batch and the step, either of which may fail on one of several processes.
            let stops = self.strategy.processes.should_stop(at, &events.interrupter);
            let Some(item) = item.ok().filter(|_| !stops) else {
                break;
            };
            log::info!("Iteration {iteration}");

            let progress = iterator.progress();
            self.strategy.monitor.begin();
            accumulated += 1;
            // Burn steps with the gradients of an incomplete window when the data end.
            let output = if accumulated < self.window && !progress.is_completed() {
                self.accumulate(item, iteration)
            } else {
                accumulated = 0;
                self.step(item, iteration)
            };
            events.trained(output, progress, iteration, self.lr.clone());
        }
        // A replica with fewer batches is named here, and not where weights are compared.
        let at = || format!("the end of the batches of epoch {epoch}");
        self.strategy.processes.should_stop(at, &events.interrupter);
        let model = self.take_model();
        // The sums of a window that was interrupted are dropped, as in Burn.
        let model = self.accumulator.cancel(model);
        self.model = Some(self.strategy.processes.shared(model));
    }

    /// An iteration that is not the last of its window.
    fn accumulate(&mut self, item: Batch<M>, iteration: usize) -> Output<M> {
        let model = self.take_model();
        let model = self.accumulator.arm(model);
        let output = TrainStep::step(&model, item);
        self.accumulator.accumulate_if_any(&model, output.grads);
        self.model = Some(model);
        self.strategy.monitor.end(iteration, None);
        output.item
    }

    /// An optimizer step, with the sums of the iterations before this one.
    fn step(&mut self, item: Batch<M>, iteration: usize) -> Output<M> {
        self.lr = self.scheduler.step();
        let (lr, sums) = (self.lr.clone(), self.accumulator.grads());
        let (model, output) = match self.again.map(|again| again(&item)) {
            Some(again) => self.two_passes(sums, item, again),
            None => {
                let model = self.take_model();
                let model = self.optim.arm_accumulated(lr.clone(), model, sums);
                let output = TrainStep::step(&model, item);
                (model, output)
            }
        };
        let handed_over = self
            .optim
            .hand_over(&lr, &model, output.grads, &self.handover);
        let (marks, report) = expect(handed_over);
        let model = model.optimize(&mut self.user_optim, lr.clone(), marks);
        let model = self.optim.take_back(model, report.clone(), &self.handover);
        self.model = Some(expect(model));
        let step = (report, lr.base());
        self.strategy.monitor.end(iteration, Some(step));
        output.item
    }

    /// Measures the norm of all gradients in one pass, and steps in another, unless a gradient has
    /// overflowed.
    fn two_passes(
        &mut self,
        sums: GradientsParams,
        item: Batch<M>,
        again: Batch<M>,
    ) -> (M, TrainOutput<Output<M>>) {
        let model = self.take_model();
        let armed = self.optim.try_arm_to_measure(model, sums);
        let model = expect(armed.map_err(ReleaseError::from));
        let (first, passes) = TwoPasses::first(&model, || TrainStep::step(&model, item));
        let measured = expect(self.optim.try_measured(&model, first.grads));
        let item = first.item;
        if !measured.is_finite() {
            let grads = GradientsParams::new();
            return (model, TrainOutput { grads, item });
        }
        drop(item);
        let model = self.optim.arm(self.lr.clone(), model);
        let output = passes.second(&model, || TrainStep::step(&model, again));
        (model, output)
    }

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

    /// The learner between two epochs, for a checkpoint: on the first process.
    pub(super) fn learner(&self) -> Option<Learner<M>> {
        let optim = self.strategy.processes.whole_optimizer(&self.optim)?;
        let optim = to_save(optim, self.optim.gradient_record(), &self.strategy.device);
        Some(Learner::new(
            self.model().clone(),
            optim,
            self.scheduler.clone(),
        ))
    }

    pub(super) fn into_model(self) -> M {
        self.model.expect(THERE)
    }

    fn take_model(&mut self) -> M {
        self.model.take().expect(THERE)
    }

    fn model(&self) -> &M {
        self.model.as_ref().expect(THERE)
    }
}

const THERE: &str = "only a panic takes the model";

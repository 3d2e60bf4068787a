//! The iterations of a training.

use burn::Tensor;
use burn::lr_scheduler::module_lr_scheduler::{ModuleLearningRate, ModuleLrScheduler};
use burn::train::{InferenceStep, Learner, LearnerModel, TrainLoader, TrainStep, ValidLoader};

use super::events::Events;
use super::learner::{Parts, to_save};
use super::optimize::is_burns;
use super::output::run;
use super::strategy::GradientReleaseStrategy;
use crate::{ReleaseOptimizer, TwoPasses};

/// The state of a learner while it trains with gradient release.
pub(super) struct Stepping<'a, M: LearnerModel> {
    strategy: &'a GradientReleaseStrategy,
    again: Again<Batch<M>>,
    /// The model. `None` while it is changed.
    model: Option<M>,
    optim: ReleaseOptimizer,
    scheduler: ModuleLrScheduler,
    lr: ModuleLearningRate,
    /// Iterations of a window.
    window: usize,
    /// Whether `TrainStep::optimize` is known to be Burn's.
    is_checked: bool,
    /// Whether it was said that a step runs backward itself.
    is_told: bool,
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
        Self {
            strategy,
            again,
            model: Some(model),
            scheduler,
            // As in Burn, before the first step.
            lr: 0.0.into(),
            optim,
            window: grad_accumulation.unwrap_or(1),
            is_checked: false,
            is_told: false,
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
        drop(self.optim.take_sums(&model));
        self.model = Some(self.strategy.processes.shared(model));
    }

    /// An iteration that is not the last of its window.
    fn accumulate(&mut self, item: Batch<M>, iteration: usize) -> Output<M> {
        let model = self.take_model();
        let (output, loss) = run(&model, item);
        self.check(&model);
        match loss {
            Some(loss) => self.optim.accumulate(loss, &model),
            None => {
                self.tell();
                self.optim.accumulate_grads(&model, output.grads);
            }
        }
        self.model = Some(model);
        self.strategy.monitor.end(iteration, None);
        output.item
    }

    /// An optimizer step, with the sums of the iterations before this one.
    fn step(&mut self, item: Batch<M>, iteration: usize) -> Output<M> {
        self.lr = self.scheduler.step();
        let (model, lr) = (self.take_model(), self.lr.clone());
        let (model, item) = match self.again.map(|again| again(&item)) {
            Some(again) => self.two_passes(model, item, again),
            None => {
                let (output, loss) = run(&model, item);
                self.check(&model);
                let item = output.item;
                let model = match loss {
                    Some(loss) => self.optim.backward(lr, loss, model),
                    None => {
                        self.tell();
                        self.optim.step(lr, model, output.grads)
                    }
                };
                (model, item)
            }
        };
        self.model = Some(model);
        let report = self.optim.last_step().expect("a step has run").clone();
        self.strategy
            .monitor
            .end(iteration, Some((report, self.lr.base())));
        item
    }

    /// Measures the norm of all gradients in one pass, and steps in another, unless a gradient has
    /// overflowed.
    fn two_passes(&mut self, model: M, item: Batch<M>, again: Batch<M>) -> (M, Output<M>) {
        let lr = self.lr.clone();
        let ((output, measured), passes) = TwoPasses::first(&model, || {
            let (output, loss) = run(&model, item);
            self.check(&model);
            let measured = loss.map(|loss| self.optim.measure(loss, &model));
            (output, measured)
        });
        match measured {
            Some(norm) if norm.is_finite() => {}
            // The step was skipped.
            Some(_) => return (model, output.item),
            None => {
                // All gradients exist, so one pass is enough.
                self.tell();
                return (self.optim.step(lr, model, output.grads), output.item);
            }
        }
        drop(output);
        let (output, loss) = passes.second(&model, || run(&model, again));
        let loss = left(loss);
        (self.optim.backward(lr, loss, model), output.item)
    }

    /// Refuses a model whose `TrainStep::optimize` would be silently left out. Once, after the first
    /// forward pass, which draws the numbers of parameters that are initialized by it.
    fn check(&mut self, model: &M) {
        let is_known = std::mem::replace(&mut self.is_checked, true);
        assert!(
            is_known || is_burns(model),
            "gradient release: the model has a `TrainStep::optimize` of its own, which is not called, as \
             each parameter is stepped inside backward; leave it out (`ReleaseOptimizer` has clipping, \
             groups and loss scaling, and what is done to the loss is done in `step`), or train with \
             Burn's strategy (`ExecutionStrategy`), or in a loop of your own, which may change the model \
             between two calls of `backward`"
        );
    }

    /// Says once that gradients are not released.
    fn tell(&mut self) {
        if !std::mem::replace(&mut self.is_told, true) {
            log::warn!(
                "gradient release: `TrainStep::step` runs backward itself, so all gradients exist at \
                 once, as in plain Burn; return `burn_lean::train::output(self, loss, item)` in place of \
                 `TrainOutput::new(self, loss.backward(), item)`"
            );
        }
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

fn left(loss: Option<Tensor<1>>) -> Tensor<1> {
    loss.expect("gradient release: the second pass of a step has left no loss, where the first has")
}

const THERE: &str = "only a panic takes the model";

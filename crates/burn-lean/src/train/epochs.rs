//! The epochs of a training.

use std::sync::Arc;

use burn::train::{
    Learner, LearnerModel, SupervisedLearningStrategy, SupervisedTrainingEventProcessor,
    TrainLoader, TrainingComponents, TrainingStrategy, ValidLoader,
};

use super::events::{Events, Split};
use super::learner::Parts;
use super::stepping::{Again, Batch, Stepping};
use super::strategy::{GradientReleaseStrategy, TwoPassStrategy};

/// A strategy as burn-train sees it: one type for any number of passes.
struct Epochs<Batch> {
    strategy: GradientReleaseStrategy,
    again: Again<Batch>,
}

impl<M: LearnerModel> From<GradientReleaseStrategy> for TrainingStrategy<M> {
    fn from(strategy: GradientReleaseStrategy) -> Self {
        let again: Again<Batch<M>> = None;
        Self::Custom(Arc::new(Epochs { strategy, again }))
    }
}

impl<M: LearnerModel> From<TwoPassStrategy> for TrainingStrategy<M>
where
    Batch<M>: Clone,
{
    fn from(TwoPassStrategy(strategy): TwoPassStrategy) -> Self {
        let again: Again<Batch<M>> = Some(Clone::clone);
        Self::Custom(Arc::new(Epochs { strategy, again }))
    }
}

impl<M: LearnerModel> SupervisedLearningStrategy<M> for Epochs<Batch<M>> {
    fn fit(
        &self,
        components: TrainingComponents<M>,
        mut learner: Learner<M>,
        dataloader_train: TrainLoader<M>,
        dataloader_valid: ValidLoader<M>,
        starting_epoch: usize,
    ) -> (M, SupervisedTrainingEventProcessor<M>) {
        let strategy = &self.strategy;
        let dataloader_train = dataloader_train.to_device(&strategy.device);
        let dataloader_valid = dataloader_valid.to_device(&strategy.device.clone().inner());
        let store = components.event_store;
        let mut parts = Parts::of(&mut learner, &store, &strategy.device).expect(
            "gradient release: Burn keeps the optimizer of a `Learner` private; make the learner \
             with `burn_lean::train::release_learner` in place of `Learner::new`",
        );
        // As Burn's strategy for one device: this draws weights that nobody has read, in the order of the
        // model's fields.
        learner.fork(&strategy.device);
        let model = learner.model();
        // It would hold the first weights.
        drop(learner);
        assert!(
            self.again.is_some() || !parts.optim.needs_two_passes(),
            "gradient release: clipping by a norm of all gradients needs two passes; add \
             `with_two_passes()` to the `GradientReleaseStrategy`"
        );
        let processes = &strategy.processes;
        let stops_early = components.early_stopping.is_some();
        processes.same_settings([
            ("first epoch", starting_epoch),
            ("epochs", components.num_epochs),
            ("accumulation", components.grad_accumulation.unwrap_or(1)),
            ("passes", 1 + usize::from(self.again.is_some())),
            ("early stopping", stops_early.into()),
        ]);
        parts.optim = processes.with_reduction(parts.optim, &model);
        let mut stepping = Stepping::new(
            strategy,
            self.again,
            model,
            parts,
            components.grad_accumulation,
        );
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
            let at = || format!("the end of the steps of epoch {epoch}");
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

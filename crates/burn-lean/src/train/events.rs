//! The events of burn-train, which differ between its versions.

use burn::data::dataloader::Progress;
use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::train::{
    EventProcessorError, EventProcessorTraining, InferenceStep, Interrupter, LearnerEvent,
    LearnerModel, SupervisedTrainingEventProcessor, TrainStep, TrainingItem,
};

/// Burn's event processor. Its errors stop the training.
pub(super) struct Events<M: LearnerModel> {
    pub(super) processor: SupervisedTrainingEventProcessor<M>,
    pub(super) interrupter: Interrupter,
}

/// The training or the validation half of an epoch.
#[derive(Clone, Copy, Debug)]
pub(super) enum Split {
    Train,
    Valid,
}

impl<M: LearnerModel> Events<M> {
    pub(super) fn start(&mut self, split: Split, epoch: usize, items: usize) {
        let reported = match split {
            Split::Train => self.processor.process_train(LearnerEvent::StartSplit {
                epoch_number: epoch,
                total_items: items,
            }),
            Split::Valid => self.processor.process_valid(LearnerEvent::StartSplit {
                epoch_number: epoch,
                total_items: items,
            }),
        };
        self.reported(reported);
    }

    pub(super) fn end(&mut self, split: Split, epoch: usize) {
        let reported = match split {
            Split::Train => self.processor.process_train(LearnerEvent::EndSplit(epoch)),
            Split::Valid => self.processor.process_valid(LearnerEvent::EndSplit(epoch)),
        };
        self.reported(reported);
    }

    pub(super) fn end_epoch(&mut self, epoch: usize) {
        let reported = self.processor.process_train(LearnerEvent::EndEpoch(epoch));
        self.reported(reported);
    }

    /// Waits until the metrics have processed all events.
    pub(super) fn flush(&mut self) {
        let reported = self.processor.flush();
        self.reported(reported);
    }

    pub(super) fn trained(
        &mut self,
        item: <M as TrainStep>::Output,
        progress: Progress,
        iteration: usize,
        lr: ModuleLearningRate,
    ) {
        let item = TrainingItem::new(item, progress, Some(iteration), Some(lr));
        let reported = self
            .processor
            .process_train(LearnerEvent::ProcessedItem(item));
        self.reported(reported);
    }

    pub(super) fn validated(
        &mut self,
        item: <M as InferenceStep>::Output,
        progress: Progress,
        iteration: usize,
    ) {
        let item = TrainingItem::new(item, progress, Some(iteration), None);
        let reported = self
            .processor
            .process_valid(LearnerEvent::ProcessedItem(item));
        self.reported(reported);
    }

    fn reported(&self, result: Result<(), EventProcessorError>) {
        self.interrupter.fail_on_error(result);
    }
}

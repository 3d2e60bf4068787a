//! A learning rate that belongs to the optimizer.

use std::any::Any;

use burn::{lr_scheduler::LrScheduler, optim::LearningRate};

use crate::groups::AnyScheduler;

/// The learning rates of an optimizer that owns its scheduler.
pub(crate) struct OwnedRate {
    /// In the state after the last finished step.
    scheduler: Box<dyn AnyScheduler>,
    upcoming: Option<Upcoming>,
}

/// The rate of the next step, and the scheduler after it.
struct Upcoming {
    rate: LearningRate,
    scheduler: Box<dyn AnyScheduler>,
}

impl OwnedRate {
    pub(crate) fn new(scheduler: impl LrScheduler + 'static) -> Self {
        Self {
            scheduler: Box::new(scheduler),
            upcoming: None,
        }
    }

    /// The rate of the next step. The scheduler moves on only once that is applied.
    pub(crate) fn upcoming(&mut self) -> LearningRate {
        let Self {
            scheduler,
            upcoming,
        } = self;
        upcoming
            .get_or_insert_with(|| Upcoming::of(scheduler.as_ref()))
            .rate
    }

    /// The next rate, without taking the step.
    pub(crate) fn peek(&self) -> LearningRate {
        match &self.upcoming {
            Some(upcoming) => upcoming.rate,
            None => Upcoming::of(self.scheduler.as_ref()).rate,
        }
    }

    pub(crate) fn applied(&mut self) {
        self.scheduler = match self.upcoming.take() {
            Some(upcoming) => upcoming.scheduler,
            None => Upcoming::of(self.scheduler.as_ref()).scheduler,
        };
    }

    pub(crate) fn scheduler<S: LrScheduler + 'static>(&self) -> Option<&S> {
        let scheduler: &dyn Any = self.scheduler.as_ref();
        scheduler.downcast_ref()
    }
}

impl Upcoming {
    fn of(scheduler: &dyn AnyScheduler) -> Self {
        let mut scheduler = scheduler.boxed_clone();
        Self {
            rate: scheduler.next(),
            scheduler,
        }
    }
}

impl Clone for OwnedRate {
    fn clone(&self) -> Self {
        Self {
            scheduler: self.scheduler.boxed_clone(),
            upcoming: self.upcoming.as_ref().map(|upcoming| Upcoming {
                rate: upcoming.rate,
                scheduler: upcoming.scheduler.boxed_clone(),
            }),
        }
    }
}

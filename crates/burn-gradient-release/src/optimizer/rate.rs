//! A learning rate that belongs to the optimizer.

use std::any::Any;

use burn::{lr_scheduler::LrScheduler, optim::LearningRate};

/// A scheduler of any type. Burn's trait is not object safe, and the optimizer's own type should
/// not change with its scheduler.
trait Schedule: Any + Send + Sync {
    fn next(&mut self) -> LearningRate;
    fn boxed_clone(&self) -> Box<dyn Schedule>;
}

impl<S: LrScheduler + 'static> Schedule for S {
    fn next(&mut self) -> LearningRate {
        self.step()
    }

    fn boxed_clone(&self) -> Box<dyn Schedule> {
        Box::new(self.clone())
    }
}

/// The rates of an optimizer that owns them.
pub(crate) struct OwnedRate {
    /// Stands where the last finished step has left it.
    schedule: Box<dyn Schedule>,
    upcoming: Option<Upcoming>,
}

/// The rate of the next step, and the scheduler after it.
struct Upcoming {
    rate: LearningRate,
    schedule: Box<dyn Schedule>,
}

impl OwnedRate {
    pub(crate) fn new(scheduler: impl LrScheduler + 'static) -> Self {
        Self {
            schedule: Box::new(scheduler),
            upcoming: None,
        }
    }

    /// The rate of the next step. The scheduler moves on only once that is applied.
    pub(crate) fn upcoming(&mut self) -> LearningRate {
        let Self { schedule, upcoming } = self;
        upcoming
            .get_or_insert_with(|| Upcoming::of(schedule.as_ref()))
            .rate
    }

    /// The next rate, without taking the step.
    pub(crate) fn peek(&self) -> LearningRate {
        match &self.upcoming {
            Some(upcoming) => upcoming.rate,
            None => Upcoming::of(self.schedule.as_ref()).rate,
        }
    }

    pub(crate) fn applied(&mut self) {
        self.schedule = match self.upcoming.take() {
            Some(upcoming) => upcoming.schedule,
            None => Upcoming::of(self.schedule.as_ref()).schedule,
        };
    }

    pub(crate) fn scheduler<S: LrScheduler + 'static>(&self) -> Option<&S> {
        let schedule: &dyn Any = self.schedule.as_ref();
        schedule.downcast_ref()
    }
}

impl Upcoming {
    fn of(schedule: &dyn Schedule) -> Self {
        let mut schedule = schedule.boxed_clone();
        Self {
            rate: schedule.next(),
            schedule,
        }
    }
}

impl Clone for OwnedRate {
    fn clone(&self) -> Self {
        Self {
            schedule: self.schedule.boxed_clone(),
            upcoming: self.upcoming.as_ref().map(|upcoming| Upcoming {
                rate: upcoming.rate,
                schedule: upcoming.schedule.boxed_clone(),
            }),
        }
    }
}

impl std::fmt::Debug for OwnedRate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OwnedRate")
            .field("upcoming", &self.peek())
            .finish_non_exhaustive()
    }
}

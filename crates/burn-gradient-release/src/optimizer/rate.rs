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
    schedule: Box<dyn Schedule>,
    /// Drawn, not yet applied.
    upcoming: Option<LearningRate>,
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
        *self.upcoming.get_or_insert_with(|| self.schedule.next())
    }

    pub(crate) fn applied(&mut self) {
        self.upcoming = None;
    }

    pub(crate) fn scheduler<S: LrScheduler + 'static>(&self) -> Option<&S> {
        let schedule: &dyn Any = self.schedule.as_ref();
        schedule.downcast_ref()
    }
}

impl Clone for OwnedRate {
    fn clone(&self) -> Self {
        Self {
            schedule: self.schedule.boxed_clone(),
            upcoming: self.upcoming,
        }
    }
}

impl std::fmt::Debug for OwnedRate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OwnedRate")
            .field("upcoming", &self.upcoming)
            .finish_non_exhaustive()
    }
}

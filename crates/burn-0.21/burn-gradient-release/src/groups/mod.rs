//! Groups of parameters, and learning rates and optimizers that differ between groups.

mod any_scheduler;
mod either;
mod module_lr_scheduler;
mod param_group;
mod paths;
mod tensorless;

pub(crate) use any_scheduler::AnyScheduler;
pub use either::Either;
pub(crate) use module_lr_scheduler::Published;
pub use module_lr_scheduler::{ModuleLearningRates, ModuleLrScheduler, ModuleLrSchedulerRecord};
pub use param_group::{ParamGroup, ParamGroupError};
pub(crate) use paths::{path_of, visit_paths};

//! Parameters that are treated differently: by group, and by what they are stepped with.

mod either;
mod module_lr_scheduler;
mod optimizers;
mod param_group;
pub(crate) mod parts;
mod refusals;

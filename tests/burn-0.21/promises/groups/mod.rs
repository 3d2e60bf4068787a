//! Groups of parameters, with rates and optimizers of their own.

mod either;
mod module_lr_scheduler;
mod optimizers;
mod param_group;
pub(crate) mod parts;
mod refusals;

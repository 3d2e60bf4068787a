//! The program as a user runs it: its output, its files and its exit codes.

mod folder;
pub(crate) mod refusals;
mod resuming;
mod training;

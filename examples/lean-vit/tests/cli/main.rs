//! The program as a user runs it: its output, its files and its exit codes.

#[path = "../images/mod.rs"]
mod images;
mod program;
mod refusals;
mod resuming;
mod training;

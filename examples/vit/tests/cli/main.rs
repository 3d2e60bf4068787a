//! The program as a user runs it: its output, its files and its exit codes.

mod disk;
mod images;
mod memory_timeline;
mod program;
mod refusals;
mod resuming;
mod training;

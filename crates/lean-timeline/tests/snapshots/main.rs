//! Snapshots: their files, what follows from them, and the program that says so.

mod analysis;
mod cli;
mod example;
mod file;

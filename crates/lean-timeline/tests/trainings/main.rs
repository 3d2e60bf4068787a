//! Snapshots of synthetic trainings: their file, what follows from them, and the program that shows
//! them.

mod analysis;
#[cfg(feature = "viewer")]
mod cli;
mod file;
#[path = "../synthetic/mod.rs"]
mod synthetic;

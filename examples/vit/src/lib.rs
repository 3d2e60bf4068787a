//! A vision transformer trained with gradient release.
//!
//! `vit train` trains and `vit bench` measures. [`mode`] is the room to read for what gradient
//! release asks of a training loop; everything else is a Burn program like any other.

pub mod backend;
pub mod bench;
pub mod checkpoint;
pub mod cli;
pub mod config;
pub mod data;
pub mod digest;
pub mod memory;
pub mod mode;
pub mod model;
pub mod rng;
pub mod train;

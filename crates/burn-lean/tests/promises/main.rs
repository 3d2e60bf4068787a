//! What burn-lean promises, one module per promise.

mod accumulation;

mod adapters;

mod clipping;

mod copies;

#[cfg(feature = "data-parallel")]
mod data_parallel;

mod edges;

mod equality;

#[cfg(feature = "wgpu")]
mod gpu;

#[cfg(feature = "tracing")]
mod events;

mod hard_inputs;

mod harness;

mod heap;

mod layers;

mod memory;

#[cfg(all(feature = "operations", feature = "optim"))]
mod mixed_precision;

mod modules;

mod net;

#[cfg(feature = "operations")]
mod operations;

#[cfg(feature = "optim")]
mod optim;

mod optimizers;

#[cfg(all(feature = "operations", feature = "peft"))]
mod peft;

mod random_programs;

#[cfg(feature = "safetensors")]
mod safetensors;

mod scopes;

#[cfg(feature = "scratch")]
mod scratch;

mod small;

#[cfg(feature = "train")]
mod train;

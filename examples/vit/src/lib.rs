//! What the benchmarks train, too: the model. The program is in `main.rs`.

#![forbid(unsafe_code)]

pub mod model;

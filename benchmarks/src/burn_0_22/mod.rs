//! The measuring side on Burn 0.22, where a backend is no type parameter and gradient release is
//! `burn-lean`.
//!
//! Models, batches and settings are those of Burn 0.21, and so are the bytes that are counted.

mod encoder;
mod gpt;
mod loss;
mod measure;
mod optimizer;
mod scorer;
mod trainee;

pub use measure::run;

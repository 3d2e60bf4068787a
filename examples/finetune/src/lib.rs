//! Models of the Llama family: from the files of the Hub, and back.

pub mod config;
pub mod model;
pub mod settings;
pub mod train;

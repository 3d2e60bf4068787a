//! Models of the Llama family: from the files of the Hub, and back.

pub mod config;
pub mod files;
pub mod model;
pub mod rope;

//! A small language model: the model, and the text that it learns from.

pub mod model;
pub mod text;

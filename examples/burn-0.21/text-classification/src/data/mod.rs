//! The reviews, and their conversion to tensors.

mod batcher;
mod dataset;
mod grammar;
mod tokenizer;

pub use batcher::{TextClassificationBatch, TextClassificationBatcher};
pub use dataset::{CLASSES, Reviews, TextClassificationItem};
pub use tokenizer::WordTokenizer;

#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod chat;
mod error;
mod order;
mod read;

pub use chat::Template;
pub use error::TextError;
pub use order::Order;
pub use read::{Text, read, tokenizer};
pub use tokenizers::Tokenizer;

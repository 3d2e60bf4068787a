//! Choices of how a training computes that change its weights by rounding.

use crate::value_name::value_name;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::num::{NonZeroUsize, ParseIntError};
use std::str::FromStr;
use vit_0_21::config::OptimizerKind;

/// How a training computes, where there is a choice. Runs that differ in it add up the same numbers
/// in another order: only the weights of runs with equal ones are comparable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arithmetic {
    /// What the model is made of.
    pub operations: Operations,
    /// How the gradient of a linear layer's weight is computed.
    pub linear: LinearGradient,
    /// Tokens in a chunk of the loss.
    pub loss_chunk: LossChunk,
    /// The optimizer; as JSON null for the one that the model is trained with by default.
    pub optimizer: Option<OptimizerKind>,
}

impl Arithmetic {
    /// Each choice that is not the default, as words for the table.
    pub fn words(&self) -> Vec<String> {
        let mut words = Vec::new();
        if self.operations != Operations::default() {
            words.push(format!("{} operations", value_name(self.operations)));
        }
        if self.linear != LinearGradient::default() {
            words.push(format!("{} linear", value_name(self.linear)));
        }
        if self.loss_chunk != LossChunk::WHOLE {
            words.push(format!("loss chunk {}", self.loss_chunk));
        }
        words.extend(self.optimizer.map(|optimizer| optimizer.to_string()));
        words
    }
}

/// What a model is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Operations {
    /// Burn's modules
    #[default]
    Default,
    /// Those of burn-lean, which keep little for the backward pass
    Lean,
}

/// How the gradient of a linear layer's weight is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum LinearGradient {
    /// As in Burn: one product for each element of the batch, added up
    #[default]
    Default,
    /// One product, by the decorator `FlatLinear`
    Flat,
}

/// Tokens whose loss is computed at once, in a scope whose activations are recomputed; as JSON, a
/// number, or null for all of them without a scope.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LossChunk(pub Option<NonZeroUsize>);

impl LossChunk {
    /// The loss of all tokens at once, without a scope.
    pub const WHOLE: Self = Self(None);
}

/// The name of [`LossChunk::WHOLE`] on the command line.
const WHOLE: &str = "whole";

impl FromStr for LossChunk {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, ParseIntError> {
        match text {
            WHOLE => Ok(Self::WHOLE),
            number => number.parse().map(|tokens| Self(Some(tokens))),
        }
    }
}

impl fmt::Display for LossChunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.write_str(WHOLE),
            Some(tokens) => tokens.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_read_as_they_were_written() {
        for text in ["whole", "512"] {
            let chunk: LossChunk = text.parse().unwrap();
            assert_eq!(chunk.to_string(), text);
            let json = serde_json::to_string(&chunk).unwrap();
            assert_eq!(json, if text == "whole" { "null" } else { text });
            assert_eq!(serde_json::from_str::<LossChunk>(&json).unwrap(), chunk);
        }
        for text in ["0", "-1", "all", ""] {
            text.parse::<LossChunk>().unwrap_err();
        }
    }

    #[test]
    fn only_what_is_not_the_default_has_words() {
        let mut arithmetic = Arithmetic::default();
        assert!(arithmetic.words().is_empty());
        arithmetic.operations = Operations::Lean;
        arithmetic.linear = LinearGradient::Flat;
        arithmetic.loss_chunk = LossChunk(NonZeroUsize::new(512));
        arithmetic.optimizer = Some(OptimizerKind::Adam8bit);
        assert_eq!(
            arithmetic.words(),
            [
                "lean operations",
                "flat linear",
                "loss chunk 512",
                "adam-8bit"
            ]
        );
    }
}

//! What the forward pass of a run keeps.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::fmt;
use vit_0_21::config;

/// What the forward pass keeps for the backward pass, on either version of Burn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Checkpointing {
    /// Every activation
    None,
    /// Recomputes what is cheap to recompute (Burn's balanced checkpointing)
    Balanced,
    /// The input of each transformer block; recomputes the block
    Blocks,
    /// As blocks, and recomputes half of each block once more: slower, and smaller (Burn 0.22)
    Nested,
    /// Little, at places that gradient release finds by itself; recomputes the rest (Burn 0.21)
    Automatic,
}

impl Checkpointing {
    /// The setting of `vit-0-21`, which is for Burn 0.21, where a scope in a scope is part of the outer
    /// one.
    pub fn on_burn_0_21(self) -> Option<config::Checkpointing> {
        match self {
            Self::None => Some(config::Checkpointing::None),
            Self::Balanced => Some(config::Checkpointing::Balanced),
            Self::Blocks => Some(config::Checkpointing::Blocks),
            Self::Automatic => Some(config::Checkpointing::Automatic),
            Self::Nested => None,
        }
    }
}

impl fmt::Display for Checkpointing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&super::value_name(*self))
    }
}

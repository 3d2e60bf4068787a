//! Floats in records.

use serde::{Deserialize, Serialize};

/// A float that is saved as its bits: JSON has no infinities, and its decimals may be rounded when
/// they are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "u64", into = "u64")]
pub(crate) struct Exact(pub(crate) f64);

impl From<u64> for Exact {
    fn from(bits: u64) -> Self {
        Self(f64::from_bits(bits))
    }
}

impl From<Exact> for u64 {
    fn from(float: Exact) -> Self {
        float.0.to_bits()
    }
}

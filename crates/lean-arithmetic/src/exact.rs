//! Floats in records.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A float that is saved as its bits: JSON has no infinities, and its decimals may be rounded when
/// they are read.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Exact<F>(pub(crate) F);

pub(crate) trait Float: Copy {
    type Bits: Serialize + DeserializeOwned;
    fn bits(self) -> Self::Bits;
    fn from_bits(bits: Self::Bits) -> Self;
}

macro_rules! float {
    ($float:ty, $bits:ty) => {
        impl Float for $float {
            type Bits = $bits;
            fn bits(self) -> $bits {
                self.to_bits()
            }
            fn from_bits(bits: $bits) -> Self {
                Self::from_bits(bits)
            }
        }
    };
}

float!(f32, u32);
float!(f64, u64);

impl<F: Float> Serialize for Exact<F> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.bits().serialize(serializer)
    }
}

impl<'de, F: Float> Deserialize<'de> for Exact<F> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self(F::from_bits(F::Bits::deserialize(deserializer)?)))
    }
}

//! How the states of an optimizer are kept.

use super::DynamicMap;

/// Smallest tensor whose states are kept in 8 bits.
const LEAST_FOR_EIGHT_BITS: usize = 4096;

/// How the states of all parameters are to be kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Moments {
    /// As floats of the parameter's type.
    #[default]
    Full,
    /// As bf16.
    Bf16,
    /// In 8 bits, if the parameter is large enough and no embedding.
    EightBit,
}

/// What a state holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Of either sign: a first moment, a velocity.
    Signed,
    /// Never negative: a second moment.
    Positive,
}

/// How one state is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// As floats of the parameter's type.
    AsParameter,
    /// As f32.
    F32,
    /// As bf16.
    Bf16,
    /// In 8 bits.
    EightBit(DynamicMap),
}

impl Moments {
    /// How a state of a parameter of so many elements is kept.
    pub fn storage(self, kind: Kind, elements: usize, is_embedding: bool) -> Storage {
        match self {
            Self::Full => Storage::AsParameter,
            Self::Bf16 => Storage::Bf16,
            Self::EightBit if elements < LEAST_FOR_EIGHT_BITS || is_embedding => Storage::F32,
            Self::EightBit => Storage::EightBit(match kind {
                Kind::Signed => DynamicMap::Signed,
                Kind::Positive => DynamicMap::Unsigned,
            }),
        }
    }
}

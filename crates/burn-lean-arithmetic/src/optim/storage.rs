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
    /// [`Bf16`](Self::Bf16), for moments that keep these shares of themselves in a step.
    ///
    /// bf16 has eight bits: a change of less than a 256th of a number may be rounded away, and one
    /// of less than a 512th always is.
    ///
    /// # Panics
    ///
    /// If one keeps more than 0.99, which is named with its value.
    pub fn expect_bf16(kept: &[(&str, f64)]) -> Self {
        // 0.99 in 32 bits is a little more.
        let mut kept = kept.iter();
        if let Some((share, value)) = kept.find(|(_, value)| *value > 0.99 + 1e-6) {
            panic!(
                "{share} is {value}: what keeps more than 0.99 of itself in a step changes by less than bf16 \
                 can hold, and stands still; take at most 0.99, or keep the moments in 8 bits, which \
                 have a scale for each block"
            );
        }
        Self::Bf16
    }

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

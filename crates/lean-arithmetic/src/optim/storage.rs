//! Storage formats of optimizer states.

/// Smallest tensor whose states are kept in 8 bits.
const LEAST_FOR_EIGHT_BITS: usize = 4096;

/// The storage of the moments of all parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Moments {
    /// In floats of the type that a parameter is stepped in.
    #[default]
    Full,
    /// In bf16.
    Bf16,
    /// In 8 bits, if the parameter is large enough and no embedding.
    EightBit,
}

/// The kind of numbers in a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Numbers of either sign: a first moment, a velocity.
    Signed,
    /// Numbers that are never negative: a second moment.
    Positive,
}

/// The storage of one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// In floats of the type that the parameter is stepped in.
    AsParameter,
    /// In f32.
    F32,
    /// In bf16.
    Bf16,
    /// In 8 bits.
    EightBit(Kind),
}

impl Moments {
    /// [`Bf16`](Self::Bf16), for moments with these decay rates.
    ///
    /// bf16 has eight bits: a change of less than a 256th of a number may be rounded away, and one
    /// of less than a 512th always is.
    ///
    /// # Panics
    ///
    /// If a decay rate is larger than 0.99. The message has its name and its value.
    pub fn expect_bf16(kept: &[(&str, f64)]) -> Self {
        // 0.99 in 32 bits is a little more.
        let mut kept = kept.iter();
        if let Some((share, value)) = kept.find(|(_, value)| *value > 0.99 + 1e-6) {
            panic!(
                "{share} is {value}: what keeps more than 0.99 of itself in a step changes by less than bf16 \
                 can hold, and stands still; take at most 0.99, or keep the moments in 32 bits (a \
                 second moment may have 8, which are rounded with noise)"
            );
        }
        Self::Bf16
    }

    /// The storage of a state of a parameter with `elements` elements.
    pub fn storage(self, kind: Kind, elements: usize, is_embedding: bool) -> Storage {
        match self {
            Self::Full => Storage::AsParameter,
            Self::Bf16 => Storage::Bf16,
            Self::EightBit if elements < LEAST_FOR_EIGHT_BITS || is_embedding => Storage::F32,
            Self::EightBit => Storage::EightBit(kind),
        }
    }
}

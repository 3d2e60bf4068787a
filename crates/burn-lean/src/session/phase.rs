//! The life of a parameter from `arm` to `step`.

/// The purpose for which a slot takes a complete gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Steps with it.
    Step,
    /// Measures its norm, and drops it.
    MeasureNorm,
    /// Adds it to the sum of a window of micro-batches.
    Hold,
}

/// The life of a parameter in one arming.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// No gradient has come yet.
    Waiting,
    /// A gradient was taken.
    Taken(Taken),
    /// Another one has come after it.
    TakenTwice(Taken),
    /// Another model was armed or finished in its place. The slot keeps the weight for those that
    /// still have its placeholder.
    Abandoned(Option<Taken>),
    /// The arming has ended, and the `Param` has its weight back.
    Ended,
}

/// What was done with a gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// It is in flight to the other replicas, and the weight is the old one.
    InFlight,
    /// It has made the weight the new one.
    Stepped,
    /// It was dropped, and the weight is the old one.
    Skipped,
    /// It was added to the sum of a window of micro-batches.
    Added,
    /// Its norm was measured.
    Measured,
}

impl Phase {
    pub(crate) fn has_ended(self) -> bool {
        matches!(self, Self::Abandoned(_) | Self::Ended)
    }

    /// What was done with the gradient, if one was taken.
    pub(crate) fn taken(self) -> Option<Taken> {
        match self {
            Self::Taken(taken) | Self::TakenTwice(taken) | Self::Abandoned(Some(taken)) => {
                Some(taken)
            }
            Self::Waiting | Self::Abandoned(None) | Self::Ended => None,
        }
    }

    pub(crate) fn is_taken(self) -> bool {
        self.taken().is_some()
    }

    pub(crate) fn is_taken_twice(self) -> bool {
        matches!(self, Self::TakenTwice(_))
    }

    /// The phase once this was done with the gradient.
    pub(crate) fn after(self, taken: Taken) -> Self {
        match self {
            Self::TakenTwice(_) => Self::TakenTwice(taken),
            _ => Self::Taken(taken),
        }
    }
}

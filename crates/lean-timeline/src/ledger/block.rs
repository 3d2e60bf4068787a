//! One piece of memory, over its whole life.

use crate::snapshot::Category;

/// Index of a block in its recording.
pub type BlockId = usize;

/// The memory that a tensor occupies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Storage {
    /// Its identity: tensors that share it have the same, and no two that exist at a time have the
    /// same.
    pub id: usize,
    /// Its size. A view may show only a part of it.
    pub bytes: u64,
}

/// An operand of an operation.
#[derive(Clone, Copy, Debug)]
pub struct Operand {
    /// The block that it is in.
    pub block: BlockId,
    /// Whether the operation holds the only copy of this tensor.
    pub is_consumed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Purpose {
    pub(super) category: Category,
    pub(super) parameter: Option<usize>,
}

/// A piece of memory, from the operation that allocated it to its release.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) storage: Storage,
    /// Index of the operation that made it.
    pub(super) operation: usize,
    /// The last parameter among the inputs that its content was computed from.
    pub(super) nearest_parameter: Option<usize>,
    /// Whether it was made within a pass or within the step of a parameter.
    pub(super) is_of_a_step: bool,
    pub(super) from: usize,
    pub(super) until: Option<usize>,
    /// Number of tensors in it. Copies of a tensor count as one tensor, each view as another.
    pub(super) tensors: usize,
    /// Its purposes, each with its first tick. The first purpose holds from the beginning.
    pub(super) purposes: Vec<(usize, Purpose)>,
}

impl Block {
    /// Memory of one tensor, made outside of passes and steps, for no known purpose.
    pub(super) fn new(storage: Storage, operation: usize, from: usize) -> Self {
        Self {
            storage,
            operation,
            nearest_parameter: None,
            is_of_a_step: false,
            from,
            until: None,
            tensors: 1,
            purposes: Vec::new(),
        }
    }

    pub(super) fn purpose(&self) -> Option<Purpose> {
        self.purposes.last().map(|(_, purpose)| *purpose)
    }

    pub(super) fn is(&self, category: Category) -> bool {
        self.purpose()
            .is_some_and(|purpose| purpose.category == category)
    }

    pub(super) fn is_live(&self) -> bool {
        self.until.is_none()
    }
}

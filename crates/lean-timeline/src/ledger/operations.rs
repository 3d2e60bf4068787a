//! The names of operations.

use std::collections::HashMap;

/// The operation of tensors that exist before the recording.
pub(super) const BEFORE: &str = "before the recording";

/// The operation of memory that is in use throughout and belongs to no recorded tensor.
pub(super) const BESIDE: &str = "beside the tensors";

/// Operations whose result may be a view of their operand, by the end of their name. All others
/// compute: where the result of one of them occupies the storage of its operand, the content is
/// new.
const VIEWS: [&str; 12] = [
    "_cast",
    "_detach",
    "_expand",
    "_flip",
    "_permute",
    "_reshape",
    "_set_require_grad",
    "_slice",
    "_swap_dims",
    "_to_device",
    "_transpose",
    "_unfold",
];

/// Whether the result of an operation may be a view of its operand.
pub(super) fn may_be_view(operation: &str) -> bool {
    VIEWS.iter().any(|view| operation.ends_with(view))
}

/// The names of the operations seen so far, each with an index.
#[derive(Debug, Default)]
pub(super) struct Operations {
    pub(super) names: Vec<String>,
    indices: HashMap<&'static str, usize>,
}

impl Operations {
    /// The index of a name, which is added if it is new.
    pub(super) fn index(&mut self, name: &'static str) -> usize {
        let names = &mut self.names;
        *self.indices.entry(name).or_insert_with(|| {
            names.push(name.to_owned());
            names.len() - 1
        })
    }
}

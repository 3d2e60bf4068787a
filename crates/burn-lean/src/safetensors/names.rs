//! Names of parameters in files.

use burn::store::{ModuleAdapter, PyTorchToBurnAdapter};

use crate::path::{Path, path_text};

/// A tensor of a file, as a parameter's counterpart.
pub(crate) struct Place {
    pub(crate) name: String,
    /// Whether the parameter is the transposed tensor.
    pub(crate) is_transposed: bool,
}

impl Place {
    /// As PyTorch has it: weights of linear layers are `[output, input]`, and a normalization has a
    /// `weight` and a `bias`.
    pub(super) fn of(path: &Path, names: impl Fn(&str) -> String) -> Self {
        let mut path = path.clone();
        let module = path.iter().rev().map(|(_, container)| container);
        let mut module = module.filter(|it| it.starts_with("Struct:") || it.starts_with("Enum:"));
        let module = module.next().cloned().unwrap_or_default();
        let mut is_transposed = false;
        if let Some((last, _)) = path.last_mut() {
            is_transposed = module == "Struct:Linear" && last == "weight";
            if let Some(other) = PyTorchToBurnAdapter.get_alternative_param_name(last, &module) {
                *last = other;
            }
        }
        Self {
            name: names(&path_text(&path)),
            is_transposed,
        }
    }

    /// The shape of the tensor, from that of the parameter, or the other way round.
    pub(super) fn shape(&self, shape: &[usize]) -> Vec<usize> {
        let mut shape = shape.to_vec();
        if self.is_transposed {
            shape.reverse();
        }
        shape
    }
}

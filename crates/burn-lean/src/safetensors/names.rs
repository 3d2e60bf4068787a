//! Names of parameters in files.

use burn::module::{Module, ModuleVisitor, Param};
use burn::store::{ModuleAdapter, PyTorchToBurnAdapter};
use burn::tensor::{Bool, DType, Int, Tensor};

use super::error::SafetensorsError;
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

/// A tensor of a parameter that is several.
#[cfg_attr(not(feature = "operations"), allow(dead_code))] // Packed weights alone are several.
pub(crate) struct Piece {
    pub(super) name: String,
    pub(super) dtype: DType,
    pub(super) shape: Vec<usize>,
    pub(super) bytes: Vec<u8>,
}

/// A parameter of another kind would not be read, or not be written.
pub(super) fn check_floats<M: Module>(model: &M) -> Result<(), SafetensorsError> {
    #[derive(Default)]
    struct Others {
        path: Path,
        found: Option<(String, &'static str)>,
    }
    impl Others {
        fn find(&mut self, dtype: &'static str) {
            #[cfg(feature = "operations")]
            if crate::path::is_packed(&self.path) {
                return;
            }
            self.found = Some((path_text(&self.path), dtype));
        }
    }
    impl ModuleVisitor for Others {
        fn enter_module(&mut self, name: &str, container: &str) {
            self.path.push((name.into(), container.into()));
        }
        fn exit_module(&mut self, _name: &str, _container: &str) {
            self.path.pop();
        }
        fn visit_int<const D: usize>(&mut self, _param: &Param<Tensor<D, Int>>) {
            self.find("integers");
        }
        fn visit_bool<const D: usize>(&mut self, _param: &Param<Tensor<D, Bool>>) {
            self.find("booleans");
        }
    }
    let mut others = Others::default();
    model.visit(&mut others);
    match others.found {
        Some((name, dtype)) => Err(SafetensorsError::Type {
            name,
            dtype: dtype.into(),
        }),
        None => Ok(()),
    }
}

//! The packed weights of a model.

use std::collections::BTreeMap;

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{DType, Int, Tensor};

use super::packed::Packed;
use crate::path::{Path, is_packed, path_text};

/// Packed weights by their paths, with the type that each had.
pub(crate) type PackedWeights = BTreeMap<String, (Packed, DType)>;

/// The packed weights of a model.
///
/// # Errors
///
/// The path of a weight and what is wrong: it has an adapter, or rows so short that their number is not known.
pub(crate) fn packed_weights<M: Module>(
    model: &M,
) -> Result<PackedWeights, (String, &'static str)> {
    let mut find = Find::default();
    model.visit(&mut find);
    match find.error {
        Some(error) => Err(error),
        None => Ok(find.weights),
    }
}

/// A visitor sees a parameter without what stands for its value, and then the tensors of that.
#[derive(Default)]
struct Find {
    path: Path,
    /// The empty value of the last weight.
    value: Option<([usize; 2], DType)>,
    words: Vec<Tensor<1, Int>>,
    weights: PackedWeights,
    error: Option<(String, &'static str)>,
}

impl Find {
    /// The path of the weight that is packed.
    fn weight(&self) -> String {
        let packed = self.path.iter().rposition(|(name, _)| name == "nf4");
        path_text(&self.path[..packed.unwrap_or(self.path.len())])
    }

    fn add(&mut self, of_scales: Tensor<1>) {
        let words: Result<[Tensor<1, Int>; 2], _> = std::mem::take(&mut self.words).try_into();
        let [numbers, scales] = words.expect("numbers and scales come before the scales of scales");
        let (shape, dtype) = self.value.expect("a weight comes before its numbers");
        let (width, is_transposed) = (shape[0].max(shape[1]), shape[1] == 0);
        let count = 8 * numbers.dims()[0];
        if width < 8 && width > 0 {
            self.refuse("its rows are shorter than 8, and how many there are is not known");
            return;
        }
        let packed = Packed {
            numbers,
            scales,
            of_scales,
            // The last word may not be full.
            dims: [count / width.max(1), width],
            is_transposed,
        };
        self.weights.insert(self.weight(), (packed, dtype));
    }

    fn refuse(&mut self, reason: &'static str) {
        let path = self.weight();
        self.error.get_or_insert((path, reason));
    }
}

impl ModuleVisitor for Find {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.push((name.into(), container.into()));
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if is_packed(&self.path) {
            // Of rank one.
            self.add(Tensor::from_dispatch(param.base().inner().into_dispatch()));
        } else if self.path.iter().any(|(name, _)| name == "nf4") {
            self.refuse(
                "it has an adapter, which `save_adapters` writes: save the model without adapters",
            );
        } else if let &[rows, columns] = &param.lazy_shape()[..]
            && rows * columns == 0
        {
            self.value = Some(([rows, columns], param.base().dtype()));
        }
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        if is_packed(&self.path) {
            // Of rank one.
            let words = param.val().inner().into_dispatch();
            self.words.push(Tensor::from_dispatch(words));
        }
    }
}

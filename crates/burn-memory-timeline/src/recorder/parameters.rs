//! The parameters of a model, by path.

use std::sync::Arc;

use burn::{
    module::{Module, ModuleVisitor, Param},
    tensor::{BasicOps, Bool, Int, Tensor, TensorKind, backend::AutodiffBackend, backend::Backend},
};

use super::{held::Held, look};
use crate::snapshot::Parameter;

/// A parameter and what the recorder knows of it.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) parameter: Parameter,
    pub(super) held: Arc<Held>,
}

/// All parameters of the model that are on a recorded backend.
pub(super) fn of<B: AutodiffBackend, M: Module<B>>(model: &M) -> Vec<Found> {
    let mut search = Search::default();
    model.visit(&mut search);
    search.found
}

#[derive(Default)]
struct Search {
    path: Vec<String>,
    found: Vec<Found>,
}

impl Search {
    fn find<B: Backend, const D: usize, K: TensorKind<B> + BasicOps<B>>(
        &mut self,
        tensor: &Tensor<B, D, K>,
    ) {
        if let Some(held) = look::at(tensor) {
            let shape = tensor.shape();
            self.found.push(Found {
                parameter: Parameter {
                    path: self.path.join("."),
                    bytes: (shape.num_elements() * tensor.dtype().size()) as u64,
                    shape: shape.to_vec(),
                },
                held,
            });
        }
    }
}

impl<B: AutodiffBackend> ModuleVisitor<B> for Search {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        self.find(&param.val().inner());
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<B, D, Int>>) {
        self.find(&param.val().inner());
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<B, D, Bool>>) {
        self.find(&param.val().inner());
    }

    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }
}

//! The parameters of a model, by path.

use burn::{
    module::{Module, ModuleVisitor, Param},
    tensor::{BasicOps, Bool, Int, Tensor, TensorKind, backend::AutodiffBackend, backend::Backend},
};

use super::{entry::Entry, lookup};
use crate::snapshot::Parameter;

/// All parameters of the model that are on a recorded backend, each with its entry.
pub(super) fn of<B: AutodiffBackend, M: Module<B>>(model: &M) -> Vec<(Parameter, Option<Entry>)> {
    let mut visitor = Visitor::default();
    model.visit(&mut visitor);
    visitor.parameters
}

#[derive(Default)]
struct Visitor {
    /// The names and the container types of the modules around a parameter.
    path: Vec<(String, String)>,
    parameters: Vec<(Parameter, Option<Entry>)>,
}

impl Visitor {
    fn add<B: Backend, const D: usize, K: TensorKind<B> + BasicOps<B>>(
        &mut self,
        tensor: &Tensor<B, D, K>,
    ) {
        if let Some(handle) = lookup::handle_of(tensor) {
            let shape = tensor.shape();
            let names: Vec<_> = self.path.iter().map(|(name, _)| name.as_str()).collect();
            let container = self.path.last().map(|(_, container)| container);
            let parameter = Parameter {
                path: names.join("."),
                is_embedding: container.is_some_and(|it| it.contains("Embedding")),
                bytes: (shape.num_elements() * tensor.dtype().size()) as u64,
                shape: shape.to_vec(),
            };
            self.parameters.push((parameter, handle.entry().get()));
        }
    }
}

impl<B: AutodiffBackend> ModuleVisitor<B> for Visitor {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        self.add(&param.val().inner());
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<B, D, Int>>) {
        self.add(&param.val().inner());
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<B, D, Bool>>) {
        self.add(&param.val().inner());
    }

    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.path.push((name.to_owned(), container_type.to_owned()));
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }
}

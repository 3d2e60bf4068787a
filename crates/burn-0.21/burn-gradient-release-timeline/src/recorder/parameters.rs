//! The parameters of a model, by path.

use burn::{
    module::{Module, ModuleVisitor, Param},
    tensor::{
        BasicOps, Bool, Device, Int, Tensor, TensorKind,
        backend::{AutodiffBackend, Backend},
    },
};

use super::{entry::Entry, lookup};
use crate::snapshot::Parameter;

/// The parameters of a model.
#[derive(Default)]
pub(super) struct Parameters {
    /// Those that are on a recorded backend, each with its entry.
    pub(super) found: Vec<(Parameter, Option<Entry>)>,
    /// Whether one has no value yet. Reading it here would change the order in which parameters
    /// draw random numbers.
    pub(super) is_one_left: bool,
}

pub(super) fn of<B: AutodiffBackend, M: Module<B>>(model: &M) -> Parameters {
    let mut visitor = Visitor::default();
    model.visit(&mut visitor);
    visitor.parameters
}

/// The device of a model, of which no parameter is read.
pub(super) fn device_of<B: Backend, M: Module<B>>(model: &M) -> Device<B> {
    struct First<B: Backend>(Option<Device<B>>);

    impl<B: Backend> ModuleVisitor<B> for First<B> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            self.0.get_or_insert_with(|| param.lazy_device());
        }
    }

    let mut first = First::<B>(None);
    model.visit(&mut first);
    first.0.unwrap_or_default()
}

#[derive(Default)]
struct Visitor {
    /// The names and the container types of the modules around a parameter.
    path: Vec<(String, String)>,
    parameters: Parameters,
}

impl Visitor {
    fn is_readable(&mut self, is_initialized: bool) -> bool {
        self.parameters.is_one_left |= !is_initialized;
        is_initialized
    }

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
            self.parameters
                .found
                .push((parameter, handle.entry().get()));
        }
    }
}

impl<B: AutodiffBackend> ModuleVisitor<B> for Visitor {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        if self.is_readable(param.is_initialized()) {
            self.add(&param.val().inner());
        }
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<B, D, Int>>) {
        if self.is_readable(param.is_initialized()) {
            self.add(&param.val().inner());
        }
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<B, D, Bool>>) {
        if self.is_readable(param.is_initialized()) {
            self.add(&param.val().inner());
        }
    }

    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.path.push((name.to_owned(), container_type.to_owned()));
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }
}

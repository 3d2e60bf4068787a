//! The paths of the parameters of a model, as Burn's stores and its later versions write them.

use std::marker::PhantomData;

use burn::{
    module::{Module, ModuleVisitor, Param, ParamId},
    tensor::{Bool, Int, Shape, Tensor, backend::Backend},
};

/// Calls `f` with the path, the id and the shape of each parameter, with its container, and with
/// whether it is trained.
///
/// A path is the names of the fields that lead to the parameter, joined by dots: `layers.0.weight`.
/// An `Option` adds no name. The container is Burn's `container_type` of the innermost struct or
/// enum around the parameter, such as `Struct:Linear`: without its generics; lists in between do
/// not count. It is empty if there is none.
pub(crate) fn visit_paths<B, M>(model: &M, f: impl FnMut(&str, ParamId, Shape, &str, bool))
where
    B: Backend,
    M: Module<B>,
{
    model.visit(&mut Walk {
        path: String::new(),
        entered: Vec::new(),
        f,
        backend: PhantomData::<B>,
    });
}

/// The path of a parameter in a model, not of a frozen copy with its id; its id if the model does
/// not have it.
pub(crate) fn path_of<B: Backend, M: Module<B>>(model: &M, param: ParamId) -> String {
    let (mut found, mut found_trained) = (param.to_string(), false);
    visit_paths::<B, M>(model, |path, id, _, _, is_trained| {
        if id == param && (is_trained || !found_trained) {
            (found, found_trained) = (path.to_string(), is_trained);
        }
    });
    found
}

struct Walk<F, B> {
    path: String,
    entered: Vec<Entered>,
    f: F,
    backend: PhantomData<B>,
}

/// A field on the way to a parameter.
struct Entered {
    /// The length of the path without it.
    outer: usize,
    container: String,
}

impl<F: FnMut(&str, ParamId, Shape, &str, bool), B> Walk<F, B> {
    fn visit(&mut self, id: ParamId, shape: Shape, is_trainable: bool) {
        let containers = self.entered.iter().rev().map(|entered| &entered.container);
        let container = containers
            .map(String::as_str)
            .find(|container| container.contains(':'))
            .unwrap_or_default();
        (self.f)(&self.path, id, shape, container, is_trainable);
    }
}

impl<F, B> ModuleVisitor<B> for Walk<F, B>
where
    F: FnMut(&str, ParamId, Shape, &str, bool),
    B: Backend,
{
    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.entered.push(Entered {
            outer: self.path.len(),
            container: container_type.to_owned(),
        });
        if !self.path.is_empty() {
            self.path.push('.');
        }
        self.path.push_str(name);
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        if let Some(entered) = self.entered.pop() {
            self.path.truncate(entered.outer);
        }
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        // Burn draws a parameter when it is first read, in the order of reading: not for this.
        let is_trained = !param.is_initialized() || param.is_require_grad();
        self.visit(param.id, param.lazy_shape(), is_trained);
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<B, D, Int>>) {
        self.visit(param.id, param.lazy_shape(), false);
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<B, D, Bool>>) {
        self.visit(param.id, param.lazy_shape(), false);
    }
}

#[cfg(test)]
mod tests {
    use burn::backend::{Autodiff, Flex};
    use burn::nn::{Linear, LinearConfig};

    use super::*;

    type B = Autodiff<Flex>;

    #[test]
    fn what_is_trained_is_named_and_not_its_frozen_copy() {
        let trained: Linear<B> = LinearConfig::new(2, 2).init(&Default::default());
        let (id, frozen) = (trained.weight.id, trained.clone().no_grad());
        for (pair, path) in [
            ([trained.clone(), frozen.clone()], "0.weight"),
            ([frozen, trained], "1.weight"),
        ] {
            assert_eq!(path_of::<B, _>(&pair, id), path);
        }
    }
}

//! A digest of weights, to compare those of two runs.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Tensor, backend::Backend};
use vit_common::digest::Weights;

/// SHA-256 over the shape and the bits of every weight, in the order of the model.
pub fn weights<B: Backend, M: Module<B>>(model: &M) -> String {
    let mut visitor = Visitor(Weights::default());
    model.visit(&mut visitor);
    visitor.0.finish()
}

struct Visitor(Weights);

impl<B: Backend> ModuleVisitor<B> for Visitor {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        let data = param.val().into_data();
        self.0.add(&data.shape, data.as_bytes());
    }
}

//! A hash of weights, to compare those of two models.

use std::hash::{DefaultHasher, Hash, Hasher};

use burn::{
    module::{Module, ModuleVisitor, Param},
    tensor::{Tensor, backend::Backend},
};

/// A hash of the shape and the bits of every weight, in the order of the model.
pub fn digest<B: Backend, M: Module<B>>(model: &M) -> u64 {
    let mut visitor = Weights(DefaultHasher::new());
    model.visit(&mut visitor);
    visitor.0.finish()
}

struct Weights(DefaultHasher);

impl<B: Backend> ModuleVisitor<B> for Weights {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        let data = param.val().into_data();
        data.shape.hash(&mut self.0);
        data.as_bytes().hash(&mut self.0);
    }
}

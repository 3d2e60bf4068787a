//! A digest of weights, to compare those of two runs.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Tensor, backend::Backend};
use sha2::{Digest, Sha256};

/// SHA-256 over the shape and the bits of every weight, in the order of the model.
pub fn weights<B: Backend, M: Module<B>>(model: &M) -> String {
    let mut visitor = Weights(Sha256::new());
    model.visit(&mut visitor);
    hex(visitor.0)
}

/// The digest as lower-case hexadecimal digits.
pub fn hex(hash: Sha256) -> String {
    hash.finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

struct Weights(Sha256);

impl<B: Backend> ModuleVisitor<B> for Weights {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        let data = param.val().into_data();
        for size in data.shape.iter() {
            self.0.update((*size as u64).to_le_bytes());
        }
        self.0.update(data.as_bytes());
    }
}

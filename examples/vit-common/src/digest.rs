//! Digests of weights and of images, to compare those of two runs.

use sha2::{Digest, Sha256};

/// SHA-256 over the shape and the bits of every weight, in the order of the model.
#[derive(Clone, Debug, Default)]
pub struct Weights(Sha256);

impl Weights {
    /// Adds a weight.
    pub fn add(&mut self, shape: &[usize], bytes: &[u8]) {
        for size in shape {
            self.0.update((*size as u64).to_le_bytes());
        }
        self.0.update(bytes);
    }

    /// The digest of the weights so far, as lower-case hexadecimal digits.
    pub fn finish(self) -> String {
        hex(self.0)
    }
}

pub(crate) fn hex(hash: Sha256) -> String {
    hash.finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

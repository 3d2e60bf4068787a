//! The vision transformer (Dosovitskiy et al., 2021, <https://arxiv.org/abs/2010.11929>).
//!
//! It is compiled twice, from one file: of Burn's modules, and of those that keep little for the
//! backward pass. The line that says which is all that differs.

#![allow(clippy::duplicate_mod)] // That is the point.

#[path = "."]
mod plain {
    use burn::nn;

    #[path = "vit.rs"]
    pub(super) mod vit;
}

#[path = "."]
mod lean {
    use burn_lean::operations::nn;

    #[path = "vit.rs"]
    pub(super) mod vit;
}

pub use lean::vit::Vit as LeanVit;
pub use plain::vit::Vit;

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Tensor};
use sha2::{Digest, Sha256};
use vit_inputs::{Checkpointing, VitConfig};

/// A vision transformer, of whichever modules.
pub trait Model: Module {
    /// Builds the model with random weights. A model that is trained is on a device with autodiff.
    fn new(config: &VitConfig, device: &Device) -> Self;

    /// Chooses what the backward pass recomputes: each block from its input; or also, once more,
    /// attention and the norm of the perceptron in it, so that their activations do not exist beside
    /// those of the perceptron.
    #[must_use]
    fn recomputing(self, checkpointing: Checkpointing) -> Self;

    /// Scores each class for each image. With a seed, the masks of dropout are drawn from it; they
    /// are the same whatever is recomputed, as every dropout has a seed of its own.
    ///
    /// # Shapes
    ///
    /// - images: `[batch, channels, size, size]`
    /// - output: `[batch, classes]`
    fn forward(&self, images: Tensor<4>, seed: Option<u64>) -> Tensor<2>;
}

/// Draws all weights, in the order of the fields.
///
/// Burn draws a weight at its first access. That is the forward pass, in its order, or what looks at the
/// model before, as a cast or a checkpoint: the same seed would give other weights.
pub fn drawn<M: Module>(model: M) -> M {
    struct Access;
    impl ModuleVisitor for Access {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            param.val();
        }
    }
    model.visit(&mut Access);
    model
}

/// SHA-256 over the shape and the bits of every weight, in the order of the model: to compare those
/// of two runs.
pub fn digest<M: Module>(model: &M) -> String {
    struct Visitor(Sha256);
    impl ModuleVisitor for Visitor {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let data = param.val().into_data();
            for size in data.shape().as_slice() {
                self.0.update((*size as u64).to_le_bytes());
            }
            self.0.update(data.as_bytes());
        }
    }
    let mut visitor = Visitor(Sha256::new());
    model.visit(&mut visitor);
    format!("{:x}", visitor.0.finalize())
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::*;
    use vit_inputs::Preset;

    #[test]
    fn a_model_has_the_published_size() {
        let config = Preset::Small.config(224, 3, 1000);
        let model = Vit::new(&config, &Device::flex());
        assert_eq!(model.num_params(), 22_050_664);
    }

    #[test]
    fn both_have_one_record_and_the_same_scores() {
        let device = Device::flex().autodiff();
        let config = Preset::Tiny.config(8, 3, 5);
        let plain = drawn(Vit::new(&config, &device));
        let lean = LeanVit::new(&config, &device).load_record(plain.clone().into_record());
        let images = Tensor::ones([2, 3, 8, 8], &device.inner());
        let [plain, lean] = [
            plain.valid().forward(images.clone(), None),
            lean.valid().forward(images, None),
        ];
        assert_eq!(plain.dims(), [2, 5]);
        assert!((plain - lean).abs().max().into_scalar::<f32>() < 1e-5);
    }
}

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
pub use vit_common::config::VitConfig;

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Tensor};
use vit_common::config::Checkpointing;

/// The parts of the model that the backward pass recomputes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Recomputed {
    /// None.
    #[default]
    Nothing,
    /// Each block, from its input.
    Blocks,
    /// Each block from its input, and in it the attention and the norm of the perceptron once more,
    /// so that their activations do not exist beside those of the perceptron.
    Nested,
}

impl From<Checkpointing> for Recomputed {
    fn from(checkpointing: Checkpointing) -> Self {
        match checkpointing {
            Checkpointing::Blocks => Self::Blocks,
            Checkpointing::Nested => Self::Nested,
            _ => Self::Nothing,
        }
    }
}

/// A vision transformer, of whichever modules.
pub trait Model: Module {
    /// Builds the model with random weights. A model that is trained is on a device with autodiff.
    fn new(config: &VitConfig, device: &Device) -> Self;

    /// Chooses what the backward pass recomputes; the activations of the rest are kept.
    #[must_use]
    fn recomputing(self, recomputed: Recomputed) -> Self;

    /// Scores each class for each image.
    ///
    /// # Shapes
    ///
    /// - images: `[batch, channels, size, size]`
    /// - output: `[batch, classes]`
    fn forward(&self, images: Tensor<4>) -> Tensor<2>;

    /// [`forward`](Self::forward) with the masks of dropout drawn from this seed. They are the same
    /// whatever is recomputed, as every dropout has a seed of its own.
    fn forward_seeded(&self, images: Tensor<4>, seed: u64) -> Tensor<2>;
}

/// Draws all weights, in the order of the fields.
///
/// Burn draws a weight at its first access. That is the forward pass, in its order, or an optimizer
/// that arms the model: the same seed would give other weights.
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

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::*;
    use vit_common::config::Preset;

    #[test]
    fn a_model_has_the_size_that_was_worked_out_and_scores_every_class() {
        let device = Device::flex().autodiff();
        let config = Preset::Tiny.config(8, 3, 5);
        assert_eq!(
            LeanVit::new(&config, &device).num_params(),
            config.num_params()
        );
        for recomputed in [Recomputed::Nothing, Recomputed::Blocks, Recomputed::Nested] {
            let model = Vit::new(&config, &device).recomputing(recomputed);
            assert_eq!(model.num_params(), config.num_params());
            let scores = model.forward(Tensor::ones([2, 3, 8, 8], &device));
            assert_eq!(scores.dims(), [2, 5]);
        }
    }

    #[test]
    fn both_have_one_record_and_the_same_scores() {
        let device = Device::flex().autodiff();
        let config = Preset::Tiny.config(8, 3, 5);
        let plain = drawn(Vit::new(&config, &device));
        let lean = LeanVit::new(&config, &device).load_record(plain.clone().into_record());
        let images = Tensor::ones([2, 3, 8, 8], &device.inner());
        let difference = plain.valid().forward(images.clone()) - lean.valid().forward(images);
        assert!(difference.abs().max().into_scalar::<f32>() < 1e-5);
    }
}

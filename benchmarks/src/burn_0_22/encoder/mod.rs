//! The [`encoder`](crate::encoder) on Burn 0.22.
//!
//! It is compiled twice, from one file: of Burn's modules, and of those of burn-lean.

#![allow(clippy::duplicate_mod)] // That is the point.

#[path = "."]
mod plain {
    use crate::burn_0_22::loss::cross_entropy;
    use burn_0_22::nn;

    #[path = "model.rs"]
    pub(super) mod model;
}

#[path = "."]
mod lean {
    use crate::burn_0_22::loss::lean_cross_entropy as cross_entropy;
    use burn_lean::operations::nn;

    #[path = "model.rs"]
    pub(super) mod model;
}

pub(super) use lean::model::Encoder as LeanEncoder;
pub(super) use plain::model::Encoder;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::burn_0_22::scorer::testing::{self, CONTEXT, VOCABULARY};
    use crate::encoder::EncoderConfig;
    use crate::results::LossChunk;
    use burn_0_22::module::Module;

    fn config() -> EncoderConfig {
        EncoderConfig::new(VOCABULARY, CONTEXT, 8, 2, 2, 32)
    }

    #[test]
    fn it_has_the_parameters_that_it_has_on_burn_0_21() {
        let _alone = testing::alone();
        let (model, _) = testing::loss::<_, Encoder>(&config(), false, LossChunk::WHOLE);
        let layer = 4 * (64 + 8) + (256 + 32) + (256 + 8) + 2 * 16;
        let head = 8 * VOCABULARY + VOCABULARY;
        let embeddings = VOCABULARY * 8 + CONTEXT * 8;
        assert_eq!(model.num_params(), embeddings + 2 * layer + head);
        let (lean, _) = testing::loss::<_, LeanEncoder>(&config(), false, LossChunk::WHOLE);
        assert_eq!(lean.num_params(), model.num_params());
    }

    #[test]
    fn recomputed_layers_have_the_same_gradients() {
        let _alone = testing::alone();
        testing::recomputed_blocks_have_the_same_gradients::<_, Encoder>(&config());
        testing::recomputed_blocks_have_the_same_gradients::<_, LeanEncoder>(&config());
    }

    #[test]
    fn chunks_and_lean_operations_differ_from_burns_by_rounding() {
        let _alone = testing::alone();
        testing::chunks_and_lean_operations_differ_by_rounding::<_, Encoder, LeanEncoder>(&config());
    }
}

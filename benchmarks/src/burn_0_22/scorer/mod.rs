//! What the language models of Burn 0.22 have in common.

#[cfg(test)]
pub(super) mod testing;

use crate::results::LossChunk;
use burn_0_22::module::Module;
use burn_0_22::tensor::{Device, Int, Tensor};

/// A model of the shape `C` that scores the tokens at every position, of whichever modules.
pub(super) trait Scorer<C>: Module {
    /// Builds the model with random weights. With `recomputes_blocks`, the backward pass recomputes
    /// the blocks from their inputs; otherwise their activations are kept.
    fn new(config: &C, recomputes_blocks: bool, device: &Device) -> Self;

    /// The mean loss of the scores, with the masks of dropout, if there is any, drawn from `seed`.
    ///
    /// # Shapes
    ///
    /// - ids: `[batch, context]`
    /// - labels: `[batch * context]`
    fn loss(
        &self,
        ids: Tensor<2, Int>,
        labels: Tensor<1, Int>,
        chunk: LossChunk,
        seed: u64,
    ) -> Tensor<1>;
}

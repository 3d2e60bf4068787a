//! The [`encoder`](crate::encoder) on Burn 0.22.

use super::loss::cross_entropy;
use crate::encoder::EncoderConfig;
use crate::results::LossChunk;
// The derive macro names the crate `burn`, which is Burn 0.21 elsewhere in this package.
use burn_0_22 as burn;
use burn_0_22::module::Module;
use burn_0_22::nn::transformer::{
    TransformerEncoder, TransformerEncoderConfig, TransformerEncoderLayer,
};
use burn_0_22::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn_0_22::tensor::{Device, Int, Tensor};
use burn_lean::checkpoint;
use vit::rng::SeededRng;

/// An encoder that scores the tokens at every position.
#[derive(Module, Debug)]
pub(super) struct Encoder {
    tokens: Embedding,
    positions: Embedding,
    encoder: TransformerEncoder,
    recomputes_layers: bool,
    head: Linear,
}

impl Encoder {
    /// Builds the model with random weights. With `recomputes_layers`, the backward pass recomputes the
    /// layers from their inputs; otherwise their activations are kept.
    pub(super) fn new(config: &EncoderConfig, recomputes_layers: bool, device: &Device) -> Self {
        let EncoderConfig {
            vocabulary,
            context,
            dim,
            depth,
            heads,
            hidden,
            dropout,
        } = *config;
        Self {
            tokens: EmbeddingConfig::new(vocabulary, dim).init(device),
            positions: EmbeddingConfig::new(context, dim).init(device),
            encoder: TransformerEncoderConfig::new(dim, hidden, heads, depth)
                .with_dropout(dropout)
                .init(device),
            recomputes_layers,
            head: LinearConfig::new(dim, vocabulary).init(device),
        }
    }

    /// The mean loss of the scores, with the masks of dropout drawn from `seed`.
    ///
    /// # Shapes
    ///
    /// - ids: `[batch, context]`
    /// - labels: `[batch * context]`
    pub(super) fn loss(
        &self,
        ids: Tensor<2, Int>,
        labels: Tensor<1, Int>,
        chunk: LossChunk,
        seed: u64,
    ) -> Tensor<1> {
        cross_entropy(&self.head, self.hidden(ids, seed), labels, chunk)
    }

    /// What the head scores: `[batch, context, dim]`.
    ///
    /// As `TransformerEncoder::forward`, which has no place for a scope. Each layer has a seed of its own,
    /// as a scope has a stream of its own: the masks do not depend on what is recomputed.
    fn hidden(&self, ids: Tensor<2, Int>, seed: u64) -> Tensor<3> {
        let [_, context] = ids.dims();
        let places = Tensor::arange(0..context as i64, &ids.device()).unsqueeze();
        let mut hidden = self.tokens.forward(ids) + self.positions.forward(places);
        for (number, layer) in self.encoder.layers.iter().enumerate() {
            let seed = SeededRng::new(&[seed, number as u64]).next_u64();
            let forward = move |layer: &TransformerEncoderLayer, hidden: Tensor<3>| {
                hidden.device().seed(seed);
                layer.forward(hidden, None, None)
            };
            hidden = if self.recomputes_layers {
                checkpoint(layer, hidden, forward)
            } else {
                forward(layer, hidden)
            };
        }
        hidden
    }
}

#[cfg(test)]
mod tests {
    use super::super::trainee::draw;
    use super::*;
    use burn_0_22::tensor::TensorData;
    use std::sync::Mutex;

    const VOCABULARY: usize = 11;

    /// All threads draw from one generator, and a recomputed layer in backward as well.
    static GENERATOR: Mutex<()> = Mutex::new(());

    /// The model, and the loss of a batch of two sequences.
    fn loss(recomputes: bool, chunk: LossChunk) -> (Encoder, Tensor<1>) {
        let device = Device::flex().autodiff();
        device.seed(5);
        let config = EncoderConfig::new(VOCABULARY, 4, 8, 2, 2, 32);
        let model = Encoder::new(&config, recomputes, &device);
        draw(&model);
        let ids = |shape: &[usize]| {
            let ids = (0..8).map(|token| token * token % VOCABULARY as i32);
            TensorData::new(ids.collect::<Vec<_>>(), shape)
        };
        let inputs = Tensor::from_data(ids(&[2, 4]), &device);
        let loss = model.loss(inputs, Tensor::from_data(ids(&[8]), &device), chunk, 3);
        (model, loss)
    }

    #[test]
    fn it_has_the_parameters_that_it_has_on_burn_0_21() {
        let _alone = GENERATOR.lock();
        let (model, _) = loss(false, LossChunk::WHOLE);
        let layer = 4 * (64 + 8) + (256 + 32) + (256 + 8) + 2 * 16;
        let head = 8 * VOCABULARY + VOCABULARY;
        let embeddings = VOCABULARY * 8 + 4 * 8;
        assert_eq!(model.num_params(), embeddings + 2 * layer + head);
    }

    #[test]
    fn recomputed_layers_have_the_same_gradients() {
        let _alone = GENERATOR.lock();
        let bits = |recomputes: bool| {
            let (model, loss) = loss(recomputes, LossChunk::WHOLE);
            let value = loss.clone().into_data();
            let gradients = loss.backward();
            let gradient = model.tokens.weight.grad(&gradients).unwrap();
            (value, gradient.into_data())
        };
        assert_eq!(bits(false), bits(true));
    }

    #[test]
    fn chunks_differ_from_the_whole_by_rounding() {
        let _alone = GENERATOR.lock();
        let value = |chunk: LossChunk| loss(false, chunk).1.into_scalar::<f64>();
        let whole = value(LossChunk::WHOLE);
        // One token, a rest of two, all.
        for tokens in ["1", "3", "8"] {
            let by_chunks = value(tokens.parse().unwrap());
            assert!((by_chunks / whole - 1.0).abs() < 1e-5, "{tokens}");
        }
    }
}

//! The [`encoder`](crate::encoder) on Burn 0.22.
//!
//! It is compiled twice, from one file: of Burn's modules, and of those of burn-lean.

#![allow(clippy::duplicate_mod)] // That is the point.

#[path = "."]
mod plain {
    use super::Scorer;
    use crate::burn_0_22::loss::cross_entropy;
    use burn_0_22::nn;

    #[path = "model.rs"]
    pub(super) mod model;
}

#[path = "."]
mod lean {
    use super::Scorer;
    use crate::burn_0_22::loss::lean_cross_entropy as cross_entropy;
    use burn_lean::operations::nn;

    #[path = "model.rs"]
    pub(super) mod model;
}

pub(super) use lean::model::Encoder as LeanEncoder;
pub(super) use plain::model::Encoder;

use crate::encoder::EncoderConfig;
use crate::results::LossChunk;
use burn_0_22::module::Module;
use burn_0_22::tensor::{Device, Int, Tensor};

/// A model that scores the tokens at every position, of whichever modules.
pub(super) trait Scorer: Module {
    /// Builds the model with random weights. With `recomputes_layers`, the backward pass recomputes
    /// the layers from their inputs; otherwise their activations are kept.
    fn new(config: &EncoderConfig, recomputes_layers: bool, device: &Device) -> Self;

    /// The mean loss of the scores, with the masks of dropout drawn from `seed`.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::burn_0_22::trainee::draw;
    use burn_0_22::module::{ModuleVisitor, Param};
    use burn_0_22::tensor::{Gradients, TensorData};
    use std::sync::Mutex;

    const VOCABULARY: usize = 11;

    /// All threads draw from one generator, and a recomputed layer in backward as well.
    static GENERATOR: Mutex<()> = Mutex::new(());

    /// The model, and the loss of a batch of two sequences.
    fn loss<M: Scorer>(recomputes: bool, chunk: LossChunk) -> (M, Tensor<1>) {
        let device = Device::flex().autodiff();
        device.seed(5);
        let config = EncoderConfig::new(VOCABULARY, 4, 8, 2, 2, 32);
        let model = M::new(&config, recomputes, &device);
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
        let (model, _) = loss::<Encoder>(false, LossChunk::WHOLE);
        let layer = 4 * (64 + 8) + (256 + 32) + (256 + 8) + 2 * 16;
        let head = 8 * VOCABULARY + VOCABULARY;
        let embeddings = VOCABULARY * 8 + 4 * 8;
        assert_eq!(model.num_params(), embeddings + 2 * layer + head);
        let (lean, _) = loss::<LeanEncoder>(false, LossChunk::WHOLE);
        assert_eq!(lean.num_params(), model.num_params());
    }

    /// The loss, and the gradients in the order of the parameters.
    fn bits<M: Scorer>(recomputes: bool) -> Vec<TensorData> {
        struct Collect(Gradients, Vec<TensorData>);
        impl ModuleVisitor for Collect {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                let gradient = param.val().grad(&self.0);
                self.1.push(gradient.expect("each is used").into_data());
            }
        }
        let (model, loss) = loss::<M>(recomputes, LossChunk::WHOLE);
        let value = loss.clone().into_data();
        let mut collect = Collect(loss.backward(), vec![value]);
        model.visit(&mut collect);
        collect.1
    }

    #[test]
    fn recomputed_layers_have_the_same_gradients() {
        let _alone = GENERATOR.lock();
        assert_eq!(bits::<Encoder>(false), bits::<Encoder>(true));
        assert_eq!(bits::<LeanEncoder>(false), bits::<LeanEncoder>(true));
    }

    #[test]
    fn chunks_and_lean_operations_differ_from_burns_by_rounding() {
        let _alone = GENERATOR.lock();
        let value = |chunk: LossChunk| loss::<Encoder>(false, chunk).1.into_scalar::<f64>();
        let whole = value(LossChunk::WHOLE);
        // One token, a rest of two, all.
        for tokens in ["1", "3", "8"] {
            let by_chunks = value(tokens.parse().unwrap());
            assert!((by_chunks / whole - 1.0).abs() < 1e-5, "{tokens}");
        }
        let (_, lean) = loss::<LeanEncoder>(false, LossChunk::WHOLE);
        assert!((lean.into_scalar::<f64>() / whole - 1.0).abs() < 1e-5);
    }
}

//! The loss of the language models, of all tokens at once or by chunks.

use crate::arithmetic::LossChunk;
use burn::nn::Linear;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::tensor::backend::Backend;
use burn::tensor::{Int, Tensor};
use burn_gradient_release::checkpoint;

/// The mean cross entropy of what `head` scores.
///
/// With chunks, each is a scope of `checkpoint` around head and loss: on a backend with gradient
/// release, only the scores of one chunk exist at once.
///
/// # Shapes
///
/// - hidden: `[batch, time, dim]`
/// - labels: `[batch * time]`
/// - output: `[1]`
pub fn cross_entropy<B: Backend>(
    head: &Linear<B>,
    hidden: Tensor<B, 3>,
    labels: Tensor<B, 1, Int>,
    chunk: LossChunk,
) -> Tensor<B, 1> {
    let loss = CrossEntropyLossConfig::new().init(&hidden.device());
    let LossChunk(Some(chunk)) = chunk else {
        return loss.forward(head.forward(hidden).flatten(0, 1), labels);
    };
    let hidden: Tensor<B, 2> = hidden.flatten(0, 1);
    let [tokens, _] = hidden.dims();
    let chunks = hidden.split(chunk.get(), 0).into_iter();
    let sums = chunks
        .zip(labels.split(chunk.get(), 0))
        .map(|(hidden, labels)| {
            let [count] = labels.dims();
            checkpoint(|| loss.forward(head.forward(hidden), labels) * count as f64)
        });
    let sum = sums.reduce(|sum, next| sum + next);
    sum.expect("a batch has tokens") / tokens as f64
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::*;
    use burn::backend::{Autodiff, Flex};
    use burn::module::Param;
    use burn::tensor::Distribution;
    use burn::tensor::backend::AutodiffBackend;
    use burn_gradient_release::GradientRelease;
    use std::num::NonZeroUsize;

    type Plain = Autodiff<Flex>;
    type Release = GradientRelease<Plain>;

    const BATCH: usize = 2;
    const TIME: usize = 15;
    const DIM: usize = 8;
    const VOCABULARY: usize = 11;

    /// Inputs of every backend.
    struct Inputs {
        weight: Tensor<Flex, 2>,
        bias: Tensor<Flex, 1>,
        hidden: Tensor<Flex, 3>,
        labels: Tensor<Flex, 1, Int>,
    }

    impl Inputs {
        fn random() -> Self {
            let device = Default::default();
            let labels = (0..BATCH * TIME).map(|token| (token * token % VOCABULARY) as i32);
            Self {
                weight: Tensor::random([DIM, VOCABULARY], Distribution::Default, &device),
                bias: Tensor::random([VOCABULARY], Distribution::Default, &device),
                hidden: Tensor::random([BATCH, TIME, DIM], Distribution::Default, &device),
                labels: Tensor::from_data(labels.collect::<Vec<_>>().as_slice(), &device),
            }
        }

        /// The loss and the gradients of weight, bias and input.
        fn outcome<B>(&self, chunk: LossChunk) -> [Vec<f32>; 4]
        where
            B: AutodiffBackend<InnerBackend = Flex>,
        {
            let head = Linear {
                weight: Param::from_tensor(Tensor::<B, 2>::from_inner(self.weight.clone())),
                bias: Some(Param::from_tensor(Tensor::from_inner(self.bias.clone()))),
            };
            let hidden = Tensor::<B, 3>::from_inner(self.hidden.clone()).require_grad();
            let labels = Tensor::from_inner(self.labels.clone());
            let loss = cross_entropy(&head, hidden.clone(), labels, chunk);
            let gradients = loss.backward();
            let bias = head.bias.as_ref().unwrap();
            [
                loss.into_data(),
                head.weight.grad(&gradients).unwrap().into_data(),
                bias.grad(&gradients).unwrap().into_data(),
                hidden.grad(&gradients).unwrap().into_data(),
            ]
            .map(|data| data.to_vec().unwrap())
        }
    }

    fn chunk(tokens: usize) -> LossChunk {
        LossChunk(Some(NonZeroUsize::new(tokens).unwrap()))
    }

    #[test]
    fn chunks_differ_from_the_whole_by_rounding() {
        let inputs = Inputs::random();
        let whole = inputs.outcome::<Plain>(LossChunk::WHOLE);
        // One token; a divisor of the 30 tokens; a rest of 2; all; more than there are.
        for tokens in [1, 10, 7, 30, 64] {
            let by_chunks = inputs.outcome::<Plain>(chunk(tokens));
            for (one, other) in whole.iter().zip(&by_chunks) {
                assert_eq!(one.len(), other.len());
                for (one, other) in one.iter().zip(other) {
                    let difference = (one - other).abs();
                    assert!(difference <= 1e-6, "{tokens} at once: {one} and {other}");
                }
            }
        }
    }

    #[test]
    fn recomputed_chunks_have_the_same_bits() {
        let inputs = Inputs::random();
        for chunk in [LossChunk::WHOLE, chunk(1), chunk(7), chunk(10), chunk(64)] {
            let plain = inputs.outcome::<Plain>(chunk);
            let release = inputs.outcome::<Release>(chunk);
            assert!(plain == release, "{chunk}");
        }
    }
}

//! The embedding.

use burn::tensor::quantization::QuantScheme;
use burn_lean::MixedPrecision;
use burn_lean::operations::{embedding, nn};

use super::harness::{Case, noise, shaped};
use crate::harness::prelude::*;

/// Tokens that are there ten times, in the mean.
pub(crate) fn case() -> Case {
    let tokens = |leaves: &[Tensor<1>]| ids([3, 370], 1, 111, &leaves[0].device());
    let weight = |leaves: &[Tensor<1>]| shaped(&leaves[0], [111, 64]);
    Case::new(
        "embedding",
        vec![noise(111 * 64, 1)],
        move |leaves| burn::tensor::module::embedding(weight(leaves), tokens(leaves)).flatten(0, 2),
        move |leaves| embedding(weight(leaves), tokens(leaves)).flatten(0, 2),
    )
}

#[test]
fn it_is_that_of_burn_bit_for_bit() {
    for device in devices() {
        for dtype in [DType::F32, DType::F64] {
            for [batch, time] in [[3, 370], [0, 4], [4, 0]] {
                let run = |forward: fn(Tensor<2>, Tensor<2, Int>) -> Tensor<3>| {
                    let weight = numbers([11, 5], 1, &device).cast(dtype).require_grad();
                    let y = forward(weight.clone(), ids([batch, time], 1, 7, &device));
                    assert_eq!(y.dims(), [batch, time, 5]);
                    let factors = numbers([batch, time, 5], 2, &device).cast(dtype);
                    let grads = (y.clone() * factors).sum().backward();
                    (y.into_data(), weight.grad(&grads).unwrap().into_data())
                };
                assert_eq!(run(embedding), run(burn::tensor::module::embedding));
            }
        }
    }
}

#[test]
fn quantized_weights_are_read_as_by_burn() {
    let dense = numbers([32, 64], 1, &flex());
    for dense in [dense.clone(), dense.inner()] {
        let weight = dense.quantize_dynamic(&QuantScheme::default());
        let tokens = || ids([2, 3], 1, 32, &flex());
        let expected = weight.clone().dequantize().inner();
        let expected = burn::tensor::module::embedding(expected, tokens().inner());
        assert_eq!(
            embedding(weight, tokens()).into_data(),
            expected.into_data()
        );
    }
}

/// In half precision, a sum of ones gets no further than 256 (bf16) or 2048 (f16).
#[test]
fn gradients_of_a_token_add_up_in_f32() {
    const TOKENS: usize = 4096;
    for precision in [MixedPrecision::bf16(), MixedPrecision::f16()] {
        let layer: nn::Embedding = nn::EmbeddingConfig::new(4, 8).init(&flex());
        let layer = precision.cast(layer).unwrap();
        let y = layer.forward(Tensor::<2, Int>::zeros([1, TOKENS], &flex()));
        let weight = layer.weight.val();
        assert_eq!(y.dtype(), weight.dtype());
        let grads = y.cast(DType::F32).sum().backward();
        let grad = weight.grad(&grads).unwrap();
        assert_eq!(grad.dtype(), weight.dtype());
        let mut expected = [0.0; 4 * 8];
        expected[..8].fill(TOKENS as f32);
        assert_eq!(grad.into_data().iter::<f32>().collect::<Vec<_>>(), expected);
    }
}

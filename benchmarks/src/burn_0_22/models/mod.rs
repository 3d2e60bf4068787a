//! What is trained: the vision transformer of `vit`, and a language model.
//!
//! The language model is compiled twice, from one file: of Burn's modules, and of those of
//! burn-lean.

#![allow(clippy::duplicate_mod)] // That is the point.

#[path = "."]
mod plain {
    use super::cross_entropy;
    use burn_0_22::nn;

    #[path = "language.rs"]
    pub(super) mod language;
}

#[path = "."]
mod lean {
    use super::lean_cross_entropy as cross_entropy;
    use burn_lean::operations::nn;

    #[path = "language.rs"]
    pub(super) mod language;
}

pub(super) use lean::language::Language as LeanLanguage;
pub(super) use plain::language::Language;

use benchmarks::shape::HostBatch;
use benchmarks::subject::{Burn, Checkpointing, LossChunk, OptimizerKind};
use burn_0_22::module::Module;
use burn_0_22::nn::Linear;
use burn_0_22::nn::loss::CrossEntropyLossConfig;
use burn_0_22::tensor::{DType, Device, Int, Tensor, TensorData};
use burn_lean::checkpoint_chunks;
use burn_lean::operations::{linear_cross_entropy, nn};
use vit::model::{LeanVit, Model, Vit};
use vit_inputs::VitConfig;

/// A model, of whichever modules.
pub(super) trait Trainee: Module {
    /// Its shape.
    type Shape;

    /// Builds the model with random weights. Its scopes are those of `checkpointing`; blocks of a
    /// language model have no scopes inside, and `plan` never asks for nested ones.
    fn build(shape: &Self::Shape, checkpointing: Checkpointing, device: &Device) -> Self;

    /// The loss of a batch in the precision of `run`, with a language model's by its chunks, and with the
    /// masks of dropout drawn from `seed`. They are the same whatever is recomputed.
    fn loss(&self, batch: HostBatch, run: &Burn, seed: u64, device: &Device) -> Tensor<1>;
}

macro_rules! trainee {
    ($vit:ty) => {
        impl Trainee for $vit {
            type Shape = VitConfig;

            fn build(shape: &VitConfig, checkpointing: Checkpointing, device: &Device) -> Self {
                Self::new(shape, device).recomputing(checkpointing)
            }

            /// One token of an image is scored: `plan` never asks for chunks.
            fn loss(&self, batch: HostBatch, run: &Burn, seed: u64, device: &Device) -> Tensor<1> {
                let images: Tensor<4> =
                    Tensor::from_data(TensorData::new(batch.pixels, batch.shape), device);
                let dtype = match run.optimizer.is_some_and(OptimizerKind::is_in_half) {
                    true => half(device),
                    false => DType::F32,
                };
                let scores = self.forward(images.cast(dtype), Some(seed));
                of_scores(scores.cast(DType::F32), labels(batch.labels, device))
            }
        }
    };
}

trainee!(Vit);
trainee!(LeanVit);

/// The half precision of a device: WGSL has no bf16.
pub(super) fn half(device: &Device) -> DType {
    match device.supports_dtype(DType::BF16) {
        true => DType::BF16,
        false => DType::F16,
    }
}

fn labels(labels: Vec<i32>, device: &Device) -> Tensor<1, Int> {
    let shape = [labels.len()];
    Tensor::from_data(TensorData::new(labels, shape), device)
}

/// The mean cross entropy of what `head` scores. With chunks, each is a scope around head and loss:
/// only the scores of one chunk exist at once.
///
/// # Shapes
///
/// - hidden: `[batch, time, dim]`
/// - labels: `[batch * time]`
/// - output: `[1]`
fn cross_entropy(
    head: &Linear,
    hidden: Tensor<3>,
    labels: Tensor<1, Int>,
    chunk: LossChunk,
) -> Tensor<1> {
    let hidden: Tensor<2> = hidden.flatten(0, 1);
    let LossChunk(Some(chunk)) = chunk else {
        return of_scores(head.forward(hidden), labels);
    };
    let [tokens, _] = hidden.dims();
    let sum = checkpoint_chunks(head, hidden, labels, chunk.get(), |head, hidden, labels| {
        let [count] = labels.dims();
        of_scores(head.forward(hidden), labels) * count as f64
    });
    sum / tokens as f64
}

/// The same in one operation, which divides the tokens by itself: `plan` never asks for chunks.
fn lean_cross_entropy(
    head: &nn::Linear,
    hidden: Tensor<3>,
    labels: Tensor<1, Int>,
    _chunk: LossChunk,
) -> Tensor<1> {
    let loss = CrossEntropyLossConfig::new().init(&hidden.device());
    let bias = head.bias.as_ref().map(|bias| bias.val());
    linear_cross_entropy(&loss, hidden.flatten(0, 1), head.weight.val(), bias, labels)
}

/// The mean loss of scores, `[tokens, classes]`.
fn of_scores(scores: Tensor<2>, labels: Tensor<1, Int>) -> Tensor<1> {
    let loss = CrossEntropyLossConfig::new().init(&scores.device());
    loss.forward(scores, labels)
}

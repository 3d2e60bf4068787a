//! The [`loss`](crate::loss) on Burn 0.22, of all tokens at once or by chunks.

use crate::results::LossChunk;
use burn_0_22::nn::Linear;
use burn_0_22::nn::loss::CrossEntropyLossConfig;
use burn_0_22::tensor::{Int, Tensor};
use burn_lean::checkpoint_chunks;
use burn_lean::operations::{linear_cross_entropy, nn};

/// The mean cross entropy of what `head` scores. With chunks, each is a scope around head and loss:
/// only the scores of one chunk exist at once.
///
/// # Shapes
///
/// - hidden: `[batch, time, dim]`
/// - labels: `[batch * time]`
/// - output: `[1]`
pub(super) fn cross_entropy(
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
pub(super) fn lean_cross_entropy(
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
pub(super) fn of_scores(scores: Tensor<2>, labels: Tensor<1, Int>) -> Tensor<1> {
    let loss = CrossEntropyLossConfig::new().init(&scores.device());
    loss.forward(scores, labels)
}

//! The scope whose operations are recorded.

use std::{any::Any, cell::RefCell, sync::Arc};

use burn::tensor::backend::Backend;

use crate::subgraph;
use crate::tensor::record::Segment;

thread_local! {
    static SCOPE: RefCell<Option<Scope>> = const { RefCell::new(None) };
}

struct Scope {
    number: u64,
    /// A segment for each backend that computes in it; the type of a thread local cannot name them.
    segments: Vec<Box<dyn Any>>,
}

/// Runs a part of the forward pass whose activations are not kept: the backward pass computes them
/// again.
///
/// Only the tensors that enter the scope are kept, and those that leave it as long as they are
/// held. Random tensors are kept, too, so that dropout has the same mask again. With a scope around
/// each block of a network, memory for activations falls to the inputs of the blocks and the
/// activations of one block; the time grows by one forward pass of the scopes (Chen et al.,
/// *Training deep nets with sublinear memory cost*, 2016, <https://arxiv.org/abs/1604.06174>).
///
/// The gradients are those of the same code without a scope, bit for bit, but for two cases, in
/// which the last bits may differ: a tensor or parameter that is used three times or more, inside
/// scopes and outside; and a recomputed tensor that is used three times or more, by `attention`,
/// `ctc_loss` or a custom operation and by others (`docs/burn-0.21/reference.md`).
///
/// It works on this thread, on tensors of [`GradientRelease`](crate::GradientRelease), armed or
/// not. On other backends it only calls `forward`: generic model code stays generic. A scope within
/// a scope is part of the outer one.
///
/// ```
/// use burn::{
///     backend::{Autodiff, Flex},
///     nn::{Linear, LinearConfig},
///     tensor::{Distribution, Tensor, activation, backend::Backend},
/// };
/// use burn_gradient_release::{GradientRelease, checkpoint};
///
/// /// `[batch, width]` to `[batch, width]`.
/// fn forward<B: Backend>(blocks: &[Linear<B>], mut x: Tensor<B, 2>) -> Tensor<B, 2> {
///     for block in blocks {
///         x = checkpoint(|| x.clone() + activation::gelu(block.forward(x.clone())));
///     }
///     x
/// }
///
/// type B = GradientRelease<Autodiff<Flex>>;
/// let device = Default::default();
/// let blocks: Vec<Linear<B>> = (0..4).map(|_| LinearConfig::new(8, 8).init(&device)).collect();
/// let x = Tensor::random([2, 8], Distribution::Default, &device);
/// let gradients = forward(&blocks, x).sum().backward();
/// assert!(blocks[0].weight.grad(&gradients).is_some());
/// ```
///
/// With a large vocabulary, the logits of all tokens make the peak. A loss in chunks of tokens keeps
/// those of one chunk:
///
/// ```
/// use burn::nn::{Linear, loss::CrossEntropyLoss};
/// use burn::tensor::{Int, Tensor, backend::Backend};
/// use burn_gradient_release::checkpoint;
///
/// /// The mean loss of `[tokens, embed]` against `[tokens]`, `chunk` tokens at a time.
/// fn chunked_loss<B: Backend>(
///     head: &Linear<B>,
///     loss: &CrossEntropyLoss<B>,
///     x: Tensor<B, 2>,
///     targets: Tensor<B, 1, Int>,
///     chunk: usize,
/// ) -> Tensor<B, 1> {
///     let tokens = x.dims()[0];
///     let chunks = x.split(chunk, 0).into_iter().zip(targets.split(chunk, 0));
///     let sums = chunks.map(|(x, targets)| {
///         let count = targets.dims()[0] as f64;
///         checkpoint(|| loss.forward(head.forward(x), targets) * count)
///     });
///     sums.reduce(|sum, next| sum + next).expect("there are tokens") / tokens as f64
/// }
/// ```
///
/// # Panics
///
/// Inside, an operation panics on a tensor that left this very scope, was used on another thread
/// and came back. A second backward pass through a scope panics: `detach` tensors that are carried
/// over from step to step.
pub fn checkpoint<R>(forward: impl FnOnce() -> R) -> R {
    /// Closes the scope, also if `forward` panics.
    struct Close;

    impl Drop for Close {
        fn drop(&mut self) {
            SCOPE.take();
        }
    }

    if SCOPE.with_borrow(Option::is_some) {
        return forward();
    }
    SCOPE.set(Some(Scope {
        number: subgraph::next_number(),
        segments: Vec::new(),
    }));
    let _close = Close;
    forward()
}

/// The segment that operations on this thread are recorded in.
pub(crate) fn current<B: Backend>() -> Option<Arc<Segment<B>>> {
    SCOPE.with_borrow_mut(|scope| {
        let scope = scope.as_mut()?;
        let known = scope.segments.iter();
        let mut known = known.filter_map(|segment| segment.downcast_ref::<Arc<Segment<B>>>());
        if let Some(segment) = known.next() {
            return Some(segment.clone());
        }
        let segment = Segment::<B>::new(scope.number, None);
        scope.segments.push(Box::new(segment.clone()));
        Some(segment)
    })
}

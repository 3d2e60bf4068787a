//! The options of attention.

use burn::tensor::{Bool, Int, Tensor};

use crate::operations::dropout::checked;

/// Attention with options.
///
/// The scores `[batch, heads, time, key time]` are made in chunks of rows, each of about 1 MiB
/// (16 MiB on a GPU) or of 32 rows, in the forward pass and again in the backward pass. Up to four
/// tensors of that size exist at once. For that it keeps the query, the key and the value, and of
/// dropout a bit for each score. The idea is that of the paper [FlashAttention-2: Faster Attention
/// with Better Parallelism and Work Partitioning](https://arxiv.org/abs/2307.08691); as a chunk has
/// whole rows here, no statistic of them is kept. Gradients are written over the query, the key and
/// the value if nothing else holds these.
///
/// Key and value may have fewer heads than the query, which are then shared by groups of its heads,
/// as in the paper [GQA](https://arxiv.org/abs/2305.13245).
///
/// # Example
///
/// ```
/// use burn::tensor::{Device, Distribution, Tensor};
/// use burn_lean::operations::Attention;
///
/// let device = Device::flex().autodiff();
/// let random = |shape| Tensor::<4>::random(shape, Distribution::Default, &device);
/// let query = random([2, 4, 9, 8]).require_grad();
/// let (key, value) = (random([2, 2, 9, 8]), random([2, 2, 9, 8]));
/// let attention = Attention::new().causal().with_window(4).with_dropout(0.1);
/// let output = attention.forward(query, key, value);
/// assert_eq!(output.dims(), [2, 4, 9, 8]);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Attention {
    pub(super) scale: Option<f64>,
    pub(super) softcap: Option<f64>,
    pub(super) is_causal: bool,
    pub(super) window: Option<usize>,
    pub(super) documents: Option<Tensor<2, Int>>,
    pub(in crate::operations) masks: Vec<(Tensor<4, Bool>, f64)>,
    pub(super) slopes: Option<Vec<f32>>,
    pub(super) bias: Option<Tensor<4>>,
    pub(super) dropout: f64,
    pub(super) is_quiet: bool,
}

impl Attention {
    /// Attention of every query to every key, scaled by `1 / √(head size)`.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the factor of the scores.
    #[must_use]
    pub fn with_scale(mut self, scale: f64) -> Self {
        self.scale = Some(scale);
        self
    }

    /// Bounds the scores by `softcap * tanh(scores / softcap)`.
    ///
    /// # Panics
    ///
    /// If `softcap` is not positive, or not finite.
    #[must_use]
    pub fn with_softcap(mut self, softcap: f64) -> Self {
        self.softcap = Some(softcap);
        self.assert_softcap();
        self
    }

    /// Replaces the scores where the mask is true by `value`: minus infinity, or a very negative
    /// number as Burn's [`MultiHeadAttention`](burn::nn::attention::MultiHeadAttention) has it.
    /// Each axis of the mask may be 1. There may be several masks: where they meet, the last counts.
    #[must_use]
    pub fn with_mask(mut self, mask: Tensor<4, Bool>, value: f64) -> Self {
        self.masks.push((mask, value));
        self
    }

    /// Lets no query attend to later keys. The last query and the last key are at the same time.
    #[must_use]
    pub fn causal(mut self) -> Self {
        self.is_causal = true;
        self
    }

    /// Lets a query attend to keys that are less than `window` positions away: with
    /// [`causal`](Self::causal) to the last `window` keys, and otherwise to as many on each side, that
    /// at its own position counted. From the paper [Longformer](https://arxiv.org/abs/2004.05150). The
    /// last query and the last key are at the same time.
    ///
    /// Scores outside of the windows of a chunk of queries are not made: time and memory grow with
    /// the number of queries, and no longer with that of the keys. But dropout draws for all scores.
    ///
    /// # Panics
    ///
    /// If `window` is 0.
    #[must_use]
    pub fn with_window(mut self, window: usize) -> Self {
        assert!(
            window > 0,
            "attention: a window of 0 has no key; leave it out to see all"
        );
        self.window = Some(window);
        self
    }

    /// Lets a query attend to keys of its own document alone, where sequences are packed into one:
    /// positions of a document have the same id.
    ///
    /// Scores outside of the documents of a chunk of queries are not made, except on devices where
    /// reading the ids would wait: there they are masked.
    ///
    /// # Shapes
    ///
    /// - `ids`: `[batch, time]`
    #[must_use]
    pub fn with_documents(mut self, ids: Tensor<2, Int>) -> Self {
        self.documents = Some(ids);
        self
    }

    /// Subtracts the distance of query and key, times the slope of the head, from the scores, after
    /// the softcap and before the masks: ALiBi, from the paper [Train Short, Test Long](https://arxiv.org/abs/2108.12409). It needs no tensor
    /// of biases. There is a slope for each head of the query; the paper has `2^(-8 i / heads)`, for
    /// `i` from 1 on. Slopes have no gradient.
    ///
    /// # Panics
    ///
    /// If a slope is not finite.
    #[must_use]
    pub fn with_alibi(mut self, slopes: Vec<f32>) -> Self {
        let are_finite = slopes.iter().all(|slope| slope.is_finite());
        assert!(
            are_finite,
            "attention: the slopes {slopes:?} are not finite"
        );
        self.slopes = Some(slopes);
        self
    }

    /// Adds to the scores after the masks. Each axis of the bias may be 1. It may need a gradient.
    #[must_use]
    pub fn with_bias(mut self, bias: Tensor<4>) -> Self {
        self.bias = Some(bias);
        self
    }

    /// Drops weights of attention with this probability, in training alone: if the query, the key or the
    /// bias is one with autodiff, as Burn does.
    ///
    /// # Panics
    ///
    /// If `prob` is not at least 0 and below 1.
    #[must_use]
    pub fn with_dropout(mut self, prob: f64) -> Self {
        self.dropout = checked(prob);
        self
    }

    /// Lets queries attend to nothing: [`quiet_softmax`](burn::tensor::activation::quiet_softmax).
    #[must_use]
    pub fn with_quiet_softmax(mut self, is_quiet: bool) -> Self {
        self.is_quiet = is_quiet;
        self
    }

    pub(super) fn assert_softcap(&self) {
        if let Some(softcap) = self.softcap {
            let is_bound = softcap > 0.0 && softcap.is_finite();
            assert!(is_bound, "attention: a softcap of {softcap}");
        }
    }
}

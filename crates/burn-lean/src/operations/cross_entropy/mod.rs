//! A linear layer and cross entropy in one operation: of the logits, one chunk of tokens exists.

mod head;
mod labels;

use std::ops::Range;

use burn::nn::loss::{CrossEntropyLoss, Reduction};
use burn::tensor::activation::log_softmax;
use burn::tensor::{Int, Tensor};

use self::head::Head;
use self::labels::Labels;
use super::chunks::chunks_of;
#[cfg(feature = "flex")]
use super::flex;
use super::lora::Factors;
use super::node::{Gradient, OperandGradients, Operands, Operation, apply};
use super::product::{Before, filled, product_into};
use super::weight::{LinearWeight, Weight};
use crate::wide::wide;

const HIDDEN: usize = 0;
const WEIGHT: usize = 1;
const A: usize = 2;
const B: usize = 3;
const BIAS: usize = 4;

/// Fewest tokens of a chunk, however many classes there are.
const FEWEST_TOKENS: usize = 64;

/// The mean of [`LinearCrossEntropy`], without its options: it replaces
/// `loss.forward(head.forward(hidden), targets)`.
///
/// # Shapes
///
/// - `hidden`: `[tokens, d_model]`
/// - `weight`: `[d_model, classes]`
/// - `bias`: `[classes]`
/// - `targets`: `[tokens]`
/// - output: `[1]`, in f32 if the operands are in half precision
///
/// # Panics
///
/// If the shapes do not fit, or the loss is one of probabilities (`logits` is false).
///
/// # Example
///
/// ```
/// use burn::nn::LinearConfig;
/// use burn::nn::loss::CrossEntropyLossConfig;
/// use burn::tensor::{Device, Tensor};
/// use burn_lean::operations::linear_cross_entropy;
///
/// let device = Device::flex().autodiff();
/// let head = LinearConfig::new(8, 100).with_bias(false).init(&device);
/// let loss = CrossEntropyLossConfig::new().with_smoothing(Some(0.1)).init(&device);
/// let hidden = Tensor::<2>::ones([3, 8], &device);
/// let targets = Tensor::from_ints([1, 7, 99], &device);
/// // In place of `loss.forward(head.forward(hidden), targets)`:
/// let loss = linear_cross_entropy(&loss, hidden, &head.weight, None, targets);
/// loss.backward();
/// ```
pub fn linear_cross_entropy(
    loss: &CrossEntropyLoss,
    hidden: Tensor<2>,
    weight: impl Into<LinearWeight>,
    bias: Option<Tensor<1>>,
    targets: Tensor<1, Int>,
) -> Tensor<1> {
    LinearCrossEntropy::new(loss).forward(hidden, weight, bias, targets, Reduction::Mean)
}

/// The loss of the logits `hidden * weight + bias`, as Burn's
/// [`CrossEntropyLoss`](burn::nn::loss::CrossEntropyLoss) has it with its settings: ignored
/// tokens, weights of classes and smoothed labels.
///
/// The logits `[tokens, classes]` are made in chunks that are about as large as `hidden` or half as
/// large as `weight`, but of 64 tokens at least, and are freed by the end of the forward pass: it
/// computes the gradients as well, and keeps those of `hidden`, and of `weight` and `bias` if these
/// need one. So no logits are made a second time. If nothing needs a gradient, it computes the loss
/// alone. Of a weight with an adapter, given as its parameter, the sum is not made. The idea is that of the fused loss of the paper [Liger Kernel: Efficient Triton Kernels for
/// LLM Training](https://arxiv.org/abs/2410.10989).
///
/// # Example
///
/// ```
/// use burn::nn::loss::{CrossEntropyLossConfig, Reduction};
/// use burn::tensor::{Device, Tensor};
/// use burn_lean::operations::LinearCrossEntropy;
///
/// let device = Device::flex().autodiff();
/// let loss = CrossEntropyLossConfig::new().with_pad_tokens(Some(vec![0])).init(&device);
/// let loss = LinearCrossEntropy::new(&loss).with_softcap(30.0).with_z_loss(1e-4);
/// let hidden = Tensor::<2>::ones([3, 8], &device);
/// let weight = Tensor::<2>::ones([8, 100], &device).require_grad();
/// let targets = Tensor::from_ints([1, 7, 99], &device);
/// loss.forward(hidden, weight, None, targets, Reduction::Sum).backward();
/// ```
#[derive(Clone, Debug)]
pub struct LinearCrossEntropy {
    loss: CrossEntropyLoss,
    softcap: Option<f64>,
    z_loss: f64,
}

impl LinearCrossEntropy {
    /// With the settings of this loss.
    ///
    /// # Panics
    ///
    /// If the loss is one of probabilities (`logits` is false).
    #[must_use]
    pub fn new(loss: &CrossEntropyLoss) -> Self {
        assert!(
            loss.logits,
            "linear_cross_entropy: a linear layer makes logits, no probabilities"
        );
        Self {
            loss: loss.clone(),
            softcap: None,
            z_loss: 0.0,
        }
    }

    /// Bounds the logits by `softcap * tanh(logits / softcap)`, as [Gemma
    /// 2](https://arxiv.org/abs/2408.00118) does.
    ///
    /// # Panics
    ///
    /// If `softcap` is not positive, or not finite.
    #[must_use]
    pub fn with_softcap(mut self, softcap: f64) -> Self {
        assert!(
            softcap > 0.0 && softcap.is_finite(),
            "linear_cross_entropy: a softcap of {softcap}; it is positive, or left out"
        );
        self.softcap = Some(softcap);
        self
    }

    /// Adds z-loss to the loss of each token, `factor * ln(sum(exp(logits)))²`, with the weight of its
    /// target: from the paper [PaLM](https://arxiv.org/abs/2204.02311), with a factor of 1e-4.
    ///
    /// # Panics
    ///
    /// If `factor` is negative or not finite.
    #[must_use]
    pub fn with_z_loss(mut self, factor: f64) -> Self {
        assert!(
            factor >= 0.0 && factor.is_finite(),
            "linear_cross_entropy: a z-loss of {factor}; its factor is at least 0"
        );
        self.z_loss = factor;
        self
    }

    /// The loss of all tokens. A mean is over the tokens that are not ignored, each with the weight
    /// of its target; `BatchMean` is the sum over the number of all tokens.
    ///
    /// # Shapes
    ///
    /// - `hidden`: `[tokens, d_model]`
    /// - `weight`: `[d_model, classes]`
    /// - `bias`: `[classes]`
    /// - `targets`: `[tokens]`
    /// - output: `[1]`, in f32 if the operands are in half precision
    ///
    /// # Panics
    ///
    /// If the shapes do not fit.
    pub fn forward(
        &self,
        hidden: Tensor<2>,
        weight: impl Into<LinearWeight>,
        bias: Option<Tensor<1>>,
        targets: Tensor<1, Int>,
        reduction: Reduction,
    ) -> Tensor<1> {
        let tokens = hidden.dims()[0];
        self.apply(hidden, weight.into(), bias, targets, |fused, wants| {
            let normalizer = match reduction {
                Reduction::Mean | Reduction::Auto => fused.labels.weight(),
                Reduction::Sum => fused.labels.weight().ones_like(),
                Reduction::BatchMean => fused.labels.weight().full_like(tokens as f64),
            };
            let mut sum = normalizer.zeros_like();
            let mut gradients = Gradients::zeros(wants, &fused);
            for chunk in fused.chunks() {
                let (losses, grad) = fused.of_chunk(&chunk, wants.contains(&true));
                sum = sum + losses.sum();
                if let Some(grad) = grad {
                    gradients.add(&chunk, grad, &fused);
                }
            }
            let loss = sum / normalizer.clone();
            let reduced = Reduced {
                may_be_of_nothing: fused.labels.ignored.is_some() || tokens == 0,
                normalizer,
                gradients,
            };
            (loss, reduced)
        })
    }

    /// The loss of each token, 0 if it is ignored. Its gradient is known in the backward pass alone,
    /// which makes the logits again: so this keeps `hidden` and `weight`.
    ///
    /// # Shapes
    ///
    /// - `hidden`: `[tokens, d_model]`
    /// - `weight`: `[d_model, classes]`
    /// - `bias`: `[classes]`
    /// - `targets`: `[tokens]`
    /// - output: `[tokens]`, in f32 if the operands are in half precision
    ///
    /// # Panics
    ///
    /// If the shapes do not fit.
    pub fn forward_no_reduction(
        &self,
        hidden: Tensor<2>,
        weight: impl Into<LinearWeight>,
        bias: Option<Tensor<1>>,
        targets: Tensor<1, Int>,
    ) -> Tensor<1> {
        self.apply(hidden, weight.into(), bias, targets, |fused, _| {
            let losses = fused.chunks().map(|chunk| fused.of_chunk(&chunk, false).0);
            let none = filled([0, 1], wide(fused.hidden.dtype()), &fused.hidden);
            let losses = Tensor::cat(std::iter::once(none).chain(losses).collect(), 0);
            (losses.squeeze_dim(1), OfTokens(fused))
        })
    }

    fn apply<O: Operation<5>>(
        &self,
        hidden: Tensor<2>,
        weight: LinearWeight,
        bias: Option<Tensor<1>>,
        targets: Tensor<1, Int>,
        forward: impl FnOnce(Fused, [bool; 5]) -> (Tensor<1>, O),
    ) -> Tensor<1> {
        let [tokens, width] = hidden.dims();
        let [d_model, classes] = weight.dims();
        assert_eq!(
            width, d_model,
            "linear_cross_entropy: d_model of hidden and weight"
        );
        assert_eq!(
            targets.dims(),
            [tokens],
            "linear_cross_entropy: a target for each token"
        );
        if let Some(bias) = &bias {
            assert_eq!(
                bias.dims(),
                [classes],
                "linear_cross_entropy: a bias for each class"
            );
        }
        let ([value, a, b], frozen, scale) = weight.into_operands();
        let (hidden, bias) = (hidden.into_dispatch(), bias.map(Tensor::into_dispatch));
        let operands = [Some(hidden), value, a, b, bias];
        apply(operands, |mut operands: Operands<5>| {
            let wants = std::array::from_fn(|at| operands.wants(at));
            let hidden = operands.take::<2>(HIDDEN);
            let wide = wide(hidden.dtype());
            let value = || Weight::Tensor(operands.take(WEIGHT));
            let weight = frozen.unwrap_or_else(value).dequantized();
            let fused = Fused {
                labels: Labels::new(&self.loss, self.z_loss, targets, classes, wide),
                head: Head {
                    weight,
                    factors: Factors::take(&mut operands, [A, B], scale),
                    bias: operands.take_optional(BIAS),
                    softcap: self.softcap,
                },
                hidden,
            };
            forward(fused, wants)
        })
    }
}

/// The operands, and the losses of chunks of tokens.
#[derive(Clone)]
struct Fused {
    /// `[tokens, d_model]`
    hidden: Tensor<2>,
    head: Head,
    labels: Labels,
}

impl Fused {
    fn chunks(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let ([tokens, width], [d_model, classes]) = (self.hidden.dims(), self.head.weight.dims());
        // Each chunk adds to the whole gradient of the weight: small chunks are memory-bound.
        let as_hidden = tokens * width / classes.max(1);
        chunks_of(tokens, as_hidden.max(d_model / 2).max(FEWEST_TOKENS))
    }

    /// Tokens of a chunk.
    fn rows(&self, chunk: &Range<usize>) -> Tensor<2> {
        self.hidden.clone().slice([chunk.clone()])
    }

    /// The losses of tokens, `[tokens, 1]`, and the gradient of their sum by the logits before the
    /// softcap, if it is wanted.
    fn of_chunk(&self, chunk: &Range<usize>, wants: bool) -> (Tensor<2>, Option<Tensor<2>>) {
        let logits = self.head.logits(self.rows(chunk));
        let capped = (wants && self.head.softcap.is_some()).then(|| logits.clone());
        let max = self.labels.has_z_loss().then(|| logits.clone().max_dim(1));
        let scores = log_softmax_of(logits);
        // The largest score is `max - log_sum`, and near zero: no digits cancel.
        let log_sum = max.map(|max| max - scores.clone().max_dim(1));
        let labels = self.labels.of(chunk);
        let losses = labels.losses(&scores, log_sum.as_ref());
        let grad = wants.then(|| {
            let grad = labels.gradient(scores, log_sum);
            self.head.before_softcap(grad, capped)
        });
        (losses, grad)
    }
}

/// The backend's own, but not that of Flex, which runs on one thread.
fn log_softmax_of(logits: Tensor<2>) -> Tensor<2> {
    #[cfg(feature = "flex")]
    if flex::has_slices(&logits) {
        return flex::softmax(lean_arithmetic::slices::Softmax::Log, logits);
    }
    log_softmax(logits, 1)
}

/// The gradients of the sum of the losses.
#[derive(Clone)]
struct Gradients {
    hidden: Option<Tensor<2>>,
    weight: Option<Tensor<2>>,
    a: Option<Tensor<2>>,
    b: Option<Tensor<2>>,
    /// `[1, classes]`
    bias: Option<Tensor<2>>,
}

impl Gradients {
    fn zeros(wants: [bool; 5], Fused { hidden, head, .. }: &Fused) -> Self {
        let dtype = wide(hidden.dtype());
        let [d_model, classes] = head.weight.dims();
        let rank = head.factors.as_ref().map_or(0, Factors::rank);
        let zeros = |at: usize, dims| wants[at].then(|| filled(dims, dtype, hidden));
        Self {
            hidden: zeros(HIDDEN, hidden.dims()),
            weight: zeros(WEIGHT, [d_model, classes]),
            a: zeros(A, [d_model, rank]),
            b: zeros(B, [rank, classes]),
            bias: zeros(BIAS, [1, classes]),
        }
    }

    /// `grad` is the gradient of the logits of a chunk. It is wide, as the tokens are made: a sum
    /// over tokens may be too large for half precision, where its share of the mean is not.
    fn add(&mut self, chunk: &Range<usize>, grad: Tensor<2>, fused: &Fused) {
        if let Some(sum) = &mut self.bias {
            let part = grad.clone().sum_dim(0);
            sum.inplace(|sum| sum + part);
        }
        // Zeros that are read before they are written take the system a page twice.
        let before = match chunk.start {
            0 => Before::Anything,
            _ => Before::Sum,
        };
        let rows = || fused.rows(chunk).cast(grad.dtype());
        add_to(&mut self.weight, before, rows, || grad.clone());
        let mut of_reduced = None;
        if let Some(factors) = &fused.head.factors {
            let of_factor = of_reduced.insert(factors.of_reduced(grad.clone()));
            add_to(&mut self.a, before, rows, || of_factor.clone());
            add_to(
                &mut self.b,
                before,
                || factors.reduced(rows()),
                || grad.clone(),
            );
        }
        if let Some(hidden) = &mut self.hidden {
            let [_, d_model] = hidden.dims();
            let at = [chunk.clone(), 0..d_model];
            hidden
                .inplace(|hidden| hidden.slice_assign(at, fused.head.of_hidden(grad, of_reduced)));
        }
    }

    /// Gives the operands their gradients, times a factor.
    fn give(self, factor: Option<Tensor<1>>, operands: &mut OperandGradients<'_, 5>) {
        let factor = factor.map(Tensor::unsqueeze::<2>);
        let scaled = |grad: Tensor<2>| match &factor {
            Some(factor) => grad * factor.clone(),
            None => grad,
        };
        if let Some(hidden) = self.hidden {
            operands.give(HIDDEN, scaled(hidden));
        }
        for (at, grad) in [(WEIGHT, self.weight), (A, self.a), (B, self.b)] {
            if let Some(grad) = grad {
                operands.give(at, scaled(grad));
            }
        }
        if let Some(bias) = self.bias {
            operands.give(BIAS, scaled(bias).squeeze_dim::<1>(0));
        }
    }
}

/// Adds `rows^T * grad` to a sum, if it is wanted.
fn add_to(
    sum: &mut Option<Tensor<2>>,
    before: Before,
    rows: impl FnOnce() -> Tensor<2>,
    grad: impl FnOnce() -> Tensor<2>,
) {
    if let Some(sum) = sum {
        let at = sum.dims().map(|length| 0..length);
        sum.inplace(|sum| product_into(sum, at, before, rows().transpose(), grad()));
    }
}

/// One loss of all tokens. The gradients of the sum are divided when the gradient of the loss is
/// known, which may be scaled: `f16` would lose those of a mean over many tokens.
#[derive(Clone)]
struct Reduced {
    /// The divisor of the sum over tokens: `[1]`.
    normalizer: Tensor<1>,
    /// Whether there may be no token, or none that counts: the gradient is 0, though the mean is
    /// NaN.
    may_be_of_nothing: bool,
    gradients: Gradients,
}

impl Operation<5> for Reduced {
    const NAME: &'static str = "linear_cross_entropy";
    const MIXES: bool = true;

    fn backward(self, grad: Gradient, operands: &mut OperandGradients<'_, 5>) {
        let mut factor = grad.tensor::<1>() / self.normalizer.clone();
        if self.may_be_of_nothing {
            factor = factor.mask_fill(self.normalizer.equal_elem(0.0), 0.0);
        }
        self.gradients.give(Some(factor), operands);
    }
}

/// The loss of each token.
#[derive(Clone)]
struct OfTokens(Fused);

impl Operation<5> for OfTokens {
    const NAME: &'static str = "linear_cross_entropy";
    const MIXES: bool = true;

    fn backward(self, grad: Gradient, operands: &mut OperandGradients<'_, 5>) {
        let Self(fused) = self;
        let wants = std::array::from_fn(|at| operands.wants(at));
        let of_losses = grad.tensor::<1>().unsqueeze_dim::<2>(1);
        // Times the gradient of an ignored token, which is zero, NaN would be NaN.
        let of_losses = fused.labels.without_ignored(of_losses);
        let mut gradients = Gradients::zeros(wants, &fused);
        for chunk in fused.chunks() {
            let (_, grad) = fused.of_chunk(&chunk, true);
            let of_losses = of_losses.clone().slice([chunk.clone()]);
            let grad = grad.map(|grad| grad * of_losses);
            gradients.add(&chunk, grad.expect("it is wanted"), &fused);
        }
        gradients.give(None, operands);
    }
}

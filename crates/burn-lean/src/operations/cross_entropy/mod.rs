//! A linear layer and cross entropy in one operation: of the logits, one chunk of tokens exists.

use std::ops::Range;

use burn::nn::loss::CrossEntropyLoss;
use burn::tensor::activation::log_softmax;
use burn::tensor::module::linear;
use burn::tensor::{Bool, IndexingUpdateOp, Int, Tensor};

use super::chunks::chunks;
#[cfg(feature = "flex")]
use super::flex;
use crate::wide::{wide, widened};

use super::linear::filled;
use super::node::{Gradient, OperandGradients, Operands, Operation, apply};
use crate::backend::is_on_flex;

const HIDDEN: usize = 0;
const WEIGHT: usize = 1;
const BIAS: usize = 2;

/// Fewest tokens of a chunk, however many classes there are.
const FEWEST_TOKENS: usize = 64;

/// How much of the weight, in 32 bits, is computed with at once: on Flex, which makes the output of
/// each product twice, and of weights in half precision, which are widened.
const PART_BYTES: usize = 4 << 20;

/// The loss of the logits `hidden * weight + bias`, as Burn's
/// [`CrossEntropyLoss`](burn::nn::loss::CrossEntropyLoss) has it with these settings: ignored
/// tokens, weights of classes and smoothed labels.
///
/// The logits `[tokens, classes]` are made in chunks that are about as large as `hidden` or half as
/// large as `weight`, and are freed by the end of the forward pass: it computes the gradients as
/// well, and keeps those of `hidden`, and of `weight` and `bias` if these need one. So no logits
/// are made a second time. If nothing needs a gradient, it computes the loss alone. The idea is
/// that of the fused loss of the paper [Liger Kernel: Efficient Triton Kernels for LLM
/// Training](https://arxiv.org/abs/2410.10989).
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
/// let loss = linear_cross_entropy(&loss, hidden, head.weight.val(), None, targets);
/// loss.backward();
/// ```
pub fn linear_cross_entropy(
    loss: &CrossEntropyLoss,
    hidden: Tensor<2>,
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
    targets: Tensor<1, Int>,
) -> Tensor<1> {
    assert!(
        loss.logits,
        "linear_cross_entropy: a linear layer makes logits, no probabilities"
    );
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
    let operands = [
        Some(hidden.into_dispatch()),
        Some(weight.into_dispatch()),
        bias.map(Tensor::into_dispatch),
    ];
    // Each chunk adds to the whole gradient of the weight: that of few tokens waits for memory.
    let as_hidden = tokens * width / classes.max(1);
    let at_once = as_hidden.max(d_model / 2).max(FEWEST_TOKENS);
    apply(operands, |mut operands: Operands<3>| {
        let wants = [HIDDEN, WEIGHT, BIAS].map(|at| operands.wants(at));
        let head = Head {
            weight: operands.take(WEIGHT),
            bias: operands.take_optional(BIAS),
        };
        let hidden = operands.take::<2>(HIDDEN);
        let labels = Labels::new(loss, targets, classes, &hidden);
        let mut gradients = Gradients::zeros(wants, &hidden, &head, &labels);
        let wide = wide(hidden.dtype());
        let mut sum = Tensor::<1>::zeros([1], (&hidden.device(), wide));
        for start in (0..tokens).step_by(at_once) {
            let chunk = start..(start + at_once).min(tokens);
            let rows = hidden.clone().slice([chunk.clone()]);
            let scores = log_softmax_of(head.logits(rows.clone()));
            let labels = labels.of(&chunk);
            sum = sum + labels.loss(&scores);
            if wants.contains(&true) {
                gradients.add(&chunk, rows.cast(wide), labels.gradient(scores), &head);
            }
        }
        (sum / labels.normalizer, gradients)
    })
}

/// The backend's own, but not that of Flex, which runs on one thread.
fn log_softmax_of(logits: Tensor<2>) -> Tensor<2> {
    #[cfg(feature = "flex")]
    if flex::has_slices(&logits) {
        return flex::softmax(lean_arithmetic::slices::Softmax::Log, logits);
    }
    log_softmax(logits, 1)
}

/// `exp(scores) * factors`, where `factors` is `[tokens, 1]`.
fn exp_times(scores: Tensor<2>, factors: Tensor<2>) -> Tensor<2> {
    #[cfg(feature = "flex")]
    if flex::has_slices(&scores) {
        return flex::exp_rows(scores, factors);
    }
    scores.exp() * factors
}

struct Head {
    /// `[d_model, classes]`
    weight: Tensor<2>,
    /// `[classes]`
    bias: Option<Tensor<1>>,
}

impl Head {
    /// In 32 bits at least: half precision has no logits beyond 65,504, and rounds the others.
    fn logits(&self, hidden: Tensor<2>) -> Tensor<2> {
        let bias = self.bias.clone().map(widened);
        if !self.is_widened() {
            return linear(widened(hidden), self.weight.clone(), bias);
        }
        let ([tokens, _], [_, classes]) = (hidden.dims(), self.weight.dims());
        let hidden = widened(hidden);
        let logits = filled([tokens, classes], hidden.dtype(), &hidden);
        let logits = self.parts().fold(logits, |logits, columns| {
            let part = hidden.clone().matmul(self.part(&columns));
            logits.slice_assign([0..tokens, columns], part)
        });
        match bias {
            Some(bias) => logits + bias.unsqueeze(),
            None => logits,
        }
    }

    /// The gradient of the hidden tokens from that of the logits, both in 32 bits at least.
    fn of_hidden(&self, grad: Tensor<2>) -> Tensor<2> {
        if !self.is_widened() {
            return grad.matmul(self.weight.clone().transpose());
        }
        let tokens = grad.dims()[0];
        let part = |columns: Range<usize>| {
            let grad = grad.clone().slice([0..tokens, columns.clone()]);
            grad.matmul(self.part(&columns).transpose())
        };
        let sum = self.parts().map(part).reduce(|sum, part| sum + part);
        sum.unwrap_or_else(|| filled([tokens, self.weight.dims()[0]], grad.dtype(), &grad))
    }

    fn is_widened(&self) -> bool {
        self.weight.dtype() != wide(self.weight.dtype())
    }

    fn parts(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let [d_model, classes] = self.weight.dims();
        chunks(classes, 4 * d_model, PART_BYTES)
    }

    /// Columns of the weight, in 32 bits at least.
    fn part(&self, columns: &Range<usize>) -> Tensor<2> {
        let d_model = self.weight.dims()[0];
        widened(self.weight.clone().slice([0..d_model, columns.clone()]))
    }
}

/// The target that scores are compared with.
struct Labels {
    /// `[tokens, 1]`
    targets: Tensor<2, Int>,
    /// Tokens that do not count: `[tokens, 1]`.
    ignored: Option<Tensor<2, Bool>>,
    /// The weight of each token's target: `[tokens, 1]`.
    of_target: Tensor<2>,
    /// `[1, classes]`, where classes have weights.
    of_classes: Option<Tensor<2>>,
    /// The part of a label that is spread over all classes.
    smoothing: f64,
    classes: usize,
    /// The divisor of the sum over tokens: `[1]`.
    normalizer: Tensor<1>,
}

impl Labels {
    fn new(
        loss: &CrossEntropyLoss,
        targets: Tensor<1, Int>,
        classes: usize,
        like: &Tensor<2>,
    ) -> Self {
        let targets = targets.inner();
        let ignored = loss.pad_tokens.as_ref().and_then(|tokens| {
            let equal = |token: &usize| targets.clone().equal_scalar(*token as i64);
            tokens.iter().map(equal).reduce(Tensor::bool_or)
        });
        // An ignored target may be no class, as PyTorch's -100, and is gathered by all the same.
        let targets = match &ignored {
            Some(ignored) => targets.mask_fill(ignored.clone(), 0),
            None => targets,
        };
        let wide = wide(like.dtype());
        let options = (&like.device(), wide);
        let weights = loss.weights.clone();
        let weights = weights.map(|weights| weights.inner().cast(wide));
        let of_target = match &weights {
            Some(weights) => weights.clone().gather(0, targets.clone()),
            None => Tensor::ones(targets.dims(), options),
        };
        let of_target = match &ignored {
            Some(ignored) => of_target.mask_fill(ignored.clone(), 0.0),
            None => of_target,
        };
        Self {
            targets: targets.unsqueeze_dim(1),
            ignored: ignored.map(|ignored| ignored.unsqueeze_dim(1)),
            normalizer: of_target.clone().sum(),
            of_target: of_target.unsqueeze_dim(1),
            of_classes: weights.map(Tensor::unsqueeze),
            smoothing: f64::from(loss.smoothing.unwrap_or(0.0)),
            classes,
        }
    }

    /// The targets of a chunk of tokens.
    fn of(&self, chunk: &Range<usize>) -> Self {
        Self {
            targets: self.targets.clone().slice([chunk.clone()]),
            ignored: self
                .ignored
                .clone()
                .map(|ignored| ignored.slice([chunk.clone()])),
            of_target: self.of_target.clone().slice([chunk.clone()]),
            of_classes: self.of_classes.clone(),
            normalizer: self.normalizer.clone(),
            ..*self
        }
    }

    /// The part of a smoothed label that every class gets.
    fn spread(&self) -> f64 {
        self.smoothing / self.classes as f64
    }

    /// The sum of the losses of tokens, from their log probabilities `[tokens, classes]`.
    fn loss(&self, scores: &Tensor<2>) -> Tensor<1> {
        let of_target = scores.clone().gather(1, self.targets.clone());
        let mut loss = of_target * self.of_target.clone() * (self.smoothing - 1.0);
        if self.smoothing > 0.0 {
            let scores = match &self.of_classes {
                Some(weights) => scores.clone() * weights.clone(),
                None => scores.clone(),
            };
            loss = loss - scores.sum_dim(1) * self.spread();
        }
        self.without_ignored(loss).sum()
    }

    /// The gradient of the sum of the losses by the logits, from the log probabilities.
    fn gradient(&self, scores: Tensor<2>) -> Tensor<2> {
        let of_target = self.of_target.clone() * (1.0 - self.smoothing);
        let mut of_all = of_target.clone();
        let mut spread = None;
        if self.smoothing > 0.0 {
            let (of_classes, sum) = match &self.of_classes {
                Some(weights) => (weights.clone(), weights.clone().sum_dim(1)),
                None => {
                    let ones = self.normalizer.ones_like().unsqueeze::<2>();
                    (ones.clone(), ones * self.classes as f64)
                }
            };
            of_all = of_all + sum * self.spread();
            spread = Some(of_classes * self.spread());
        }
        let mut grad = exp_times(scores, of_all);
        if let Some(spread) = spread {
            grad = grad - spread;
        }
        let grad = grad.scatter(
            1,
            self.targets.clone(),
            of_target.neg(),
            IndexingUpdateOp::Add,
        );
        self.without_ignored(grad)
    }

    fn without_ignored(&self, tensor: Tensor<2>) -> Tensor<2> {
        match &self.ignored {
            Some(ignored) => {
                let mask = ignored.clone().expand(tensor.dims());
                tensor.mask_fill(mask, 0.0)
            }
            None => tensor,
        }
    }
}

/// The gradients of the sum of the losses. They are divided when the gradient of the mean is known,
/// which may be scaled: `f16` would lose those of a mean over many tokens.
#[derive(Clone)]
struct Gradients {
    /// The divisor of the sum over tokens: `[1]`.
    normalizer: Tensor<1>,
    /// Whether there may be no token, or none that counts: the gradient is 0, though the mean is
    /// NaN.
    may_be_of_nothing: bool,
    hidden: Option<Tensor<2>>,
    weight: Option<Tensor<2>>,
    /// `[1, classes]`
    bias: Option<Tensor<2>>,
}

impl Gradients {
    fn zeros(wants: [bool; 3], hidden: &Tensor<2>, head: &Head, labels: &Labels) -> Self {
        let dtype = wide(hidden.dtype());
        let bias = head.bias.clone().filter(|_| wants[BIAS]);
        let zeros = |like: Tensor<2>| filled(like.dims(), dtype, &like);
        Self {
            normalizer: labels.normalizer.clone(),
            may_be_of_nothing: labels.ignored.is_some() || hidden.dims()[0] == 0,
            hidden: wants[HIDDEN].then(|| zeros(hidden.clone())),
            weight: wants[WEIGHT].then(|| zeros(head.weight.clone())),
            bias: bias.map(|bias| zeros(bias.unsqueeze())),
        }
    }

    /// `rows` are the hidden tokens, and `grad` the gradient of their logits. Both are wide: a sum
    /// over tokens may be too large for half precision, where its share of the mean is not.
    fn add(&mut self, chunk: &Range<usize>, rows: Tensor<2>, grad: Tensor<2>, head: &Head) {
        if let Some(sum) = &mut self.bias {
            let part = grad.clone().sum_dim(0);
            sum.inplace(|sum| sum + part);
        }
        if let Some(sum) = &mut self.weight {
            let ([tokens, classes], [d_model, _]) = (grad.dims(), sum.dims());
            let bytes = match is_on_flex(sum) {
                true => PART_BYTES,
                false => usize::MAX,
            };
            for columns in chunks(classes, 4 * d_model, bytes) {
                let part = grad.clone().slice([0..tokens, columns.clone()]);
                let part = rows.clone().transpose().matmul(part);
                let at = [0..d_model, columns];
                sum.inplace(|sum| {
                    let part = part + sum.clone().slice(at.clone());
                    sum.slice_assign(at, part)
                });
            }
        }
        if let Some(hidden) = &mut self.hidden {
            let part = head.of_hidden(grad);
            hidden.inplace(|hidden| hidden.slice_assign([chunk.clone()], part));
        }
    }
}

impl Operation<3> for Gradients {
    const NAME: &'static str = "linear_cross_entropy";
    const MIXES: bool = true;

    fn backward(self, grad: Gradient, operands: &mut OperandGradients<'_, 3>) {
        let mut factor = grad.tensor::<1>() / self.normalizer.clone();
        if self.may_be_of_nothing {
            factor = factor.mask_fill(self.normalizer.equal_elem(0.0), 0.0);
        }
        let factor = factor.unsqueeze::<2>();
        let scaled = |grad: Tensor<2>| grad * factor.clone();
        if let Some(hidden) = self.hidden {
            operands.give(HIDDEN, scaled(hidden));
        }
        if let Some(weight) = self.weight {
            operands.give(WEIGHT, scaled(weight));
        }
        if let Some(bias) = self.bias {
            operands.give(BIAS, scaled(bias).squeeze_dim::<1>(0));
        }
    }
}

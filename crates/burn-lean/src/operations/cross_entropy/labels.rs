//! The targets, and the losses and gradients of log probabilities.

use std::ops::Range;

use burn::nn::loss::CrossEntropyLoss;
use burn::tensor::{Bool, DType, IndexingUpdateOp, Int, Tensor};

#[cfg(feature = "flex")]
use crate::operations::flex;

/// The target that scores are compared with.
#[derive(Clone)]
pub(super) struct Labels {
    /// `[tokens, 1]`
    targets: Tensor<2, Int>,
    /// Tokens that do not count: `[tokens, 1]`.
    pub(super) ignored: Option<Tensor<2, Bool>>,
    /// The weight of each token's target: `[tokens, 1]`.
    of_target: Tensor<2>,
    /// `[1, classes]`, where classes have weights.
    of_classes: Option<Tensor<2>>,
    /// The part of a label that is spread over all classes.
    smoothing: f64,
    classes: usize,
    /// The factor of the squared logarithm of the sum of exponentials.
    z_loss: f64,
}

impl Labels {
    /// For logits of so many classes, computed in this type.
    pub(super) fn new(
        loss: &CrossEntropyLoss,
        z_loss: f64,
        targets: Tensor<1, Int>,
        classes: usize,
        wide: DType,
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
        let options = (&targets.device(), wide);
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
            of_target: of_target.unsqueeze_dim(1),
            of_classes: weights.map(Tensor::unsqueeze),
            smoothing: f64::from(loss.smoothing.unwrap_or(0.0)),
            classes,
            z_loss,
        }
    }

    /// The targets of a chunk of tokens.
    pub(super) fn of(&self, chunk: &Range<usize>) -> Self {
        Self {
            targets: self.targets.clone().slice([chunk.clone()]),
            ignored: self
                .ignored
                .clone()
                .map(|ignored| ignored.slice([chunk.clone()])),
            of_target: self.of_target.clone().slice([chunk.clone()]),
            of_classes: self.of_classes.clone(),
            ..*self
        }
    }

    pub(super) fn has_z_loss(&self) -> bool {
        self.z_loss > 0.0
    }

    /// The sum of the weights of the targets: `[1]`.
    pub(super) fn weight(&self) -> Tensor<1> {
        self.of_target.clone().sum()
    }

    /// The part of a smoothed label that every class gets.
    fn spread(&self) -> f64 {
        self.smoothing / self.classes as f64
    }

    /// The losses of tokens, `[tokens, 1]`, from their log probabilities `[tokens, classes]`. With
    /// z-loss, `log_sum` are the logarithms of the sums of exponentials: `[tokens, 1]`.
    pub(super) fn losses(&self, scores: &Tensor<2>, log_sum: Option<&Tensor<2>>) -> Tensor<2> {
        let of_target = scores.clone().gather(1, self.targets.clone());
        let mut loss = of_target * self.of_target.clone() * (self.smoothing - 1.0);
        if self.smoothing > 0.0 {
            let scores = match &self.of_classes {
                Some(weights) => scores.clone() * weights.clone(),
                None => scores.clone(),
            };
            loss = loss - scores.sum_dim(1) * self.spread();
        }
        if let Some(log_sum) = log_sum {
            loss = loss + log_sum.clone().square() * self.of_target.clone() * self.z_loss;
        }
        self.without_ignored(loss)
    }

    /// The gradient of the sum of the losses by the logits, from the same.
    pub(super) fn gradient(&self, scores: Tensor<2>, log_sum: Option<Tensor<2>>) -> Tensor<2> {
        let of_target = self.of_target.clone() * (1.0 - self.smoothing);
        let mut of_all = of_target.clone();
        let mut spread = None;
        if self.smoothing > 0.0 {
            let (of_classes, sum) = match &self.of_classes {
                Some(weights) => (weights.clone(), weights.clone().sum_dim(1)),
                None => {
                    let ones = Tensor::<2>::ones([1, 1], (&scores.device(), scores.dtype()));
                    (ones.clone(), ones * self.classes as f64)
                }
            };
            of_all = of_all + sum * self.spread();
            spread = Some(of_classes * self.spread());
        }
        if let Some(log_sum) = log_sum {
            of_all = of_all + log_sum * self.of_target.clone() * (2.0 * self.z_loss);
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

    /// `[tokens, ..]`, with zeros for tokens that do not count.
    pub(super) fn without_ignored(&self, tensor: Tensor<2>) -> Tensor<2> {
        match &self.ignored {
            // Burn expands to no length of 0.
            Some(ignored) if tensor.shape().num_elements() > 0 => {
                let mask = ignored.clone().expand(tensor.dims());
                tensor.mask_fill(mask, 0.0)
            }
            _ => tensor,
        }
    }
}

/// `exp(scores) * factors`, where `factors` is `[tokens, 1]`.
fn exp_times(scores: Tensor<2>, factors: Tensor<2>) -> Tensor<2> {
    #[cfg(feature = "flex")]
    if flex::has_slices(&scores) {
        return flex::exp_rows(scores, factors);
    }
    scores.exp() * factors
}

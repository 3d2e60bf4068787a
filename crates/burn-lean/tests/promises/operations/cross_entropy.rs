//! The fused head and loss.

use burn::nn::loss::{CrossEntropyLoss, Reduction};
use burn::tensor::activation::log_softmax;
use burn::tensor::quantization::QuantScheme;
use burn_lean::operations::{LinearCrossEntropy, linear_cross_entropy};

use super::harness::{Case, noise, shaped};
use crate::harness::prelude::*;
use crate::heap::{HEAP, peak_of};

/// A head of so many classes, and its loss.
#[derive(Clone, Copy, Debug)]
struct Head {
    tokens: usize,
    width: usize,
    classes: usize,
    /// The weight is that of an embedding.
    tied: bool,
    ignored: bool,
    weighted: bool,
    smoothing: Option<f32>,
    softcap: Option<f64>,
    z_loss: f64,
    reduction: Reduced,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Reduced {
    Mean,
    Sum,
    BatchMean,
    Not,
}

/// With a bias, and neither ignored tokens nor weights nor smoothing.
pub(crate) fn case(tokens: usize, width: usize, classes: usize) -> Case {
    Head::new(tokens, width, classes).case()
}

/// With z-loss, a softcap and all settings, for each token.
pub(crate) fn case_of_tokens(tokens: usize, width: usize, classes: usize) -> Case {
    let head = Head {
        ignored: true,
        weighted: true,
        smoothing: Some(0.25),
        softcap: Some(30.0),
        z_loss: 1e-2,
        reduction: Reduced::Not,
        ..Head::new(tokens, width, classes)
    };
    head.case()
}

impl Head {
    const fn new(tokens: usize, width: usize, classes: usize) -> Self {
        Self {
            tokens,
            width,
            classes,
            tied: false,
            ignored: false,
            weighted: false,
            smoothing: None,
            softcap: None,
            z_loss: 0.0,
            reduction: Reduced::Mean,
        }
    }

    fn case(self) -> Case {
        Case::new(
            format!("{self:?}"),
            self.inputs(),
            move |leaves| self.reference(leaves),
            move |leaves| {
                let (hidden, weight, bias) = self.split(leaves);
                let targets = self.targets(&hidden.device());
                let mut loss = LinearCrossEntropy::new(&self.loss(&leaves[0]));
                loss = loss.with_z_loss(self.z_loss);
                if let Some(softcap) = self.softcap {
                    loss = loss.with_softcap(softcap);
                }
                let reduction = match self.reduction {
                    Reduced::Mean => Reduction::Mean,
                    Reduced::Sum => Reduction::Sum,
                    Reduced::BatchMean => Reduction::BatchMean,
                    Reduced::Not => {
                        return loss.forward_no_reduction(hidden, weight, bias, targets);
                    }
                };
                loss.forward(hidden, weight, bias, targets, reduction)
            },
        )
    }

    fn config(self) -> CrossEntropyLossConfig {
        let weights = || (0..self.classes).map(|c| 0.5 + (c % 3) as f32).collect();
        CrossEntropyLossConfig::new()
            .with_pad_tokens(self.ignored.then(|| vec![0, 2]))
            .with_weights(self.weighted.then(weights))
            .with_smoothing(self.smoothing)
    }

    /// In the type of the rest: Burn's weights are of the device's.
    fn loss(self, like: &Tensor<1>) -> CrossEntropyLoss {
        let mut loss = self.config().init(&like.device());
        loss.weights = loss.weights.map(|weights| weights.cast(like.dtype()));
        loss
    }

    fn targets(self, device: &Device) -> Tensor<1, Int> {
        ids([self.tokens], 1, self.classes, device)
    }

    fn inputs(self) -> Vec<Vec<f64>> {
        vec![
            noise(self.tokens * self.width, 1),
            noise(self.width * self.classes, 2),
            noise(self.classes, 3),
        ]
    }

    fn split(self, leaves: &[Tensor<1>]) -> (Tensor<2>, Tensor<2>, Option<Tensor<1>>) {
        let weight = match self.tied {
            true => shaped(&leaves[1], [self.classes, self.width]).transpose(),
            false => shaped(&leaves[1], [self.width, self.classes]),
        };
        (
            shaped(&leaves[0], [self.tokens, self.width]),
            weight,
            leaves.get(2).cloned(),
        )
    }

    fn reference(self, leaves: &[Tensor<1>]) -> Tensor<1> {
        let logits = self.logits(leaves);
        let targets = self.targets(&logits.device());
        let has_more = self.z_loss > 0.0 || self.reduction != Reduced::Mean;
        match self.smoothing {
            // Burn's makes its smoothed labels in `f32` alone, and no loss but the mean.
            None if !has_more => self.loss(&leaves[0]).forward(logits, targets),
            smoothing => self.by_definition(logits, targets, smoothing.map_or(0.0, f64::from)),
        }
    }

    fn logits(self, leaves: &[Tensor<1>]) -> Tensor<2> {
        let (hidden, weight, bias) = self.split(leaves);
        let mut logits = hidden.matmul(weight);
        if let Some(bias) = bias {
            logits = logits + bias.unsqueeze();
        }
        match self.softcap {
            // Burn's division by a number has a gradient of `f32`'s precision.
            Some(softcap) => (logits * softcap.recip()).tanh() * softcap,
            None => logits,
        }
    }

    /// As Burn's `forward_smoothed`, and z-loss.
    fn by_definition(
        self,
        logits: Tensor<2>,
        targets: Tensor<1, Int>,
        smoothing: f64,
    ) -> Tensor<1> {
        let loss = self.loss(&logits.clone().flatten(0, 1));
        let log_sum = logits.clone().exp().sum_dim(1).log().squeeze_dim::<1>(1);
        let scores = log_softmax(logits, 1);
        let one_hot = targets.clone().one_hot::<2>(self.classes).float();
        let one_hot = one_hot.cast(scores.dtype());
        let mut labels = one_hot * (1.0 - smoothing) + smoothing / self.classes as f64;
        let mut of_target = Tensor::<1>::ones([self.tokens], (&scores.device(), scores.dtype()));
        if let Some(weights) = loss.weights {
            labels = labels * weights.clone().unsqueeze();
            of_target = weights.gather(0, targets.clone());
        }
        let losses = (scores * labels).sum_dim(1).squeeze_dim::<1>(1);
        let mut losses = losses.neg() + log_sum.square() * of_target.clone() * self.z_loss;
        if let Some(pads) = loss.pad_tokens {
            for pad in pads {
                let mask = targets.clone().equal_scalar(pad as i64);
                losses = losses.mask_fill(mask.clone(), 0.0);
                of_target = of_target.mask_fill(mask, 0.0);
            }
        }
        match self.reduction {
            Reduced::Mean => losses.sum() / of_target.sum(),
            Reduced::Sum => losses.sum(),
            Reduced::BatchMean => losses.sum() * (self.tokens as f64).recip(),
            Reduced::Not => losses,
        }
    }
}

#[test]
fn the_loss_is_that_of_burn() {
    for (tokens, width, classes) in [(1, 3_usize, 5), (7, 4, 3), (300, 5, 11), (131, 16, 64)] {
        for options in 0..8_u8 {
            let head = Head {
                tied: !width.is_multiple_of(2),
                ignored: options & 1 != 0,
                weighted: options & 2 != 0,
                smoothing: (options & 4 != 0).then_some(0.25),
                ..Head::new(tokens, width, classes)
            };
            head.case().assert_equal(256.0);
            head.case().without_last_input().assert_equal(256.0);
        }
    }
}

#[test]
fn options_of_the_loss_are_those_of_their_definitions() {
    const SOFTCAPS: [Option<f64>; 3] = [None, Some(0.5), Some(30.0)];
    for reduction in [
        Reduced::Mean,
        Reduced::Sum,
        Reduced::BatchMean,
        Reduced::Not,
    ] {
        for (softcap, z_loss) in SOFTCAPS
            .into_iter()
            .flat_map(|cap| [(cap, 0.0), (cap, 0.1)])
        {
            for settings in [false, true] {
                let head = Head {
                    ignored: settings,
                    weighted: settings,
                    smoothing: settings.then_some(0.25),
                    softcap,
                    z_loss,
                    reduction,
                    ..Head::new(300, 5, 11)
                };
                head.case().assert_equal(256.0);
                head.case().without_last_input().assert_equal(256.0);
            }
        }
    }
    let of_nothing = |reduction, z_loss| {
        let head = Head {
            ignored: z_loss == 0.0,
            reduction,
            z_loss,
            ..Head::new(0, 3, 4)
        };
        head.case()
    };
    of_nothing(Reduced::Not, 0.1).assert_empty();
    let padded = of_nothing(Reduced::Not, 0.0);
    padded.without_last_input().assert_empty();
    let sum = of_nothing(Reduced::Sum, 0.1).found(&flex(), DType::F32);
    assert!(sum.value == [0.0] && sum.numbers().all(|x| x == 0.0));
}

/// Logits of which one exponential is all of the sum, or of which the exponential is infinite.
#[test]
fn z_loss_of_large_logits_is_the_square_of_the_largest() {
    for device in devices() {
        for logit in [-3e4_f32, 200.0, 1e15] {
            let hidden = Tensor::<2>::full([1, 1], logit, &device).require_grad();
            let weight = Tensor::<2>::from_floats([[1.0, 0.0, 2.0]], &device);
            let targets = Tensor::from_ints([0], &device);
            let plain = CrossEntropyLossConfig::new().init(&device);
            let of = |loss: LinearCrossEntropy| {
                let (leaf, weight) = (hidden.clone(), weight.clone());
                let loss = loss.forward(leaf, weight, None, targets.clone(), Reduction::Sum);
                let grad = hidden.grad(&loss.backward()).unwrap();
                [loss.into_scalar::<f32>(), grad.into_scalar::<f32>()]
            };
            let [loss, grad] = of(LinearCrossEntropy::new(&plain).with_z_loss(1e-4));
            let largest = logit.max(0.0).max(2.0 * logit);
            // The loss of the target, and its gradient by `hidden`.
            let slope: f64 = if logit > 0.0 { 2.0 } else { 0.0 };
            let (expected, of_hidden) = (largest - logit, slope - 1.0);
            let z = f64::from(largest) * f64::from(largest) * 1e-4 + f64::from(expected);
            let of_z = 2e-4 * f64::from(largest) * slope + of_hidden;
            for (found, expected) in [(loss, z), (grad, of_z)] {
                let difference = (f64::from(found) - expected).abs();
                assert!(
                    difference <= 1e-6 * expected.abs(),
                    "{logit}: {found} {expected}"
                );
            }
        }
    }
}

#[test]
fn options_that_make_no_sense_are_refused() {
    let loss = || LinearCrossEntropy::new(&CrossEntropyLossConfig::new().init(&flex()));
    for number in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert_panics(|| loss().with_softcap(number), "a softcap of");
    }
    for number in [-1e-4, f64::INFINITY, f64::NAN] {
        assert_panics(|| loss().with_z_loss(number), "a z-loss of");
    }
}

#[test]
fn smoothed_labels_are_those_of_burn() {
    let head = Head {
        ignored: true,
        weighted: true,
        smoothing: Some(0.1),
        ..Head::new(100, 8, 7)
    };
    let plain = move |leaves: &[Tensor<1>]| {
        let logits = head.logits(leaves);
        let targets = head.targets(&logits.device());
        head.loss(&leaves[0]).forward(logits, targets)
    };
    head.case().with_reference(plain).assert_as_plain(64.0);
}

#[test]
fn the_loss_of_no_tokens_is_burns_mean_of_nothing() {
    let found = case(0, 3, 4).found(&flex(), DType::F32);
    assert!(found.value[0].is_nan(), "{found:?}");
    // A sum over nothing, as that of PyTorch.
    let zeros = [vec![], vec![0.0; 12], vec![0.0; 4]];
    assert_eq!(found.grads, zeros);
}

/// A frozen head, of which the hidden states still get their gradient.
#[test]
fn a_quantized_head_is_dequantized() {
    let scheme = QuantScheme::default();
    let weight = numbers([32, 64], 2, &flex())
        .inner()
        .quantize_dynamic(&scheme);
    let bias = numbers([64], 3, &flex()).inner().quantize_dynamic(&scheme);
    let loss = CrossEntropyLossConfig::new().init(&flex());
    let run = |weight: Tensor<2>, bias: Tensor<1>| {
        let hidden = numbers([3, 32], 1, &flex()).require_grad();
        let targets = Tensor::<1, Int>::from_ints([1, 2, 0], &flex());
        let value = linear_cross_entropy(&loss, hidden.clone(), weight, Some(bias), targets);
        let grad = hidden.grad(&value.clone().backward()).unwrap();
        (value.into_data(), grad.into_data())
    };
    let expected = run(weight.clone().dequantize(), bias.clone().dequantize());
    assert_eq!(run(weight.clone(), bias.clone()), expected);
    let hidden = numbers([3, 32], 1, &flex()).inner();
    let targets = Tensor::<1, Int>::from_ints([1, 2, 0], &flex()).inner();
    let value = linear_cross_entropy(&loss, hidden, weight, Some(bias), targets);
    assert_eq!(value.into_data(), expected.0);
}

/// A head of 8,000 classes for 1,500 tokens: the logits would be 48 MB.
#[test]
fn the_logits_never_exist() {
    alone(|| {
        const TOKENS: usize = 1500;
        const WIDTH: usize = 64;
        const CLASSES: usize = 8000;
        const LOGITS: usize = 4 * TOKENS * CLASSES;
        const GRADIENTS: usize = 4 * WIDTH * (CLASSES + TOKENS);
        let hidden = numbers([TOKENS, WIDTH], 1, &flex()).require_grad();
        let weight = numbers([WIDTH, CLASSES], 2, &flex()).require_grad();
        let targets = || ids([TOKENS], 3, CLASSES, &flex());
        let loss = CrossEntropyLossConfig::new().init(&flex());
        // The bytes that are kept for backward, and the peak of both passes.
        let bytes_of = |forward: &dyn Fn(Tensor<2>, Tensor<2>) -> Tensor<1>| {
            let before = HEAP.current_usage();
            peak_of(|| {
                let losses = forward(hidden.clone(), weight.clone());
                let kept = HEAP.current_usage() - before;
                losses.sum().backward();
                kept
            })
        };
        // First: what a product on Flex allocates once is not ours.
        let (_, plain) = bytes_of(&|hidden, weight| loss.forward(hidden.matmul(weight), targets()));
        let (kept, ours) = bytes_of(&|hidden, weight| {
            linear_cross_entropy(&loss, hidden, weight, None, targets())
        });
        let (kept_of_tokens, of_tokens) = bytes_of(&|hidden, weight| {
            let loss = LinearCrossEntropy::new(&loss).with_softcap(30.0);
            let loss = loss.with_z_loss(1e-4);
            loss.forward_no_reduction(hidden, weight, None, targets())
        });
        println!(
            "peak: ours {ours}, of tokens {of_tokens}, Burn's {plain}; logits {LOGITS}; kept {kept}, \
             of tokens {kept_of_tokens}"
        );
        assert!(of_tokens < LOGITS / 4, "{of_tokens} of {LOGITS}");
        assert!(kept_of_tokens < 64 << 10, "{kept_of_tokens}");
        assert!(ours < LOGITS / 4, "{ours} of logits of {LOGITS} bytes");
        assert!(plain > LOGITS);
        assert!(kept < GRADIENTS + (64 << 10), "{kept} of {GRADIENTS}");
    });
}

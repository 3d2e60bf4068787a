//! A small convolutional network.

use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Gelu, Linear, LinearConfig};
use burn::tensor::{Device, Tensor};
use burn::train::{ClassificationOutput, InferenceStep, TrainOutput, TrainStep};

use crate::data::Digits;

/// Two convolutions and four linear layers.
#[derive(Module, Debug)]
pub(crate) struct Classifier {
    first: Conv2d,
    norm: BatchNorm,
    second: Conv2d,
    hidden: Vec<Linear>,
    dropout: Dropout,
    output: Linear,
    activation: Gelu,
}

impl Classifier {
    pub(crate) fn new(device: &Device) -> Self {
        device.seed(42);
        Self {
            first: Conv2dConfig::new([1, 16], [3, 3]).init(device),
            norm: BatchNormConfig::new(16).init(device),
            second: Conv2dConfig::new([16, 32], [3, 3]).init(device),
            hidden: (0..3)
                .map(|_| LinearConfig::new(32 * 4 * 4, 32 * 4 * 4).init(device))
                .collect(),
            dropout: DropoutConfig::new(0.3).init(),
            output: LinearConfig::new(32 * 4 * 4, 10).init(device),
            activation: Gelu::new(),
        }
    }

    /// Scores of the ten digits, `[batch, 10]`, for `images`: `[batch, 8, 8]`.
    fn forward(&self, images: Tensor<3>) -> Tensor<2> {
        let x = self.first.forward(images.unsqueeze_dim(1));
        let x = self.activation.forward(self.norm.forward(x));
        let x = self.activation.forward(self.second.forward(x));
        let mut x = x.flatten(1, 3);
        for layer in &self.hidden {
            x = self
                .dropout
                .forward(self.activation.forward(layer.forward(x)));
        }
        self.output.forward(x)
    }

    fn classify(&self, digits: Digits) -> ClassificationOutput {
        let output = self.forward(digits.images);
        let loss = CrossEntropyLossConfig::new().init(&output.device());
        let loss = loss.forward(output.clone(), digits.labels.clone());
        ClassificationOutput::new(loss, output, digits.labels)
    }
}

impl TrainStep for Classifier {
    type Input = Digits;
    type Output = ClassificationOutput;

    fn step(&self, digits: Digits) -> TrainOutput<ClassificationOutput> {
        let output = self.classify(digits);
        // In place of `TrainOutput::new(self, output.loss.backward(), output)`, which it is without
        // gradient release.
        burn_lean::train::output(self, output.loss.clone(), output)
    }
}

impl InferenceStep for Classifier {
    type Input = Digits;
    type Output = ClassificationOutput;

    fn step(&self, digits: Digits) -> ClassificationOutput {
        self.classify(digits)
    }
}

/// The bits of all weights.
pub(crate) fn weights(model: &Classifier) -> Vec<u32> {
    struct Bits(Vec<u32>);
    impl ModuleVisitor for Bits {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let weight = param.val().into_data();
            self.0.extend(weight.iter::<f32>().map(f32::to_bits));
        }
    }
    let mut bits = Bits(Vec::new());
    model.visit(&mut bits);
    bits.0
}

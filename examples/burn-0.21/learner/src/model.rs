//! A small convolutional network.

use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Gelu, Linear, LinearConfig};
use burn::tensor::Tensor;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::train::{ClassificationOutput, InferenceStep, TrainOutput, TrainStep};

use crate::data::Digits;

/// Two convolutions and four linear layers.
#[derive(Module, Debug)]
pub(crate) struct Classifier<B: Backend> {
    first: Conv2d<B>,
    norm: BatchNorm<B>,
    second: Conv2d<B>,
    hidden: Vec<Linear<B>>,
    dropout: Dropout,
    output: Linear<B>,
    activation: Gelu,
}

impl<B: Backend> Classifier<B> {
    pub(crate) fn new(device: &B::Device) -> Self {
        B::seed(device, 42);
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
    fn forward(&self, images: Tensor<B, 3>) -> Tensor<B, 2> {
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

    fn classify(&self, digits: Digits<B>) -> ClassificationOutput<B> {
        let output = self.forward(digits.images);
        let loss = CrossEntropyLossConfig::new().init(&output.device());
        let loss = loss.forward(output.clone(), digits.labels.clone());
        ClassificationOutput::new(loss, output, digits.labels)
    }
}

impl<B: AutodiffBackend> TrainStep for Classifier<B> {
    type Input = Digits<B>;
    type Output = ClassificationOutput<B>;

    fn step(&self, digits: Digits<B>) -> TrainOutput<ClassificationOutput<B>> {
        let output = self.classify(digits);
        TrainOutput::new(self, output.loss.backward(), output)
    }
}

impl<B: Backend> InferenceStep for Classifier<B> {
    type Input = Digits<B>;
    type Output = ClassificationOutput<B>;

    fn step(&self, digits: Digits<B>) -> ClassificationOutput<B> {
        self.classify(digits)
    }
}

/// The bits of all weights.
pub(crate) fn weights<B: Backend>(model: &Classifier<B>) -> Vec<u32> {
    struct Bits(Vec<u32>);
    impl<B: Backend> ModuleVisitor<B> for Bits {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            let weight = param.val().into_data();
            self.0.extend(weight.iter::<f32>().map(f32::to_bits));
        }
    }
    let mut bits = Bits(Vec::new());
    model.visit(&mut bits);
    bits.0
}

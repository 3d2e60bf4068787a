//! The vision transformer (Dosovitskiy et al., 2021, <https://arxiv.org/abs/2010.11929>).

use crate::data::Batch;
use burn::module::{Initializer, Module, ModuleVisitor, Param};
use burn::nn::attention::{MhaInput, MultiHeadAttention, MultiHeadAttentionConfig};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{
    Dropout, DropoutConfig, Gelu, LayerNorm, LayerNormConfig, Linear, LinearConfig, PaddingConfig2d,
};
use burn::tensor::Tensor;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::train::{ClassificationOutput, InferenceStep, TrainOutput, TrainStep};
use burn_gradient_release::checkpoint;
use burn_gradient_release_train::metric::ClassificationCounts;
use sha2::{Digest, Sha256};
use vit_inputs::VitConfig;

/// A vision transformer that classifies images.
#[derive(Module, Debug)]
pub struct Vit<B: Backend> {
    patches: Conv2d<B>,
    class_token: Param<Tensor<B, 3>>,
    positions: Param<Tensor<B, 3>>,
    dropout: Dropout,
    blocks: Vec<Block<B>>,
    recomputes_blocks: bool,
    norm: LayerNorm<B>,
    head: Linear<B>,
}

impl<B: Backend> Vit<B> {
    /// Builds the model with random weights.
    pub fn new(config: &VitConfig, device: &B::Device) -> Self {
        let small = Initializer::Normal {
            mean: 0.0,
            std: 0.02,
        };
        // Patches have a standard deviation of about 1: positions at 0.02 would have no effect for
        // epochs.
        let visible = Initializer::Normal {
            mean: 0.0,
            std: 0.2,
        };
        let patch = [config.patch_size; 2];
        Self {
            patches: Conv2dConfig::new([config.channels, config.dim], patch)
                .with_stride(patch)
                .with_padding(PaddingConfig2d::Valid)
                .init(device),
            class_token: small.init([1, 1, config.dim], device),
            positions: visible.init([1, config.tokens(), config.dim], device),
            dropout: DropoutConfig::new(config.dropout).init(),
            blocks: (0..config.depth)
                .map(|_| Block::new(config, device))
                .collect(),
            recomputes_blocks: false,
            norm: norm(config, device),
            head: LinearConfig::new(config.dim, config.classes)
                .with_initializer(small)
                .init(device),
        }
    }

    /// Whether the backward pass recomputes the blocks from their inputs, on a backend with
    /// gradient release; otherwise their activations are kept.
    pub fn recomputing_blocks(mut self, recomputes: bool) -> Self {
        self.recomputes_blocks = recomputes;
        self
    }

    /// Scores each class for each image.
    ///
    /// # Shapes
    ///
    /// - images: `[batch, channels, size, size]`
    /// - output: `[batch, classes]`
    pub fn forward(&self, images: Tensor<B, 4>) -> Tensor<B, 2> {
        let [batch, ..] = images.dims();
        // `[batch, dim, rows, columns]` to `[batch, patches, dim]`
        let patches = self.patches.forward(images).flatten(2, 3).swap_dims(1, 2);
        let [_, _, dim] = patches.dims();

        let class_token = self.class_token.val().expand([batch, 1, dim]);
        let tokens = Tensor::cat(vec![class_token, patches], 1);
        let mut tokens = self.dropout.forward(tokens + self.positions.val());
        for block in &self.blocks {
            tokens = if self.recomputes_blocks {
                checkpoint(|| block.forward(tokens))
            } else {
                block.forward(tokens)
            };
        }

        // Only one token is read, so only one needs the norm.
        let read = self.norm.forward(tokens.narrow(1, 0, 1));
        self.head.forward(read.reshape([batch, dim]))
    }

    /// Scores a batch and compares the scores with its labels.
    pub fn forward_classification(&self, batch: Batch<B>) -> ClassificationOutput<B> {
        let output = self.forward(batch.images);
        let loss = CrossEntropyLossConfig::new()
            .init(&output.device())
            .forward(output.clone(), batch.labels.clone());
        ClassificationOutput::new(loss, output, batch.labels)
    }
}

impl<B: AutodiffBackend> TrainStep for Vit<B> {
    type Input = Batch<B>;
    type Output = ClassificationCounts<B>;

    fn step(&self, batch: Batch<B>) -> TrainOutput<ClassificationCounts<B>> {
        // The dropout of a resumed run is that of the uninterrupted one.
        B::seed(&batch.images.device(), batch.seed);
        let item =
            burn_gradient_release_timeline::forward(self, || self.forward_classification(batch));
        let grads = burn_gradient_release_timeline::backward(|| item.loss.backward());
        TrainOutput::new(self, grads, item.into())
    }
}

impl<B: Backend> InferenceStep for Vit<B> {
    type Input = Batch<B>;
    type Output = ClassificationCounts<B>;

    fn step(&self, batch: Batch<B>) -> ClassificationCounts<B> {
        self.forward_classification(batch).into()
    }
}

/// An encoder block with the norms before the work ("pre-norm").
#[derive(Module, Debug)]
struct Block<B: Backend> {
    attention_norm: LayerNorm<B>,
    attention: MultiHeadAttention<B>,
    mlp_norm: LayerNorm<B>,
    widen: Linear<B>,
    gelu: Gelu,
    narrow: Linear<B>,
    dropout: Dropout,
}

impl<B: Backend> Block<B> {
    fn new(config: &VitConfig, device: &B::Device) -> Self {
        Self {
            attention_norm: norm(config, device),
            // Burn's attention would drop scores before the softmax; the paper drops none there.
            attention: MultiHeadAttentionConfig::new(config.dim, config.heads)
                .with_dropout(0.0)
                .init(device),
            mlp_norm: norm(config, device),
            widen: LinearConfig::new(config.dim, config.hidden).init(device),
            gelu: Gelu::new(),
            narrow: LinearConfig::new(config.hidden, config.dim).init(device),
            dropout: DropoutConfig::new(config.dropout).init(),
        }
    }

    fn forward(&self, tokens: Tensor<B, 3>) -> Tensor<B, 3> {
        let input = MhaInput::self_attn(self.attention_norm.forward(tokens.clone()));
        let attended = self.attention.forward(input).context;
        let tokens = tokens + self.dropout.forward(attended);

        let hidden = self.widen.forward(self.mlp_norm.forward(tokens.clone()));
        let narrowed = self.narrow.forward(self.gelu.forward(hidden));
        tokens + self.dropout.forward(narrowed)
    }
}

fn norm<B: Backend>(config: &VitConfig, device: &B::Device) -> LayerNorm<B> {
    LayerNormConfig::new(config.dim)
        .with_epsilon(1e-6)
        .init(device)
}

/// SHA-256 over the shape and the bits of every weight, in the order of the model: to compare those
/// of two runs.
pub fn digest<B: Backend, M: Module<B>>(model: &M) -> String {
    struct Visitor(Sha256);
    impl<B: Backend> ModuleVisitor<B> for Visitor {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            let data = param.val().into_data();
            for size in data.shape.iter() {
                self.0.update((*size as u64).to_le_bytes());
            }
            self.0.update(data.as_bytes());
        }
    }
    let mut visitor = Visitor(Sha256::new());
    model.visit(&mut visitor);
    format!("{:x}", visitor.0.finalize())
}

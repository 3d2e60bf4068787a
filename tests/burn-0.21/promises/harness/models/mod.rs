//! The models that runs train, each once, for any backend.

use burn::nn::attention::{MhaInput, MultiHeadAttention, MultiHeadAttentionConfig};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{BatchNorm, BatchNormConfig, Embedding, EmbeddingConfig, PaddingConfig2d};
use burn::tensor::activation::{gelu, log_softmax, relu};
use burn::tensor::module::embedding;

mod deep;
mod recurrent;

use super::noise::ids;
use super::scopes::block;
use crate::harness::prelude::*;

pub(crate) use deep::{Deep, UNet};
pub(crate) use recurrent::{NormalisedRecurrent, Recurrent, RecurrentModel};

/// How big to make a model: `Small` for numbers, `Large` for bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Size {
    Small,
    Large,
}

impl Size {
    fn pick(self, small: usize, large: usize) -> usize {
        match self {
            Size::Small => small,
            Size::Large => large,
        }
    }
}

/// A model and the loss it is trained on.
pub(crate) trait Scenario {
    /// The model on a backend.
    type Model<B: AutodiffBackend>: AutodiffModule<B> + 'static;

    /// Fresh weights.
    fn init<B: AutodiffBackend>(size: Size, device: &B::Device) -> Self::Model<B>;

    /// The loss of step `step`, on inputs that depend on nothing else.
    fn loss<B: AutodiffBackend>(model: &Self::Model<B>, size: Size, step: u64) -> Tensor<B, 1>;
}

/// A device of the backend; tests run where there is only one.
fn device<B: Backend>() -> B::Device {
    B::Device::default()
}

/// Linear layers with ReLU between.
#[derive(Module, Debug)]
pub(crate) struct MlpModel<B: Backend> {
    pub(crate) layers: Vec<Linear<B>>,
}

pub(crate) struct Mlp;

impl Scenario for Mlp {
    type Model<B: AutodiffBackend> = MlpModel<B>;

    fn init<B: AutodiffBackend>(size: Size, device: &B::Device) -> MlpModel<B> {
        let width = size.pick(8, 512);
        let layers = (0..size.pick(3, 8))
            .map(|_| LinearConfig::new(width, width).init(device))
            .collect();
        MlpModel { layers }
    }

    fn loss<B: AutodiffBackend>(model: &MlpModel<B>, size: Size, step: u64) -> Tensor<B, 1> {
        let width = size.pick(8, 512);
        let mut x = noise::<B, 2>(step, [4, width], &device::<B>());
        for layer in &model.layers {
            x = block(|| relu(layer.forward(x)));
        }
        (x - noise::<B, 2>(step + 1000, [4, width], &device::<B>()))
            .square()
            .mean()
    }
}

/// Convolutions with batch norm, in residual blocks.
#[derive(Module, Debug)]
pub(crate) struct CnnModel<B: Backend> {
    stem: Conv2d<B>,
    blocks: Vec<Block<B>>,
    head: Linear<B>,
}

#[derive(Module, Debug)]
struct Block<B: Backend> {
    first: Conv2d<B>,
    first_norm: BatchNorm<B>,
    second: Conv2d<B>,
    second_norm: BatchNorm<B>,
}

impl<B: Backend> Block<B> {
    fn init(channels: usize, device: &B::Device) -> Self {
        let conv = || {
            Conv2dConfig::new([channels, channels], [3, 3])
                .with_padding(PaddingConfig2d::Same)
                .init(device)
        };
        Self {
            first: conv(),
            first_norm: BatchNormConfig::new(channels).init(device),
            second: conv(),
            second_norm: BatchNormConfig::new(channels).init(device),
        }
    }

    fn forward(&self, x: Tensor<B, 4>) -> Tensor<B, 4> {
        let y = relu(self.first_norm.forward(self.first.forward(x.clone())));
        relu(x + self.second_norm.forward(self.second.forward(y)))
    }
}

pub(crate) struct Cnn;

impl Scenario for Cnn {
    type Model<B: AutodiffBackend> = CnnModel<B>;

    fn init<B: AutodiffBackend>(size: Size, device: &B::Device) -> CnnModel<B> {
        let channels = size.pick(4, 128);
        CnnModel {
            stem: Conv2dConfig::new([2, channels], [3, 3])
                .with_padding(PaddingConfig2d::Same)
                .init(device),
            blocks: (0..size.pick(2, 4))
                .map(|_| Block::init(channels, device))
                .collect(),
            head: LinearConfig::new(channels, 5).init(device),
        }
    }

    fn loss<B: AutodiffBackend>(model: &CnnModel<B>, _: Size, step: u64) -> Tensor<B, 1> {
        let images = noise::<B, 4>(step, [2, 2, 5, 5], &device::<B>());
        let mut x = model.stem.forward(images);
        for residual in &model.blocks {
            x = block(|| residual.forward(x));
        }
        let features: Tensor<B, 2> = x.mean_dim(3).mean_dim(2).flatten(1, 3);
        let logits = log_softmax(model.head.forward(features), 1);
        logits.slice([0..2, 1..3]).mean().neg()
    }
}

/// A small language model: embedding, attention blocks, head.
#[derive(Module, Debug)]
pub(crate) struct TransformerModel<B: Backend> {
    tokens: Embedding<B>,
    blocks: Vec<Attention<B>>,
    norm: LayerNorm<B>,
    head: Linear<B>,
}

impl<B: Backend> TransformerModel<B> {
    /// The loss of two sequences of this length.
    pub(crate) fn loss(&self, size: Size, length: usize, step: u64) -> Tensor<B, 1> {
        let vocabulary = size.pick(11, 256);
        let tokens = ids::<B, 2>(step, [2, length], vocabulary as u64, &device::<B>());
        let mut x = self.tokens.forward(tokens);
        for layer in &self.blocks {
            x = block(|| layer.forward(x));
        }
        let logits = log_softmax(self.head.forward(self.norm.forward(x)), 2);
        logits.slice([0..2, 0..length, 3..4]).mean().neg()
    }
}

#[derive(Module, Debug)]
struct Attention<B: Backend> {
    norm: LayerNorm<B>,
    attention: MultiHeadAttention<B>,
    inner_norm: LayerNorm<B>,
    up: Linear<B>,
    down: Linear<B>,
}

impl<B: Backend> Attention<B> {
    fn forward(&self, x: Tensor<B, 3>) -> Tensor<B, 3> {
        let attended = self
            .attention
            .forward(MhaInput::self_attn(self.norm.forward(x.clone())))
            .context;
        let x = x + attended;
        let inner = self.up.forward(self.inner_norm.forward(x.clone()));
        x + self.down.forward(gelu(inner))
    }
}

pub(crate) struct Transformer;

impl Scenario for Transformer {
    type Model<B: AutodiffBackend> = TransformerModel<B>;

    fn init<B: AutodiffBackend>(size: Size, device: &B::Device) -> TransformerModel<B> {
        let (vocabulary, width) = (size.pick(11, 256), size.pick(8, 256));
        let norm = || LayerNormConfig::new(width).init(device);
        TransformerModel {
            tokens: EmbeddingConfig::new(vocabulary, width).init(device),
            blocks: (0..size.pick(2, 3))
                .map(|_| Attention {
                    norm: norm(),
                    attention: MultiHeadAttentionConfig::new(width, 2)
                        .with_dropout(0.0)
                        .init(device),
                    inner_norm: norm(),
                    up: LinearConfig::new(width, 4 * width).init(device),
                    down: LinearConfig::new(4 * width, width).init(device),
                })
                .collect(),
            norm: norm(),
            head: LinearConfig::new(width, vocabulary).init(device),
        }
    }

    fn loss<B: AutodiffBackend>(
        model: &TransformerModel<B>,
        size: Size,
        step: u64,
    ) -> Tensor<B, 1> {
        model.loss(size, 6, step)
    }
}

/// One matrix as embedding and, transposed, as output head.
#[derive(Module, Debug)]
pub(crate) struct TiedModel<B: Backend> {
    table: Param<Tensor<B, 2>>,
    layers: Vec<Linear<B>>,
}

pub(crate) struct Tied;

impl Scenario for Tied {
    type Model<B: AutodiffBackend> = TiedModel<B>;

    fn init<B: AutodiffBackend>(size: Size, device: &B::Device) -> TiedModel<B> {
        let (vocabulary, width) = (size.pick(9, 512), size.pick(6, 256));
        TiedModel {
            table: Param::from_tensor(noise(7, [vocabulary, width], device)),
            layers: (0..size.pick(2, 24))
                .map(|_| LinearConfig::new(width, width).init(device))
                .collect(),
        }
    }

    fn loss<B: AutodiffBackend>(model: &TiedModel<B>, size: Size, step: u64) -> Tensor<B, 1> {
        let vocabulary = size.pick(9, 512);
        let tokens = ids::<B, 2>(step, [2, 4], vocabulary as u64, &device::<B>());
        let mut x: Tensor<B, 3> = embedding(model.table.val(), tokens);
        for layer in &model.layers {
            x = block(|| gelu(layer.forward(x)));
        }
        let logits = x.matmul(model.table.val().transpose().unsqueeze());
        log_softmax(logits, 2)
            .slice([0..2, 0..4, 2..3])
            .mean()
            .neg()
    }
}

/// Parameters that no op sees as they are: reshaped, transposed, sliced, unsqueezed first.
#[derive(Module, Debug)]
pub(crate) struct ViewsModel<B: Backend> {
    reshaped: Vec<Param<Tensor<B, 1>>>,
    transposed: Vec<Param<Tensor<B, 2>>>,
    sliced: Vec<Param<Tensor<B, 2>>>,
    unsqueezed: Vec<Param<Tensor<B, 1>>>,
}

pub(crate) struct Views;

impl Scenario for Views {
    type Model<B: AutodiffBackend> = ViewsModel<B>;

    fn init<B: AutodiffBackend>(size: Size, device: &B::Device) -> ViewsModel<B> {
        let width = size.pick(6, 384);
        let depth = size.pick(2, 4);
        let many = |rows: usize| -> Vec<Param<Tensor<B, 2>>> {
            (0..depth)
                .map(|seed| Param::from_tensor(noise(seed as u64, [rows, width], device)))
                .collect()
        };
        let flat = |length: usize| -> Vec<Param<Tensor<B, 1>>> {
            (0..depth)
                .map(|seed| Param::from_tensor(noise(seed as u64, [length], device) * 0.1))
                .collect()
        };
        ViewsModel {
            reshaped: flat(width * width),
            transposed: many(width),
            sliced: many(width + 2),
            unsqueezed: flat(width),
        }
    }

    fn loss<B: AutodiffBackend>(model: &ViewsModel<B>, size: Size, step: u64) -> Tensor<B, 1> {
        let width = size.pick(6, 384);
        let mut x = noise::<B, 2>(step, [4, width], &device::<B>());
        for depth in 0..model.reshaped.len() {
            x = block(|| {
                let x = x.matmul(model.reshaped[depth].val().reshape([width, width]));
                let x = x.matmul(model.transposed[depth].val().transpose()).tanh();
                let part = model.sliced[depth].val().slice([1..width + 1, 0..width]);
                let x = x.matmul(part).tanh();
                x * model.unsqueezed[depth].val().unsqueeze::<2>()
            });
        }
        x.square().mean()
    }
}

/// Each matrix is direction times length, so its gradient comes back by several ways.
#[derive(Module, Debug)]
pub(crate) struct WeightNormModel<B: Backend> {
    directions: Vec<Param<Tensor<B, 2>>>,
    lengths: Vec<Param<Tensor<B, 2>>>,
}

pub(crate) struct WeightNorm;

impl Scenario for WeightNorm {
    type Model<B: AutodiffBackend> = WeightNormModel<B>;

    fn init<B: AutodiffBackend>(size: Size, device: &B::Device) -> WeightNormModel<B> {
        let width = size.pick(6, 256);
        WeightNormModel {
            directions: (0..3)
                .map(|seed| Param::from_tensor(noise(seed, [width, width], device)))
                .collect(),
            lengths: (0..3)
                .map(|_| Param::from_tensor(Tensor::ones([1, width], device)))
                .collect(),
        }
    }

    fn loss<B: AutodiffBackend>(model: &WeightNormModel<B>, size: Size, step: u64) -> Tensor<B, 1> {
        let width = size.pick(6, 256);
        let mut x = noise::<B, 2>(step, [4, width], &device::<B>());
        for (direction, length) in model.directions.iter().zip(&model.lengths) {
            x = block(|| {
                let direction = direction.val();
                let norm = (direction.clone() * direction.clone()).sum_dim(0).sqrt();
                x.matmul(direction / norm * length.val()).tanh()
            });
        }
        (x - noise::<B, 2>(step + 1000, [4, width], &device::<B>()))
            .square()
            .mean()
    }
}

/// Matrices and nothing else, as Muon wants them.
pub(crate) struct Matrices;

impl Scenario for Matrices {
    type Model<B: AutodiffBackend> = MlpModel<B>;

    fn init<B: AutodiffBackend>(size: Size, device: &B::Device) -> MlpModel<B> {
        let mut model = Mlp::init(size, device);
        for layer in &mut model.layers {
            layer.bias = None;
        }
        model
    }

    fn loss<B: AutodiffBackend>(model: &MlpModel<B>, size: Size, step: u64) -> Tensor<B, 1> {
        Mlp::loss(model, size, step)
    }
}

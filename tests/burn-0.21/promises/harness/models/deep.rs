//! Models that are many operations deep.

use burn::nn::conv::{Conv2d, Conv2dConfig, ConvTranspose2d, ConvTranspose2dConfig};
use burn::nn::{GroupNorm, GroupNormConfig, PaddingConfig2d};
use burn::tensor::activation::{gelu, silu};

use super::device;
use crate::harness::prelude::*;
use crate::harness::scopes::block;

const LEVELS: usize = 4;

/// Residual blocks of convolutions on four levels of resolution, as in a diffusion model: what a
/// level of the way down makes goes to the same level of the way up.
#[derive(Module, Debug)]
pub(crate) struct UNetModel<B: Backend> {
    stem: Conv2d<B>,
    levels: Vec<Level<B>>,
    bottom: Vec<Residual<B>>,
    head: Conv2d<B>,
}

#[derive(Module, Debug)]
struct Level<B: Backend> {
    before: Vec<Residual<B>>,
    down: Conv2d<B>,
    up: ConvTranspose2d<B>,
    /// Both inputs, side by side, to one.
    join: Conv2d<B>,
    after: Vec<Residual<B>>,
}

#[derive(Module, Debug)]
struct Residual<B: Backend> {
    first_norm: GroupNorm<B>,
    first: Conv2d<B>,
    second_norm: GroupNorm<B>,
    second: Conv2d<B>,
}

impl<B: Backend> Residual<B> {
    fn several(channels: usize, device: &B::Device) -> Vec<Self> {
        let conv = || {
            Conv2dConfig::new([channels, channels], [3, 3])
                .with_padding(PaddingConfig2d::Same)
                .init(device)
        };
        let norm = || GroupNormConfig::new(2, channels).init(device);
        let residual = |_| Self {
            first_norm: norm(),
            first: conv(),
            second_norm: norm(),
            second: conv(),
        };
        (0..2).map(residual).collect()
    }

    fn forward(&self, x: Tensor<B, 4>) -> Tensor<B, 4> {
        let y = self.first.forward(silu(self.first_norm.forward(x.clone())));
        x + self.second.forward(silu(self.second_norm.forward(y)))
    }

    fn all(residuals: &[Self], x: Tensor<B, 4>) -> Tensor<B, 4> {
        residuals
            .iter()
            .fold(x, |x, residual| block(|| residual.forward(x)))
    }
}

/// Convolutions of a U-Net.
pub(crate) struct UNet;

impl Scenario for UNet {
    type Model<B: AutodiffBackend> = UNetModel<B>;

    fn init<B: AutodiffBackend>(size: Size, device: &B::Device) -> UNetModel<B> {
        let channels = |level: usize| size.pick(2, 8) << level;
        let level = |level: usize| {
            let (here, below) = (channels(level), channels(level + 1));
            Level {
                before: Residual::several(here, device),
                down: Conv2dConfig::new([here, below], [2, 2])
                    .with_stride([2, 2])
                    .init(device),
                up: ConvTranspose2dConfig::new([below, here], [2, 2])
                    .with_stride([2, 2])
                    .init(device),
                join: Conv2dConfig::new([2 * here, here], [1, 1]).init(device),
                after: Residual::several(here, device),
            }
        };
        UNetModel {
            stem: Conv2dConfig::new([2, channels(0)], [1, 1]).init(device),
            levels: (0..LEVELS - 1).map(level).collect(),
            bottom: Residual::several(channels(LEVELS - 1), device),
            head: Conv2dConfig::new([channels(0), 2], [1, 1]).init(device),
        }
    }

    fn loss<B: AutodiffBackend>(model: &UNetModel<B>, size: Size, step: u64) -> Tensor<B, 1> {
        let (batch, side) = (size.pick(2, 1), size.pick(8, 64));
        let image = |seed| noise::<B, 4>(seed, [batch, 2, side, side], &device::<B>());
        let mut x = model.stem.forward(image(step));
        let mut skips = Vec::new();
        for level in &model.levels {
            x = Residual::all(&level.before, x);
            skips.push(x.clone());
            x = level.down.forward(x);
        }
        x = Residual::all(&model.bottom, x);
        for (level, skip) in model.levels.iter().zip(skips).rev() {
            let both = Tensor::cat(vec![level.up.forward(x), skip], 1);
            x = Residual::all(&level.after, level.join.forward(both));
        }
        (model.head.forward(x) - image(step + 1000)).square().mean()
    }
}

/// Residual blocks, one after the other.
#[derive(Module, Debug)]
pub(crate) struct DeepModel<B: Backend> {
    blocks: Vec<Dense<B>>,
}

#[derive(Module, Debug)]
struct Dense<B: Backend> {
    norm: LayerNorm<B>,
    linear: Linear<B>,
}

/// Many residual blocks.
pub(crate) struct Deep;

const WIDTH: usize = 16;

impl Scenario for Deep {
    type Model<B: AutodiffBackend> = DeepModel<B>;

    fn init<B: AutodiffBackend>(size: Size, device: &B::Device) -> DeepModel<B> {
        let block = |_| Dense {
            norm: LayerNormConfig::new(WIDTH).init(device),
            linear: LinearConfig::new(WIDTH, WIDTH).init(device),
        };
        DeepModel {
            blocks: (0..size.pick(20, 250)).map(block).collect(),
        }
    }

    fn loss<B: AutodiffBackend>(model: &DeepModel<B>, size: Size, step: u64) -> Tensor<B, 1> {
        let rows = size.pick(8, 128);
        let x = noise::<B, 2>(step, [rows, WIDTH], &device::<B>());
        let x = model.blocks.iter().fold(x, |x, dense| {
            block(|| {
                let y = gelu(dense.linear.forward(dense.norm.forward(x.clone())));
                x + y * 0.125
            })
        });
        x.square().mean()
    }
}

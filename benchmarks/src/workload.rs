//! Models with random batches to train on.

use crate::arithmetic::LossChunk;
use crate::encoder::{Encoder, EncoderConfig};
use crate::gpt::{Gpt, GptConfig};
use burn::module::{AutodiffModule, ModuleDisplay};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::tensor::backend::AutodiffBackend;
use burn::tensor::{Device, Tensor, TensorData};
use vit_0_21::config::OptimizerKind;
use vit_0_21::model::{Vit, VitConfig};
use vit_0_21::rng::SeededRng;

/// Number of different batches in a run.
const BATCHES: usize = 4;

/// A batch on the host.
pub type HostBatch = (TensorData, TensorData);

/// A model that can be built on any backend, and random batches for it: the cost of a step does not
/// depend on their content.
pub trait Workload {
    /// The model.
    type Model<B: AutodiffBackend>: AutodiffModule<B> + ModuleDisplay + 'static;

    /// The optimizer that trains it by default.
    const OPTIMIZER: OptimizerKind;

    /// Builds the model with random weights. With `recomputes_blocks`, the backward pass computes
    /// its blocks again, on a backend with gradient release.
    fn init<B: AutodiffBackend>(
        &self,
        recomputes_blocks: bool,
        device: &Device<B>,
    ) -> Self::Model<B>;

    /// A random batch.
    fn batch(&self, size: usize, rng: &mut SeededRng) -> HostBatch;

    /// The loss of a batch, with the language models' by chunks if `chunk` says so.
    fn loss<B: AutodiffBackend>(
        model: &Self::Model<B>,
        batch: HostBatch,
        chunk: LossChunk,
        device: &Device<B>,
    ) -> Tensor<B, 1>;

    /// All batches of a run.
    fn batches(&self, size: usize, steps: usize, seed: u64) -> Vec<HostBatch> {
        let mut rng = SeededRng::new(&[seed]);
        let count = steps.clamp(1, BATCHES);
        (0..count).map(|_| self.batch(size, &mut rng)).collect()
    }
}

impl Workload for VitConfig {
    type Model<B: AutodiffBackend> = Vit<B>;

    const OPTIMIZER: OptimizerKind = OptimizerKind::Adam;

    fn init<B: AutodiffBackend>(&self, recomputes_blocks: bool, device: &Device<B>) -> Vit<B> {
        Vit::new(self, device).recomputing_blocks(recomputes_blocks)
    }

    fn batch(&self, size: usize, rng: &mut SeededRng) -> HostBatch {
        let shape = [size, self.channels, self.image_size, self.image_size];
        let pixels: Vec<f32> = (0..shape.iter().product()).map(|_| pixel(rng)).collect();
        let labels = (0..size).map(|_| rng.below(self.classes) as i32).collect();
        (
            TensorData::new(pixels, shape),
            TensorData::new::<i32, _>(labels, [size]),
        )
    }

    /// One token of an image is scored: `plan` never asks for chunks.
    fn loss<B: AutodiffBackend>(
        model: &Vit<B>,
        (inputs, labels): HostBatch,
        _chunk: LossChunk,
        device: &Device<B>,
    ) -> Tensor<B, 1> {
        let scores = model.forward(Tensor::from_data(inputs, device));
        let loss = CrossEntropyLossConfig::new().init(device);
        loss.forward(scores, Tensor::from_data(labels, device))
    }
}

/// A uniform number in `-1.7..1.7`, so that the variance is about one.
fn pixel(rng: &mut SeededRng) -> f32 {
    let unit = (rng.next_u64() >> 40) as f32 / (1u32 << 24) as f32;
    (2.0 * unit - 1.0) * 3f32.sqrt()
}

impl Workload for GptConfig {
    type Model<B: AutodiffBackend> = Gpt<B>;

    const OPTIMIZER: OptimizerKind = OptimizerKind::Adam;

    fn init<B: AutodiffBackend>(&self, recomputes_blocks: bool, device: &Device<B>) -> Gpt<B> {
        self.init(device).recomputing_blocks(recomputes_blocks)
    }

    fn batch(&self, size: usize, rng: &mut SeededRng) -> HostBatch {
        tokens([size, self.context], self.vocabulary, rng)
    }

    fn loss<B: AutodiffBackend>(
        model: &Gpt<B>,
        (inputs, labels): HostBatch,
        chunk: LossChunk,
        device: &Device<B>,
    ) -> Tensor<B, 1> {
        let inputs = Tensor::from_data(inputs, device);
        model.loss(inputs, Tensor::from_data(labels, device), chunk)
    }
}

impl Workload for EncoderConfig {
    type Model<B: AutodiffBackend> = Encoder<B>;

    const OPTIMIZER: OptimizerKind = OptimizerKind::AdamW;

    fn init<B: AutodiffBackend>(&self, recomputes_blocks: bool, device: &Device<B>) -> Encoder<B> {
        self.init(device).recomputing_layers(recomputes_blocks)
    }

    fn batch(&self, size: usize, rng: &mut SeededRng) -> HostBatch {
        tokens([size, self.context], self.vocabulary, rng)
    }

    fn loss<B: AutodiffBackend>(
        model: &Encoder<B>,
        (inputs, labels): HostBatch,
        chunk: LossChunk,
        device: &Device<B>,
    ) -> Tensor<B, 1> {
        let inputs = Tensor::from_data(inputs, device);
        model.loss(inputs, Tensor::from_data(labels, device), chunk)
    }
}

/// Random sequences, `[batch, time]`, labelled with the token after each one.
fn tokens([size, context]: [usize; 2], vocabulary: usize, rng: &mut SeededRng) -> HostBatch {
    let mut inputs = Vec::with_capacity(size * context);
    let mut labels = Vec::with_capacity(size * context);
    for _ in 0..size {
        let mut token = rng.below(vocabulary) as i32;
        for _ in 0..context {
            inputs.push(token);
            token = rng.below(vocabulary) as i32;
            labels.push(token);
        }
    }
    (
        TensorData::new(inputs, [size, context]),
        TensorData::new(labels, [size * context]),
    )
}

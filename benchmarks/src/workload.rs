//! Models with random batches to train on.

use crate::encoder::{Encoder, EncoderConfig};
use crate::gpt::{Gpt, GptConfig};
use burn::module::{AutodiffModule, ModuleDisplay};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::optim::adaptor::OptimizerAdaptor;
use burn::optim::{AdamConfig, AdamWConfig, SimpleOptimizer};
use burn::tensor::backend::AutodiffBackend;
use burn::tensor::{Device, Tensor, TensorData};
use vit::config::OptimizerKind;
use vit::model::{Vit, VitConfig};
use vit::rng::SeededRng;

/// Number of different batches in a run.
const BATCHES: usize = 4;

/// A batch on the host.
pub type HostBatch = (TensorData, TensorData);

/// A model that can be built on any backend, and random batches for it: the cost of a step does not depend
/// on their content.
pub trait Workload {
    /// The model.
    type Model<B: AutodiffBackend>: AutodiffModule<B> + ModuleDisplay + 'static;

    /// The optimizer that trains it.
    const OPTIMIZER: OptimizerKind;

    /// Builds the model with random weights. With `recomputes_blocks`, the backward pass computes its
    /// blocks again, if the model has a way to.
    fn init<B: AutodiffBackend>(
        &self,
        recomputes_blocks: bool,
        device: &Device<B>,
    ) -> Self::Model<B>;

    /// [`OPTIMIZER`](Self::OPTIMIZER) with Burn's defaults.
    fn optimizer<B: AutodiffBackend>()
    -> OptimizerAdaptor<impl SimpleOptimizer<B::InnerBackend> + 'static, Self::Model<B>, B>;

    /// A random batch.
    fn batch(&self, size: usize, rng: &mut SeededRng) -> HostBatch;

    /// The scores of every class, `[batch, class]`, or of every token, `[batch * time, token]`.
    fn scores<B: AutodiffBackend>(
        model: &Self::Model<B>,
        inputs: TensorData,
        device: &Device<B>,
    ) -> Tensor<B, 2>;

    /// The loss of a batch.
    fn loss<B: AutodiffBackend>(
        model: &Self::Model<B>,
        (inputs, labels): HostBatch,
        device: &Device<B>,
    ) -> Tensor<B, 1> {
        let scores = Self::scores(model, inputs, device);
        let loss = CrossEntropyLossConfig::new().init(device);
        loss.forward(scores, Tensor::from_data(labels, device))
    }

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
        self.init(device).recomputing_blocks(recomputes_blocks)
    }

    fn optimizer<B: AutodiffBackend>()
    -> OptimizerAdaptor<impl SimpleOptimizer<B::InnerBackend> + 'static, Vit<B>, B> {
        AdamConfig::new().init()
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

    fn scores<B: AutodiffBackend>(
        model: &Vit<B>,
        inputs: TensorData,
        device: &Device<B>,
    ) -> Tensor<B, 2> {
        model.forward(Tensor::from_data(inputs, device))
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

    fn optimizer<B: AutodiffBackend>()
    -> OptimizerAdaptor<impl SimpleOptimizer<B::InnerBackend> + 'static, Gpt<B>, B> {
        AdamConfig::new().init()
    }

    fn batch(&self, size: usize, rng: &mut SeededRng) -> HostBatch {
        tokens([size, self.context], self.vocabulary, rng)
    }

    fn scores<B: AutodiffBackend>(
        model: &Gpt<B>,
        inputs: TensorData,
        device: &Device<B>,
    ) -> Tensor<B, 2> {
        model.forward(Tensor::from_data(inputs, device))
    }
}

impl Workload for EncoderConfig {
    type Model<B: AutodiffBackend> = Encoder<B>;

    const OPTIMIZER: OptimizerKind = OptimizerKind::AdamW;

    /// Burn's encoder calls its layers itself: `plan` never asks to recompute them as blocks.
    fn init<B: AutodiffBackend>(&self, _recomputes_blocks: bool, device: &Device<B>) -> Encoder<B> {
        self.init(device)
    }

    fn optimizer<B: AutodiffBackend>()
    -> OptimizerAdaptor<impl SimpleOptimizer<B::InnerBackend> + 'static, Encoder<B>, B> {
        AdamWConfig::new().init()
    }

    fn batch(&self, size: usize, rng: &mut SeededRng) -> HostBatch {
        tokens([size, self.context], self.vocabulary, rng)
    }

    fn scores<B: AutodiffBackend>(
        model: &Encoder<B>,
        inputs: TensorData,
        device: &Device<B>,
    ) -> Tensor<B, 2> {
        model.forward(Tensor::from_data(inputs, device))
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

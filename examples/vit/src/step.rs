//! A step of the training, with Burn's optimizer or with gradient release.

use crate::device::Memory;
use crate::model::{Model, drawn};
use crate::optimizer::Optimizer;
use anyhow::Result;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use burn_lean::{CastError, DataParallel, EarlyGradients, MixedPrecision, Replicas, timeline};
use std::f64::consts::PI;
use vit_common::config::{Checkpointing, Mode, OptimizerKind, WARM_UP};
use vit_common::data::{Dataset, Image, Split, labels};
use vit_common::rng::SeededRng;
use vit_common::settings::Settings;

/// What all steps have.
#[derive(Debug)]
pub struct Steps<'a> {
    /// The settings of the run.
    pub settings: &'a Settings,
    /// Its images.
    pub data: &'a Dataset,
    /// The processes that train together, if there are several.
    pub parallel: Option<DataParallel>,
    /// Where tensors are.
    pub device: Device,
}

impl Steps<'_> {
    /// A model with random weights, and its optimizer.
    ///
    /// # Errors
    ///
    /// The model cannot be cast to bf16.
    pub fn begin<M: Model>(&self) -> Result<(M, Optimizer)> {
        let device = self.autodiff();
        self.device.seed(self.settings.seed);
        let model = M::new(&self.settings.model(self.data), &device);
        let model = drawn(model.recomputing(self.settings.checkpointing));
        let model = match self.dtype() {
            // But for norms, which stay in f32.
            DType::BF16 => MixedPrecision::bf16()
                .cast(model)
                .map_err(CastError::from)?,
            _ => model,
        };
        // A GPU still has the weights from before a cast.
        self.device.memory_cleanup();
        let model = match self.settings.mode {
            Mode::Plain => model,
            Mode::Release => model.apply_reparameterization(EarlyGradients),
        };
        let optimizer = Optimizer::new(self.settings, self.parallel.as_ref(), &model);
        Ok((model, optimizer))
    }

    /// The model after a step on these images of the training, and the mean loss before it.
    ///
    /// # Errors
    ///
    /// The processes do not do the same.
    pub fn step<M: Model>(
        &self,
        mut model: M,
        optimizer: &mut Optimizer,
        iteration: usize,
        places: &[usize],
        memory: &mut Memory,
    ) -> Result<(M, Tensor<1>)> {
        let (images, labels) = self.batch(&self.data.train, places, &self.autodiff());
        let seed = Some(self.dropout(iteration));
        let rate = rate(
            self.settings.lr,
            iteration,
            self.settings.iterations(self.data),
        );

        let forward = || cross_entropy(model.forward(images, seed), labels);
        let loss = timeline::forward(&model, forward);
        let mean = loss.clone().without_autodiff();
        memory.look();
        model = optimizer.backward(rate, loss, model)?;
        memory.look();
        Ok((model, mean))
    }

    /// A [`batch`] as the model takes it.
    pub fn batch(
        &self,
        split: &Split,
        places: &[usize],
        device: &Device,
    ) -> (Tensor<4>, Tensor<1, Int>) {
        batch(self.data, split, places, (device, self.dtype()))
    }

    fn dtype(&self) -> DType {
        match self.settings.optimizer {
            OptimizerKind::AdamWFiveBytes => DType::BF16,
            _ => DType::F32,
        }
    }

    /// The order of the training images in an epoch.
    pub fn order(&self, epoch: usize) -> Vec<usize> {
        const PURPOSE: u64 = 0;
        let mut rng = SeededRng::new(&[self.settings.seed, PURPOSE, epoch as u64]);
        rng.permutation(self.data.train.len())
    }

    /// The seed of the dropout in an iteration: that of a resumed run is that of the uninterrupted
    /// one. That of a process differs from that of the first.
    fn dropout(&self, iteration: usize) -> u64 {
        const PURPOSE: u64 = 1;
        let mut seed = vec![self.settings.seed, PURPOSE, iteration as u64];
        let rank = self.replicas().map_or(0, Replicas::rank);
        seed.extend((rank > 0).then_some(rank as u64));
        SeededRng::new(&seed).next_u64()
    }

    fn autodiff(&self) -> Device {
        let device = self.device.clone().autodiff();
        match self.settings.checkpointing {
            Checkpointing::Balanced => device.gradient_checkpointing(),
            _ => device,
        }
    }

    /// The processes that train together, if there are several.
    pub fn replicas(&self) -> Option<&Replicas> {
        self.parallel.as_ref().map(DataParallel::replicas)
    }
}

/// `[batch, channels, size, size]` images in this type, and `[batch]` labels.
pub fn batch(
    data: &Dataset,
    split: &Split,
    places: &[usize],
    (device, dtype): (&Device, DType),
) -> (Tensor<4>, Tensor<1, Int>) {
    let images = places.iter().filter_map(|place| split.get(*place));
    let images: Vec<Image> = images.collect();
    let (pixels, shape) = data.pixels(&images);
    (
        Tensor::from_data(TensorData::new(pixels, shape), (device, dtype)),
        Tensor::from_data(TensorData::new(labels(&images), [images.len()]), device),
    )
}

/// The mean cross-entropy of `[batch, classes]` scores and `[batch]` labels, in f32.
pub fn cross_entropy(scores: Tensor<2>, labels: Tensor<1, Int>) -> Tensor<1> {
    CrossEntropyLossConfig::new()
        .init(&scores.device())
        .forward(scores.cast(DType::F32), labels)
}

/// The learning rate of an iteration, counted from 0: a rise to the highest rate, and a cosine from
/// there to zero.
///
/// A function of the iteration, and not one of Burn's schedulers, whose state a resumed run would
/// have to load. The rates are those of Burn's linear and cosine scheduler multiplied.
pub fn rate(highest: f64, iteration: usize, iterations: usize) -> f64 {
    let warm_up = ((iterations as f64 * WARM_UP) as usize).max(1);
    let rise = ((iteration + 1) as f64 / (warm_up + 1) as f64).min(1.0);
    let fall = (1.0 + (PI * iteration as f64 / iterations as f64).cos()) / 2.0;
    highest * rise * fall
}

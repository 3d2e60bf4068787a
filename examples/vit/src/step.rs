//! A step of the training: an ordinary Burn step, and what gradient release adds to it.

use crate::memory::Memory;
use crate::model::{Model, drawn};
use crate::optimizer::Optimizer;
use crate::settings::{Checkpointing, Settings, WARM_UP};
use anyhow::{Context, Result};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::optim::GradientsParams;
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use burn_lean::{DataParallel, MixedPrecision, ReleaseError, timeline};
use std::f64::consts::PI;
use vit_common::data::{Dataset, Image, Split, labels};
use vit_common::rng::SeededRng;

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
        let Settings {
            train,
            checkpointing,
            optimizer,
            ..
        } = self.settings;
        let device = self.autodiff();
        self.device.seed(train.seed);
        let model = M::new(&train.model(self.data), &device).recomputing((*checkpointing).into());
        let model = drawn(model);
        let model = match optimizer.is_in_bf16() {
            // But for norms, which stay in f32.
            true => MixedPrecision::bf16()
                .cast(model)
                .map_err(ReleaseError::from)?,
            false => model,
        };
        let optimizer = Optimizer::new(self.settings, self.parallel.as_ref(), &model);
        Ok((model, optimizer))
    }

    /// The model after a step on these images of the training, and the mean loss before it.
    ///
    /// # Errors
    ///
    /// An image is missing; the processes do not do the same.
    pub fn step<M: Model>(
        &self,
        mut model: M,
        optimizer: &mut Optimizer,
        iteration: usize,
        places: &[usize],
        memory: &mut Memory,
    ) -> Result<(M, Tensor<1>)> {
        let (images, labels) = self.batch(&self.data.train, places, &self.autodiff())?;
        // The dropout of a resumed run is that of the uninterrupted one.
        let dropout = self.rng(Purpose::Dropout, iteration).next_u64();
        let rate = self.rate(iteration);

        // From here on, a parameter steps as soon as the backward pass has its gradient.
        model = optimizer.arm(rate, model)?;
        let forward = || cross_entropy(model.forward_seeded(images, dropout), labels);
        let loss = timeline::forward(&model, forward);
        let mean = loss.clone().without_autodiff();
        memory.look();
        let grads = timeline::backward(|| loss.backward());
        let grads = GradientsParams::from_grads(grads, &model);
        drop(loss);
        model = optimizer.step(rate, model, grads)?;
        memory.look();
        Ok((model, mean))
    }

    /// The order of the training images in an epoch.
    pub fn order(&self, epoch: usize) -> Vec<usize> {
        let images = self.data.train.len();
        self.rng(Purpose::Order, epoch).permutation(images)
    }

    /// `[batch, channels, size, size]` images and `[batch]` labels.
    ///
    /// # Errors
    ///
    /// An image is missing.
    pub fn batch(
        &self,
        split: &Split,
        places: &[usize],
        device: &Device,
    ) -> Result<(Tensor<4>, Tensor<1, Int>)> {
        let image = |place: &usize| split.get(*place).context("an image is missing");
        let images: Vec<Image> = places.iter().map(image).collect::<Result<_>>()?;
        let (pixels, shape) = self.data.normalization().pixels(&images);
        let dtype = match self.settings.optimizer.is_in_bf16() {
            true => DType::BF16,
            false => DType::F32,
        };
        Ok((
            Tensor::from_data(TensorData::new(pixels, shape), (device, dtype)),
            Tensor::from_data(TensorData::new(labels(&images), [images.len()]), device),
        ))
    }

    fn autodiff(&self) -> Device {
        let device = self.device.clone().autodiff();
        match self.settings.checkpointing {
            Checkpointing::Balanced => device.gradient_checkpointing(),
            _ => device,
        }
    }

    fn rate(&self, iteration: usize) -> f64 {
        let train = &self.settings.train;
        rate(train.lr, iteration, train.iterations(self.data))
    }

    /// Random numbers for an epoch or an iteration. The dropout of a process differs from that of
    /// the first.
    fn rng(&self, purpose: Purpose, number: usize) -> SeededRng {
        let mut seed = vec![self.settings.train.seed, purpose as u64, number as u64];
        let replicas = self.parallel.as_ref().map(DataParallel::replicas);
        let other = replicas.filter(|replicas| !replicas.is_first());
        if purpose == Purpose::Dropout {
            seed.extend(other.map(|replicas| replicas.rank() as u64));
        }
        SeededRng::new(&seed)
    }
}

/// Seeds of different purposes, derived from the seed of the run.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Purpose {
    /// The order of the images in an epoch.
    Order,
    /// The dropout of an iteration.
    Dropout,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_rises_in_a_tenth_of_the_run_and_falls() {
        let rates: Vec<f64> = (0..100)
            .map(|iteration| rate(1.0, iteration, 100))
            .collect();
        assert!((rates[0] - 1.0 / 11.0).abs() < 1e-12);
        assert!(rates[..11].is_sorted());
        assert!(rates[10..].is_sorted_by(|a, b| a >= b));
        assert!((rates[50] - 0.5).abs() < 1e-12);
        assert!(rates[99] > 0.0 && rates[99] < 0.001);
        assert_eq!(rate(1.0, 0, 1), 0.5);
    }
}

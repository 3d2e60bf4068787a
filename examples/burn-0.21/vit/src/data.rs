//! Images with their labels, as Burn's loaders and the model take them.

use crate::stopping;
use burn::data::dataloader::batcher::Batcher;
use burn::tensor::{Device, Int, Shape, Tensor, TensorData, backend::Backend};
use burn::train::Interrupter;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use vit_common::rng::SeededRng;

pub use vit_common::data::*;

/// A batch of images with their labels, on a device.
#[derive(Clone, Debug)]
pub struct Batch<B: Backend> {
    /// `[batch, channels, size, size]`
    pub images: Tensor<B, 4>,
    /// `[batch]`
    pub labels: Tensor<B, 1, Int>,
    /// Seed of the dropout in the training step.
    pub seed: u64,
}

impl<B: Backend> Batch<B> {
    /// A batch of `[batch, channels, size, size]` pixels.
    pub fn of(
        pixels: Vec<f32>,
        shape: impl Into<Shape>,
        labels: Vec<i32>,
        device: &Device<B>,
    ) -> Self {
        Self {
            images: Tensor::from_data(TensorData::new(pixels, shape.into()), device),
            labels: Tensor::from_data(labels.as_slice(), device),
            seed: 0,
        }
    }
}

/// A split as Burn's loaders read it.
#[derive(Clone, Debug)]
pub struct Images(pub Arc<Split>);

impl burn::data::dataset::Dataset<Image> for Images {
    fn get(&self, index: usize) -> Option<Image> {
        self.0.get(index)
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

/// Makes batches of images with normalized pixels.
#[derive(Clone, Copy, Debug)]
pub struct ImageBatcher(Normalization);

impl ImageBatcher {
    /// Normalizes as the training images of `data` need it.
    pub fn new(data: &Dataset) -> Self {
        Self(data.normalization())
    }
}

impl<B: Backend> Batcher<B, Image, Batch<B>> for ImageBatcher {
    fn batch(&self, images: Vec<Image>, device: &Device<B>) -> Batch<B> {
        let (pixels, shape) = self.0.pixels(&images);
        Batch::of(pixels, shape, labels(&images), device)
    }
}

/// Makes the batches of a training run and counts them. The seed of a batch depends on its number,
/// so a resumed run has the seeds of the uninterrupted one.
#[allow(missing_debug_implementations)] // Burn's interrupter has none.
pub struct TrainBatcher {
    images: ImageBatcher,
    seed: u64,
    rank: usize,
    made: AtomicUsize,
    stop_after: Option<(usize, Interrupter)>,
}

impl TrainBatcher {
    /// Creates the batcher; the first batch has the number `first`.
    pub fn new(images: ImageBatcher, seed: u64, first: usize) -> Self {
        Self {
            images,
            seed,
            rank: 0,
            made: AtomicUsize::new(first),
            stop_after: None,
        }
    }

    /// The batches of one of several processes: other dropout than in the first.
    pub fn of_rank(mut self, rank: usize) -> Self {
        self.rank = rank;
        self
    }

    /// Interrupts the run after this many batches, counted from the first epoch.
    pub fn stop_after(mut self, batches: usize, interrupter: Interrupter) -> Self {
        self.stop_after = Some((batches, interrupter));
        self
    }
}

impl<B: Backend> Batcher<B, Image, Batch<B>> for TrainBatcher {
    fn batch(&self, images: Vec<Image>, device: &Device<B>) -> Batch<B> {
        let before = self.made.fetch_add(1, Ordering::Relaxed);
        if let Some((last, interrupter)) = &self.stop_after
            && before + 1 >= *last
        {
            stopping::stop(interrupter, stopping::STOP_AFTER);
        }
        let seed = match self.rank {
            0 => SeededRng::new(&[self.seed, before as u64]),
            rank => SeededRng::new(&[self.seed, before as u64, rank as u64]),
        }
        .next_u64();
        Batch {
            seed,
            ..self.images.batch(images, device)
        }
    }
}

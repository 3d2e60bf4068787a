//! Images with their labels, as Burn's loaders and the model take them.

use burn::data::dataloader::batcher::Batcher;
use burn::tensor::{Device, Int, Shape, Tensor, TensorData, backend::Backend};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use vit_inputs::{Dataset, Image, SeededRng, Split, labels};

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
#[derive(Clone, Debug)]
pub struct ImageBatcher(Dataset);

impl ImageBatcher {
    /// Normalizes as the training images of `data` need it.
    pub fn new(data: &Dataset) -> Self {
        Self(data.clone())
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
#[derive(Debug)]
pub struct TrainBatcher {
    images: ImageBatcher,
    seed: u64,
    made: AtomicUsize,
    rank: usize,
}

impl TrainBatcher {
    /// The first batch has the number `first`. Of several processes, each has other dropout.
    pub fn new(images: ImageBatcher, seed: u64, first: usize, rank: usize) -> Self {
        Self {
            images,
            seed,
            made: AtomicUsize::new(first),
            rank,
        }
    }
}

impl<B: Backend> Batcher<B, Image, Batch<B>> for TrainBatcher {
    fn batch(&self, images: Vec<Image>, device: &Device<B>) -> Batch<B> {
        let mut seed = vec![self.seed, self.made.fetch_add(1, Ordering::Relaxed) as u64];
        seed.extend((self.rank > 0).then_some(self.rank as u64));
        Batch {
            seed: SeededRng::new(&seed).next_u64(),
            ..self.images.batch(images, device)
        }
    }
}

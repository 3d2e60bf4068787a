//! From stored pixels to tensors.

use super::{Dataset, Split};
use burn::tensor::{Device, Int, Tensor, TensorData, backend::Backend};

/// A few images with their labels on a device.
#[derive(Clone, Debug)]
pub struct Batch<B: Backend> {
    /// `[batch, channels, size, size]`
    pub images: Tensor<B, 4>,
    /// `[batch]`
    pub labels: Tensor<B, 1, Int>,
}

impl<B: Backend> Batch<B> {
    /// The images at `indices` of a part of `data`, in that order.
    pub fn new(data: &Dataset, split: &Split, indices: &[usize], device: &Device<B>) -> Self {
        let stride = data.channels * data.size * data.size;
        let pixels: Vec<f32> = indices
            .iter()
            .flat_map(|index| &split.pixels[index * stride..][..stride])
            .map(|pixel| (f32::from(*pixel) - data.mean) / data.std)
            .collect();
        let labels: Vec<i32> = indices.iter().map(|i| split.labels[*i] as i32).collect();
        let shape = [indices.len(), data.channels, data.size, data.size];
        Self {
            images: Tensor::from_data(TensorData::new(pixels, shape), device),
            labels: Tensor::from_data(TensorData::new(labels, [indices.len()]), device),
        }
    }
}

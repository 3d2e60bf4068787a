//! From stored pixels to tensors.

use super::{Dataset, Split};
use crate::rng::SplitMix64;
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
        Self::from_pixels(data, split, indices, device, |image, _| image.to_vec())
    }

    /// As [`Batch::new`], each image moved by up to `most` pixels along each axis, as `seed` has it.
    pub fn shifted(
        data: &Dataset,
        split: &Split,
        indices: &[usize],
        device: &Device<B>,
        most: usize,
        seed: u64,
    ) -> Self {
        let mut rng = SplitMix64::new(&[seed]);
        Self::from_pixels(data, split, indices, device, |image, size| {
            let mut move_by = || rng.below(2 * most + 1) as isize - most as isize;
            let (down, right) = (move_by(), move_by());
            shift(image, size, down, right)
        })
    }

    fn from_pixels(
        data: &Dataset,
        split: &Split,
        indices: &[usize],
        device: &Device<B>,
        mut change: impl FnMut(&[u8], usize) -> Vec<u8>,
    ) -> Self {
        let stride = data.channels * data.size * data.size;
        let mut pixels = Vec::with_capacity(indices.len() * stride);
        for index in indices {
            let image = change(&split.pixels[index * stride..][..stride], data.size);
            pixels.extend(image.iter().map(|p| (f32::from(*p) - data.mean) / data.std));
        }
        let labels: Vec<i32> = indices.iter().map(|i| split.labels[*i] as i32).collect();
        let shape = [indices.len(), data.channels, data.size, data.size];
        Self {
            images: Tensor::from_data(TensorData::new(pixels, shape), device),
            labels: Tensor::from_data(TensorData::new(labels, [indices.len()]), device),
        }
    }
}

/// Moves the planes of an image; what comes in at the edges is black.
fn shift(image: &[u8], size: usize, down: isize, right: isize) -> Vec<u8> {
    let from = |to: usize, by: isize| to.checked_add_signed(-by).filter(|from| *from < size);
    let mut moved = vec![0; image.len()];
    for (plane, moved) in image
        .chunks_exact(size * size)
        .zip(moved.chunks_exact_mut(size * size))
    {
        for row in 0..size {
            for column in 0..size {
                if let (Some(old_row), Some(old_column)) = (from(row, down), from(column, right)) {
                    moved[row * size + column] = plane[old_row * size + old_column];
                }
            }
        }
    }
    moved
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shifting_moves_every_plane() {
        let image = [1, 2, 3, 4, 5, 6, 7, 8];
        assert_eq!(shift(&image, 2, 0, 0), image);
        assert_eq!(shift(&image, 2, 1, 0), [0, 0, 1, 2, 0, 0, 5, 6]);
        assert_eq!(shift(&image, 2, 0, -1), [2, 0, 4, 0, 6, 0, 8, 0]);
    }
}

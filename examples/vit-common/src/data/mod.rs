//! Loads images with their labels and brings them to the shape that a model takes.

mod digits;
mod folder;

use crate::digest;
use crate::rng::SeededRng;
use anyhow::{Result, ensure};
use image::imageops::{self, FilterType};
use image::{GrayImage, RgbImage};
use sha2::{Digest, Sha256};
use std::path::Path;
use std::sync::Arc;

/// Seed of the split of images that come without one. It is constant: runs with different seeds
/// validate on the same images.
const SPLIT_SEED: u64 = 0x5eed_0f5e_ed0f_5eed;

/// One in this many images is for validation.
const VALIDATION_PART: usize = 5;

/// The size of images that a model requires.
#[derive(Clone, Copy, Debug)]
pub struct ImageSize {
    /// Width and height; `None` takes those of the data, rounded up to whole patches.
    pub requested: Option<usize>,
    /// Width and height of a patch.
    pub patch_size: usize,
}

impl ImageSize {
    fn patches_of(patch_size: usize) -> Self {
        Self {
            requested: None,
            patch_size,
        }
    }

    /// The width and height of the images, given those of the data.
    ///
    /// # Errors
    ///
    /// The requested size is not a multiple of the patch size.
    fn resolve(&self, natural: usize) -> Result<usize> {
        let patch = self.patch_size;
        match self.requested {
            Some(size) => {
                ensure!(
                    size.is_multiple_of(patch),
                    "images of {size}x{size} cannot be cut into patches of {patch}x{patch}: \
                     choose a multiple of {patch} for --image-size"
                );
                Ok(size)
            }
            None => Ok(natural.next_multiple_of(patch)),
        }
    }
}

/// Square images in two splits, for training and for validation.
#[derive(Clone, Debug)]
pub struct Dataset {
    /// Width and height of an image.
    pub size: usize,
    /// Colour channels of an image.
    pub channels: usize,
    /// Number of classes.
    pub classes: usize,
    /// Training images.
    pub train: Arc<Split>,
    /// Validation images.
    pub validation: Arc<Split>,
    mean: f32,
    std: f32,
}

/// Images with their labels.
#[derive(Clone, Debug, Default)]
pub struct Split {
    /// `[image, channel, row, column]`
    pixels: Vec<u8>,
    labels: Vec<u32>,
}

/// An image with its label.
#[derive(Clone, Debug)]
pub struct Image {
    /// `[channel, row, column]`
    pub pixels: Vec<u8>,
    /// Its class.
    pub label: u32,
}

impl Split {
    /// Number of images.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// An image; `None` past the last one.
    pub fn get(&self, index: usize) -> Option<Image> {
        let label = *self.labels.get(index)?;
        let size = self.pixels.len() / self.len();
        let pixels = self.pixels[index * size..][..size].to_vec();
        Some(Image { pixels, label })
    }

    fn push(&mut self, pixels: &[u8], label: u32) {
        self.pixels.extend_from_slice(pixels);
        self.labels.push(label);
    }
}

impl Dataset {
    /// The bundled UCI handwritten digits: 1797 images of 8x8 in shades of grey, in 10 classes.
    pub fn digits() -> Result<Self> {
        digits::load(ImageSize::patches_of(1))
    }

    /// Loads the bundled digits, or a folder with one folder of images for each class.
    ///
    /// # Errors
    ///
    /// They cannot be read, or do not fit the size.
    pub fn load(source: &str, size: ImageSize) -> Result<Self> {
        if source == "digits" {
            return digits::load(size);
        }
        ensure!(Path::new(source).exists(), "there is no folder {source}");
        ensure!(Path::new(source).is_dir(), "{source} is not a folder");
        folder::load(Path::new(source), size)
    }

    /// What turns the pixels of these images into the input of a model.
    pub fn normalization(&self) -> Normalization {
        Normalization {
            shape: [self.channels, self.size, self.size],
            mean: self.mean,
            std: self.std,
        }
    }

    /// Splits images that come without a split.
    fn from_one(size: usize, channels: usize, classes: usize, all: &Split) -> Result<Self> {
        ensure!(
            all.len() >= VALIDATION_PART,
            "{} images are too few to train and to validate: at least {VALIDATION_PART} are needed",
            all.len()
        );
        let for_validation = all.len() / VALIDATION_PART;
        let (mut train, mut validation) = (Split::default(), Split::default());
        let stride = size * size * channels;
        let order = SeededRng::new(&[SPLIT_SEED]).permutation(all.len());
        for (place, index) in order.into_iter().enumerate() {
            let part = if place < for_validation {
                &mut validation
            } else {
                &mut train
            };
            part.push(&all.pixels[index * stride..][..stride], all.labels[index]);
        }
        let (mean, std) = moments(&train.pixels);
        Ok(Self {
            size,
            channels,
            classes,
            train: train.into(),
            validation: validation.into(),
            mean,
            std,
        })
    }

    /// SHA-256 of the images and their labels.
    pub fn digest(&self) -> String {
        let mut hash = Sha256::new();
        for number in [self.size, self.channels, self.classes] {
            hash.update((number as u64).to_le_bytes());
        }
        for split in [&self.train, &self.validation] {
            hash.update((split.len() as u64).to_le_bytes());
            hash.update(&split.pixels);
            for label in &split.labels {
                hash.update(label.to_le_bytes());
            }
        }
        digest::hex(hash)
    }
}

/// Turns pixels into numbers with mean 0 and standard deviation 1 over the training images.
#[derive(Clone, Copy, Debug)]
pub struct Normalization {
    shape: [usize; 3],
    mean: f32,
    std: f32,
}

impl Normalization {
    /// The pixels of a batch and their shape, `[batch, channels, size, size]`.
    pub fn pixels(&self, images: &[Image]) -> (Vec<f32>, [usize; 4]) {
        let [channels, height, width] = self.shape;
        let pixels = images
            .iter()
            .flat_map(|image| &image.pixels)
            .map(|pixel| (f32::from(*pixel) - self.mean) / self.std)
            .collect();
        (pixels, [images.len(), channels, height, width])
    }
}

/// The labels of a batch.
pub fn labels(images: &[Image]) -> Vec<i32> {
    images.iter().map(|image| image.label as i32).collect()
}

/// Mean and standard deviation, for the normalization.
fn moments(pixels: &[u8]) -> (f32, f32) {
    let count = pixels.len().max(1) as f64;
    let mean = pixels.iter().map(|p| f64::from(*p)).sum::<f64>() / count;
    let square = pixels.iter().map(|p| f64::from(*p).powi(2)).sum::<f64>() / count;
    let std = (square - mean * mean).max(0.0).sqrt();
    // Images of one colour have a deviation of zero.
    (mean as f32, if std > 0.0 { std as f32 } else { 1.0 })
}

/// A grey image as `size` times `size` pixels.
fn square_grey(image: &GrayImage, size: usize) -> Vec<u8> {
    imageops::resize(image, size as u32, size as u32, FilterType::Triangle).into_raw()
}

/// A colour image as three planes of `size` times `size` pixels.
fn square_colour(image: &RgbImage, size: usize) -> Vec<u8> {
    let image = imageops::resize(image, size as u32, size as u32, FilterType::Triangle);
    (0..3)
        .flat_map(|channel| image.pixels().map(move |pixel| pixel.0[channel]))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_all_there() {
        let digits = Dataset::load("digits", ImageSize::patches_of(2)).unwrap();
        assert_eq!((digits.size, digits.channels, digits.classes), (8, 1, 10));
        assert_eq!((digits.train.len(), digits.validation.len()), (1438, 359));
        assert_eq!(digits.train.pixels.len(), 1438 * 64);
        for class in 0..10 {
            assert!(digits.validation.labels.contains(&class));
        }
        // The split is fixed, from version to version.
        let digest = "401d472600d0474dab83586efd693631454f29ad8ae09a4ad391878c04810e32";
        assert_eq!(digits.digest(), digest);
        assert_eq!(Dataset::digits().unwrap().digest(), digest);
    }

    #[test]
    fn image_sizes_are_rounded_up_to_whole_patches() {
        let digits = Dataset::load("digits", ImageSize::patches_of(16)).unwrap();
        assert_eq!(digits.size, 16);
        let odd = ImageSize {
            requested: Some(9),
            patch_size: 2,
        };
        let error = Dataset::load("digits", odd).unwrap_err();
        assert!(error.to_string().contains("9x9"), "{error}");
    }

    #[test]
    fn colours_become_planes() {
        let image = RgbImage::from_raw(2, 1, vec![1, 2, 3, 4, 5, 6]).unwrap();
        // The resizing repeats the row, and the planes stay apart.
        let planes = square_colour(&image, 2);
        assert_eq!(planes, [1, 4, 1, 4, 2, 5, 2, 5, 3, 6, 3, 6]);
    }

    #[test]
    fn moments_are_those_of_the_pixels() {
        assert_eq!(moments(&[0, 10]), (5.0, 5.0));
        assert_eq!(moments(&[7, 7]), (7.0, 1.0));
    }
}

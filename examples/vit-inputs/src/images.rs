//! Images with their labels: the bundled digits, or a folder with one folder of images for each class.

use crate::rng::SeededRng;
use anyhow::{Context, Result, ensure};
use flate2::read::GzDecoder;
use image::imageops::{FilterType, resize};
use image::{DynamicImage, GrayImage, ImageReader};
use sha2::{Digest, Sha256};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The UCI handwritten digits; `data/README.md` names their source and licence.
static DIGITS: &[u8] = include_bytes!("../data/digits.csv.gz");

/// Width and height of a digit.
const DIGIT: usize = 8;

/// Larger images are resized to this size, unless `--image-size` names another.
const USUAL_SIZE: usize = 224;

/// Seed of the split. It is constant: runs with different seeds validate on the same images.
const SPLIT_SEED: u64 = 0x5eed_0f5e_ed0f_5eed;

/// One in this many images is for validation.
const VALIDATION_PART: usize = 5;

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
    /// The bundled digits: 1797 images of 8x8 in shades of grey, in 10 classes.
    pub fn digits() -> Result<Self> {
        digits(DIGIT)
    }

    /// Loads `digits`, or a folder, for a model with patches of this size. Without a size, images
    /// have their own (a folder's, that of the first), at most 224, rounded up to whole patches.
    ///
    /// # Errors
    ///
    /// They cannot be read, or the size is not one of whole patches.
    pub fn load(source: &str, size: Option<usize>, patch: usize) -> Result<Self> {
        let resolve = |own: usize| size.unwrap_or(own.min(USUAL_SIZE).next_multiple_of(patch));
        if let Some(size) = size {
            ensure!(
                size.is_multiple_of(patch),
                "images of {size}x{size} cannot be cut into patches of {patch}x{patch}: choose a \
                 multiple of {patch} for --image-size"
            );
        }
        match source {
            "digits" => digits(resolve(DIGIT)),
            _ => folder(Path::new(source), resolve),
        }
    }

    fn split(size: usize, channels: usize, classes: usize, all: &Split) -> Result<Self> {
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
            let part = match place < for_validation {
                true => &mut validation,
                false => &mut train,
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

    /// The pixels of a batch and their shape, `[batch, channels, size, size]`: with mean 0 and
    /// standard deviation 1 over the training images.
    pub fn pixels(&self, images: &[Image]) -> (Vec<f32>, [usize; 4]) {
        let pixels = images.iter().flat_map(|image| &image.pixels);
        let pixels = pixels.map(|pixel| (f32::from(*pixel) - self.mean) / self.std);
        let shape = [images.len(), self.channels, self.size, self.size];
        (pixels.collect(), shape)
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
        format!("{:x}", hash.finalize())
    }
}

/// The labels of a batch.
pub fn labels(images: &[Image]) -> Vec<i32> {
    images.iter().map(|image| image.label as i32).collect()
}

fn digits(size: usize) -> Result<Dataset> {
    let mut all = Split::default();
    let mut rows = csv::ReaderBuilder::new()
        .has_headers(false)
        .from_reader(GzDecoder::new(DIGITS));
    for row in rows.deserialize::<Vec<u8>>() {
        let mut row = row.context("the bundled digits are damaged")?;
        let label = row.pop().context("the bundled digits are damaged")?;
        let digit = GrayImage::from_raw(DIGIT as u32, DIGIT as u32, row)
            .context("the bundled digits are damaged")?;
        let digit = resize(&digit, size as u32, size as u32, FilterType::Triangle);
        all.push(digit.as_raw(), u32::from(label));
    }
    Dataset::split(size, 1, 10, &all)
}

/// Images of a folder are in colour. Their order must not depend on the file system.
fn folder(folder: &Path, resolve: impl Fn(usize) -> usize) -> Result<Dataset> {
    let mut classes = entries(folder)?;
    classes.retain(|path| path.is_dir());
    ensure!(
        classes.len() >= 2,
        "{} does not hold one folder of images for each of at least two classes",
        folder.display()
    );
    let (mut all, mut size) = (Split::default(), None);
    for (label, class) in classes.iter().enumerate() {
        let files = entries(class)?;
        ensure!(!files.is_empty(), "{} holds no images", class.display());
        for file in files {
            let read = || Ok(ImageReader::open(&file)?.with_guessed_format()?.decode()?);
            let image: Result<DynamicImage> = read();
            let image = image.with_context(|| format!("no image: {}", file.display()))?;
            let size = *size.get_or_insert_with(|| resolve(image.width() as usize));
            all.push(&planes(image, size), label as u32);
        }
    }
    let size = size.unwrap_or_default();
    Dataset::split(size, 3, classes.len(), &all).with_context(|| folder.display().to_string())
}

/// The entries of a folder without hidden files, sorted.
fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    let cannot = || format!("cannot list {}", folder.display());
    for entry in fs::read_dir(folder).with_context(cannot)? {
        let entry = entry.with_context(cannot)?;
        if !entry.file_name().to_string_lossy().starts_with('.') {
            paths.push(entry.path());
        }
    }
    paths.sort();
    Ok(paths)
}

/// A colour image as three planes of `size` times `size` pixels.
fn planes(image: DynamicImage, size: usize) -> Vec<u8> {
    let size = size as u32;
    let image = resize(&image.into_rgb8(), size, size, FilterType::Triangle);
    let plane = |channel: usize| image.pixels().map(move |pixel| pixel.0[channel]);
    (0..3).flat_map(plane).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_all_there() {
        let digits = Dataset::digits().unwrap();
        assert_eq!((digits.size, digits.channels, digits.classes), (8, 1, 10));
        assert_eq!((digits.train.len(), digits.validation.len()), (1438, 359));
        assert_eq!(digits.train.pixels.len(), 1438 * 64);
        // The split is fixed, from version to version.
        let digest = "401d472600d0474dab83586efd693631454f29ad8ae09a4ad391878c04810e32";
        assert_eq!(digits.digest(), digest);
        // Whole patches.
        let digits = Dataset::load("digits", None, 16).unwrap();
        assert_eq!(digits.size, 16);
    }

    #[test]
    fn pixels_are_planes_of_colour_and_normalized() {
        let image = image::RgbImage::from_raw(2, 1, vec![1, 2, 3, 4, 5, 6]).unwrap();
        // The resizing repeats the row, and the planes stay apart.
        let expected = [1, 4, 1, 4, 2, 5, 2, 5, 3, 6, 3, 6];
        assert_eq!(planes(image.into(), 2), expected);
        assert_eq!(moments(&[0, 10]), (5.0, 5.0));
        assert_eq!(moments(&[7, 7]), (7.0, 1.0));
    }
}

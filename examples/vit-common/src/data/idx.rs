//! IDX, the file format of MNIST: two zero bytes, a type, the number of dimensions, their sizes as
//! big-endian numbers of 32 bits, then the elements.

use super::{Dataset, ImageSize, Split, ensure_is_file, square_grey};
use anyhow::{Context, Result, bail, ensure};
use flate2::read::GzDecoder;
use image::GrayImage;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The only element type used for images and labels.
const UNSIGNED_BYTE: u8 = 0x08;

/// Whether the folder holds IDX files.
pub(super) fn is_in(folder: &Path) -> bool {
    fs::read_dir(folder).is_ok_and(|entries| {
        entries.flatten().any(|entry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            name.contains("-idx") || name.contains(".idx")
        })
    })
}

/// Loads the four files under MNIST's names, compressed or not.
pub(super) fn load(folder: &Path, size: ImageSize) -> Result<Dataset> {
    let train = read_pair(folder, "train")?;
    let validation = read_pair(folder, "t10k")?;
    ensure!(
        (train.width, train.height) == (validation.width, validation.height),
        "{}: images to train are {}x{}, images to validate {}x{}",
        folder.display(),
        train.width,
        train.height,
        validation.width,
        validation.height
    );
    let size = size.resolve(train.width.max(train.height))?;
    let classes = train.labels.iter().chain(&validation.labels).max();
    let classes = classes.map_or(0, |label| usize::from(*label) + 1);
    Ok(Dataset::new(
        size,
        1,
        classes,
        train.split(size)?,
        validation.split(size)?,
    ))
}

struct Pair {
    width: usize,
    height: usize,
    pixels: Vec<u8>,
    labels: Vec<u8>,
}

impl Pair {
    fn split(self, size: usize) -> Result<Split> {
        let mut split = Split::default();
        let images = self.pixels.chunks_exact(self.width * self.height);
        for (image, label) in images.zip(self.labels) {
            let image = GrayImage::from_raw(self.width as u32, self.height as u32, image.to_vec())
                .context("an image is not as large as its file says")?;
            split.push(&square_grey(image, size), u32::from(label));
        }
        Ok(split)
    }
}

fn read_pair(folder: &Path, part: &str) -> Result<Pair> {
    let (images, image_file) = read(folder, part, "images", 3)?;
    let (labels, label_file) = read(folder, part, "labels", 1)?;
    let [count, height, width] = images.dims[..] else {
        bail!("{}: no images", image_file.display());
    };
    ensure!(
        count > 0 && height > 0 && width > 0,
        "{}: no images in it",
        image_file.display()
    );
    ensure!(
        count == labels.elements.len(),
        "{} has {count} images but {} has {} labels",
        image_file.display(),
        label_file.display(),
        labels.elements.len()
    );
    Ok(Pair {
        width,
        height,
        pixels: images.elements,
        labels: labels.elements,
    })
}

fn read(folder: &Path, part: &str, what: &str, dims: usize) -> Result<(Idx, PathBuf)> {
    let name = format!("{part}-{what}-idx{dims}-ubyte");
    let candidates = [
        name.clone(),
        format!("{name}.gz"),
        name.replace("-idx", ".idx"),
        format!("{}.gz", name.replace("-idx", ".idx")),
    ];
    let file = candidates
        .iter()
        .map(|candidate| folder.join(candidate))
        .find(|file| file.exists())
        .with_context(|| format!("{} has no file {name} or {name}.gz", folder.display()))?;
    let idx = read_file(&file)
        .and_then(|bytes| Idx::parse(bytes, dims))
        .with_context(|| file.display().to_string())?;
    Ok((idx, file))
}

fn read_file(file: &Path) -> Result<Vec<u8>> {
    ensure_is_file(file)?;
    let bytes = fs::read(file)?;
    if !bytes.starts_with(&[0x1f, 0x8b]) {
        return Ok(bytes);
    }
    let mut content = Vec::new();
    GzDecoder::new(bytes.as_slice())
        .read_to_end(&mut content)
        .context("the gzip stream is damaged or cut short")?;
    Ok(content)
}

#[derive(Debug)]
struct Idx {
    dims: Vec<usize>,
    elements: Vec<u8>,
}

impl Idx {
    fn parse(mut bytes: Vec<u8>, wanted_dims: usize) -> Result<Self> {
        ensure!(bytes.len() >= 4, "cut short: not even a header");
        let [zero, zero_too, kind, count] = [bytes[0], bytes[1], bytes[2], bytes[3]];
        ensure!(
            zero == 0 && zero_too == 0,
            "not an IDX file: it begins with {zero:#04x} {zero_too:#04x}"
        );
        ensure!(
            kind == UNSIGNED_BYTE,
            "elements of type {kind:#04x}, where only unsigned bytes (0x08) are read"
        );
        ensure!(
            usize::from(count) == wanted_dims,
            "{count} dimensions where {wanted_dims} were expected{}",
            match (count, wanted_dims) {
                (1, 3) => ": labels where images belong",
                (3, 1) => ": images where labels belong",
                _ => "",
            }
        );
        let header = 4 + 4 * wanted_dims;
        ensure!(bytes.len() >= header, "cut short: the header ends early");
        let dims: Vec<usize> = bytes[4..header]
            .chunks_exact(4)
            .map(|size| u32::from_be_bytes([size[0], size[1], size[2], size[3]]) as usize)
            .collect();
        let expected = dims
            .iter()
            .try_fold(1usize, |product, size| product.checked_mul(*size))
            .context("impossible dimensions")?;
        let elements = bytes.split_off(header);
        ensure!(
            elements.len() >= expected,
            "cut short: {} of {expected} bytes of data",
            elements.len()
        );
        ensure!(
            elements.len() == expected,
            "{} bytes too many at the end",
            elements.len() - expected
        );
        Ok(Self { dims, elements })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(count: u8, elements: &[u8]) -> Vec<u8> {
        [&[0, 0, 8, 1, 0, 0, 0, count], elements].concat()
    }

    #[test]
    fn reads_a_valid_file() {
        let idx = Idx::parse(labels(3, &[7, 8, 9]), 1).unwrap();
        assert_eq!((idx.dims, idx.elements), (vec![3], vec![7, 8, 9]));
    }

    #[test]
    fn refuses_an_invalid_file() {
        let cases = [
            (vec![0, 0], "cut short"),
            (vec![1, 2, 3, 4], "not an IDX file"),
            (vec![0, 0, 0x0d, 1, 0, 0, 0, 0], "type 0x0d"),
            (vec![0, 0, 8, 3], "images where labels belong"),
            (vec![0, 0, 8, 1, 0], "the header ends early"),
            (labels(3, &[7, 8]), "2 of 3 bytes"),
            (labels(3, &[7, 8, 9, 10]), "1 bytes too many"),
        ];
        for (bytes, text) in cases {
            let error = Idx::parse(bytes, 1).unwrap_err().to_string();
            assert!(error.contains(text), "{error:?} should mention {text:?}");
        }
    }
}

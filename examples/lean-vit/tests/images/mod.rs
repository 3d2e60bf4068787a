//! Small data sets.

use std::fs;
use std::path::Path;
use vit_common::rng::SeededRng;

/// Writes random images of 8x8 with random labels of four classes, as MNIST's files: so many for
/// training and for validation.
pub(crate) fn write(folder: &Path, seed: u64, train: u32, validation: u32) {
    let mut random = SeededRng::new(&[seed]);
    for (part, count) in [("train", train), ("t10k", validation)] {
        let mut file = |what: &str, dims: &[u32], below: usize| {
            let mut bytes = vec![0, 0, 8, dims.len() as u8];
            bytes.extend(dims.iter().flat_map(|size| size.to_be_bytes()));
            let len: u32 = dims.iter().product();
            bytes.extend((0..len).map(|_| random.below(below) as u8));
            fs::write(folder.join(format!("{part}-{what}-ubyte")), bytes).unwrap();
        };
        file("images-idx3", &[count, 8, 8], 256);
        file("labels-idx1", &[count], 4);
    }
}

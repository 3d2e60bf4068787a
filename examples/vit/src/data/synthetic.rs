//! Random images, for measurements: what is in them does not change what a step costs.

use super::{Dataset, Split};
use crate::rng::SplitMix64;

pub(super) fn make(
    size: usize,
    channels: usize,
    classes: usize,
    images: usize,
    seed: u64,
) -> Dataset {
    let mut rng = SplitMix64::new(&[seed]);
    let mut pixels = Vec::with_capacity((images * channels * size * size).next_multiple_of(8));
    while pixels.len() < images * channels * size * size {
        pixels.extend_from_slice(&rng.next_u64().to_le_bytes());
    }
    pixels.truncate(images * channels * size * size);
    let labels = (0..images).map(|_| rng.below(classes) as u32).collect();
    Dataset::new(
        size,
        channels,
        classes,
        Split { pixels, labels },
        Split::default(),
    )
}

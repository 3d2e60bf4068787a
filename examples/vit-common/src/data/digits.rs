//! The bundled UCI handwritten digits; `data/README.md` names their source and licence.

use super::{Dataset, ImageSize, Split, square_grey};
use anyhow::{Context, Result, ensure};
use flate2::read::GzDecoder;
use image::GrayImage;

static DIGITS: &[u8] = include_bytes!("../../data/digits.csv.gz");

const SIZE: usize = 8;
const CLASSES: usize = 10;

pub(super) fn load(size: ImageSize) -> Result<Dataset> {
    let size = size.resolve(SIZE)?;
    let mut all = Split::default();
    let mut rows = csv::ReaderBuilder::new()
        .has_headers(false)
        .from_reader(GzDecoder::new(DIGITS));
    for row in rows.deserialize::<Vec<u8>>() {
        let mut row = row.context("the bundled digits are damaged")?;
        ensure!(
            row.len() == SIZE * SIZE + 1,
            "the bundled digits are damaged"
        );
        let label = row.split_off(SIZE * SIZE)[0];
        let image = GrayImage::from_raw(SIZE as u32, SIZE as u32, row)
            .context("the bundled digits are damaged")?;
        all.push(&square_grey(&image, size), u32::from(label));
    }
    Dataset::from_one(size, 1, CLASSES, &all)
}

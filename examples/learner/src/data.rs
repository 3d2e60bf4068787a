//! The bundled digits: 1,797 images of 8x8 pixels. `examples/vit-inputs/data` names their source.

use std::io::Read;
use std::sync::Arc;

use anyhow::{Context, Result};
use burn::data::dataloader::batcher::Batcher;
use burn::data::dataloader::{DataLoader, DataLoaderBuilder};
use burn::data::dataset::InMemDataset;
use burn::tensor::{Device, Int, Tensor, TensorData};
use flate2::read::GzDecoder;

/// Images in a batch.
pub(crate) const BATCH: usize = 64;
const VALIDATION: usize = 360;
const PIXELS: usize = 8 * 8;

static DIGITS: &[u8] = include_bytes!("../../vit-inputs/data/digits.csv.gz");

/// A batch of images.
#[derive(Clone, Debug)]
pub(crate) struct Digits {
    /// `[batch, 8, 8]`, from 0 to 1.
    pub(crate) images: Tensor<3>,
    /// `[batch]`
    pub(crate) labels: Tensor<1, Int>,
}

/// The pixels of an image, and its label.
type Row = Vec<u8>;

struct Rows;

impl Batcher<Row, Digits> for Rows {
    fn batch(&self, rows: Vec<Row>, device: &Device) -> Digits {
        let count = rows.len();
        let pixels = rows.iter().flat_map(|row| &row[..PIXELS]);
        let pixels: Vec<f32> = pixels.map(|pixel| f32::from(*pixel) / 16.0).collect();
        let labels: Vec<i32> = rows.iter().map(|row| i32::from(row[PIXELS])).collect();
        Digits {
            images: Tensor::from_data(TensorData::new(pixels, [count, 8, 8]), device),
            labels: Tensor::from_data(TensorData::new(labels, [count]), device),
        }
    }
}

pub(crate) type Loader = Arc<dyn DataLoader<Digits>>;

/// The training and the validation images.
pub(crate) fn loaders(device: &Device) -> Result<(Loader, Loader)> {
    let mut text = String::new();
    GzDecoder::new(DIGITS).read_to_string(&mut text)?;
    let row = |line: &str| line.split(',').map(str::parse).collect::<Result<Row, _>>();
    let rows: Result<Vec<Row>, _> = text.lines().map(row).collect();
    let mut train = rows.context("the bundled digits are damaged")?;
    let valid = train.split_off(train.len() - VALIDATION);
    let loader = || DataLoaderBuilder::new(Rows).batch_size(BATCH);
    Ok((
        loader()
            .shuffle(42)
            .set_device(device.clone())
            .build(InMemDataset::new(train)),
        loader()
            .set_device(device.clone().inner())
            .build(InMemDataset::new(valid)),
    ))
}

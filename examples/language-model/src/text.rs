//! The text as bytes: batches to learn from, and bytes that the model writes.

use anyhow::{Context, Result, ensure};
use burn::module::Module;
use burn::tensor::activation::softmax;
use burn::tensor::{Device, Int, Tensor, TensorData};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use crate::model::Decoder;

/// The scores of unlikely bytes are lowered: below 1, the model writes more carefully.
const TEMPERATURE: f32 = 0.5;

/// A text, cut into windows by a generator of its own.
#[derive(Debug)]
pub struct Text {
    bytes: Vec<u8>,
    time: usize,
    rng: Xoshiro256PlusPlus,
}

impl Text {
    /// The text of a file, or the Apache licence.
    pub fn open(file: Option<&str>, time: usize) -> Result<Self> {
        let bytes = match file {
            None => include_bytes!("../../../LICENSE-APACHE").to_vec(),
            Some(file) => std::fs::read(file).with_context(|| format!("cannot read {file}"))?,
        };
        ensure!(
            bytes.len() > time,
            "the text has {} bytes: it needs more than {time}",
            bytes.len()
        );
        let rng = Xoshiro256PlusPlus::seed_from_u64(42);
        Ok(Self { bytes, time, rng })
    }

    /// Random windows of the text, `[batch, time + 1]`: each byte but the last is followed by its
    /// target.
    pub fn batch(&mut self, batch: usize, device: &Device) -> Tensor<2, Int> {
        let mut windows = Vec::new();
        for _ in 0..batch {
            let start = self.below(self.bytes.len() - self.time);
            let window = &self.bytes[start..=start + self.time];
            windows.extend(window.iter().map(|byte| i32::from(*byte)));
        }
        Tensor::from_data(TensorData::new(windows, [batch, self.time + 1]), device)
    }

    /// Goes on with a prompt, byte by byte.
    pub fn write(
        &mut self,
        model: &Decoder,
        prompt: &str,
        bytes: usize,
        device: &Device,
    ) -> String {
        let model = model.valid();
        let mut written = prompt.as_bytes().to_vec();
        for _ in 0..bytes {
            let seen = &written[written.len().saturating_sub(self.time)..];
            let seen: Vec<i32> = seen.iter().map(|byte| i32::from(*byte)).collect();
            let shape = [1, seen.len()];
            let tokens = Tensor::from_data(TensorData::new(seen, shape), &device.clone().inner());
            let shares = softmax(model.next(tokens) / TEMPERATURE, 0).into_data();
            written.push(self.draw(shares.iter::<f32>()));
        }
        String::from_utf8_lossy(&written[prompt.len()..]).into_owned()
    }

    /// A byte, by the probabilities of all.
    fn draw(&mut self, shares: impl Iterator<Item = f32>) -> u8 {
        let mut left = self.below(1 << 24) as f32 / (1 << 24) as f32;
        let mut last = 0;
        for (byte, share) in (0..=u8::MAX).zip(shares) {
            last = byte;
            left -= share;
            if left < 0.0 {
                break;
            }
        }
        last
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.rng.next_u64() % bound as u64) as usize
    }
}

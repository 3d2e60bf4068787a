//! Rotary encodings of positions, and how models stretch them to longer texts.

use std::f64::consts::TAU;

use anyhow::{Result, bail, ensure};
use burn::nn::RotaryEncodingConfig;
use burn::tensor::{Device, Tensor};
use burn_lean::operations::nn;
use serde_json::{Map, Value};

use crate::config::Fields;

/// Base and scaling of the frequencies.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    theta: f64,
    scaling: Scaling,
}

#[derive(Clone, Debug, PartialEq)]
enum Scaling {
    None,
    Linear {
        factor: f64,
    },
    /// Of Llama 3.1.
    Llama3 {
        factor: f64,
        low: f64,
        high: f64,
        original: f64,
    },
    /// From the paper [YaRN](https://arxiv.org/abs/2309.00071).
    Yarn {
        factor: f64,
        fast: f64,
        slow: f64,
        original: f64,
        is_truncated: bool,
        /// The factor of cosines and sines.
        attention: f64,
    },
}

impl Rope {
    /// Reads `rope_parameters`, or `rope_theta` and `rope_scaling` of before.
    pub(crate) fn take(config: &mut Fields, positions: usize) -> Result<Self> {
        let theta: Option<f64> = config.take("rope_theta")?;
        let old: Option<Map<String, Value>> = config.take("rope_scaling")?;
        let new: Option<Map<String, Value>> = config.take("rope_parameters")?;
        ensure!(
            old.is_none() || new.is_none(),
            "`rope_scaling` and `rope_parameters` say the same twice"
        );
        let mut fields = Fields(new.or(old).unwrap_or_default());
        let theta = fields.take("rope_theta")?.or(theta).unwrap_or(10_000.0);
        let older: Option<String> = fields.take("type")?;
        let name = fields.take("rope_type")?.or(older);
        let original = fields.take("original_max_position_embeddings")?;
        let original = original.unwrap_or(positions as f64);
        let scaling = match name.as_deref().unwrap_or("default") {
            "default" => Scaling::None,
            "linear" => Scaling::Linear {
                factor: fields.need("factor")?,
            },
            "llama3" => Scaling::Llama3 {
                factor: fields.need("factor")?,
                low: fields.need("low_freq_factor")?,
                high: fields.need("high_freq_factor")?,
                original,
            },
            "yarn" => {
                let factor: f64 = fields.need("factor")?;
                let scale = |mscale: f64| match factor <= 1.0 {
                    true => 1.0,
                    false => 0.1 * mscale * factor.ln() + 1.0,
                };
                let mscales = (fields.take("mscale")?, fields.take("mscale_all_dim")?);
                let inferred = match mscales {
                    (Some(one), Some(all)) if one != 0.0 && all != 0.0 => scale(one) / scale(all),
                    _ => scale(1.0),
                };
                Scaling::Yarn {
                    factor,
                    fast: fields.take("beta_fast")?.unwrap_or(32.0),
                    slow: fields.take("beta_slow")?.unwrap_or(1.0),
                    original,
                    is_truncated: fields.take("truncate")?.unwrap_or(true),
                    attention: fields.take("attention_factor")?.unwrap_or(inferred),
                }
            }
            other => {
                bail!("`rope_type` is `{other}`; known are `default`, `linear`, `llama3`, `yarn`")
            }
        };
        fields.finish()?;
        Ok(Self { theta, scaling })
    }

    /// The encoding of so many positions.
    pub(crate) fn encoding(
        &self,
        time: usize,
        head_size: usize,
        device: &Device,
    ) -> nn::RotaryEncoding {
        let frequencies: Vec<f32> = self.frequencies(head_size).map(|it| it as f32).collect();
        let mut encoding = RotaryEncodingConfig::new(time, head_size).init_with_frequency_scaling(
            |_| Tensor::from_floats(frequencies.as_slice(), device),
            device,
        );
        if let Scaling::Yarn { attention, .. } = self.scaling {
            encoding.freq_complex = encoding.freq_complex * attention;
        }
        encoding.into()
    }

    /// Radians a position of each pair of features.
    fn frequencies(&self, head_size: usize) -> impl Iterator<Item = f64> {
        let size = head_size as f64;
        let (theta, scaling) = (self.theta, self.scaling.clone());
        (0..head_size / 2).map(move |pair| {
            let plain = theta.powf(-2.0 * pair as f64 / size);
            match scaling {
                Scaling::None => plain,
                Scaling::Linear { factor } => plain / factor,
                Scaling::Llama3 {
                    factor,
                    low,
                    high,
                    original,
                } => {
                    // 0 where a wave is longer than the text of before, 1 where it is much shorter.
                    let share = (original * plain / TAU - low) / (high - low);
                    mix(plain / factor, plain, share.clamp(0.0, 1.0))
                }
                Scaling::Yarn {
                    factor,
                    fast,
                    slow,
                    original,
                    is_truncated,
                    ..
                } => {
                    // The pair that turns so often within the text of before.
                    let pair_of =
                        |turns: f64| size * (original / (turns * TAU)).ln() / (2.0 * theta.ln());
                    let (mut first, mut last) = (pair_of(fast), pair_of(slow));
                    if is_truncated {
                        (first, last) = (first.floor(), last.ceil());
                    }
                    (first, last) = (first.max(0.0), last.min(size - 1.0));
                    let width = if first == last { 0.001 } else { last - first };
                    let share = (pair as f64 - first) / width;
                    mix(plain, plain / factor, share.clamp(0.0, 1.0))
                }
            }
        })
    }
}

fn mix(from: f64, to: f64, share: f64) -> f64 {
    from * (1.0 - share) + to * share
}

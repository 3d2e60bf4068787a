//! Rotary encodings that are stretched to longer texts.

use std::f64::consts::TAU;

use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};

use super::positions::{RotaryEncoding, RotaryEncodingConfig};

/// How a model that was trained on short texts encodes positions of longer ones.
///
/// Kinds and fields have the names of `rope_parameters` in transformers' `config.json`, and serde reads
/// them from there; without `rope_theta`, which is
/// [`with_theta`](RotaryEncodingConfig::with_theta).
///
/// ```
/// use burn::tensor::Device;
/// use burn_lean::operations::nn::{RotaryEncodingConfig, RotaryScaling};
///
/// let text = r#"{ "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
///     "high_freq_factor": 4.0, "original_max_position_embeddings": 8192 }"#;
/// let scaling: RotaryScaling = serde_json::from_str(text)?;
/// let config = RotaryEncodingConfig::new(64, 16).with_theta(500_000.0);
/// let rotary = config.init_scaled(&scaling, &Device::flex());
/// # let _ = rotary;
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "rope_type", rename_all = "lowercase", deny_unknown_fields)]
#[non_exhaustive]
pub enum RotaryScaling {
    /// None.
    Default {},
    /// All positions are divided by a factor.
    Linear {
        /// How much longer texts are.
        factor: f64,
    },
    /// Of Llama 3.1: waves that are longer than the texts of before are stretched, and short ones are
    /// not.
    Llama3 {
        /// How much longer texts are.
        factor: f64,
        /// Waves that fit into a text of before less often are stretched by the factor.
        low_freq_factor: f64,
        /// Waves that fit more often are not.
        high_freq_factor: f64,
        /// The length of texts before.
        original_max_position_embeddings: f64,
    },
    /// From the paper [YaRN](https://arxiv.org/abs/2309.00071).
    Yarn {
        /// How much longer texts are.
        factor: f64,
        /// The length of texts before.
        original_max_position_embeddings: f64,
        /// Pairs that turn more often within a text of before are not stretched.
        #[serde(default = "default_beta_fast")]
        beta_fast: f64,
        /// Those that turn less often are stretched by the factor.
        #[serde(default = "default_beta_slow")]
        beta_slow: f64,
        /// Whether both bounds are rounded to whole pairs.
        #[serde(default = "default_truncate")]
        truncate: bool,
        /// The factor of cosines and sines; if it is not told, the next two tell it.
        attention_factor: Option<f64>,
        /// DeepSeek's way to tell the factor of cosines and sines.
        mscale: Option<f64>,
        /// The same, as the divisor.
        mscale_all_dim: Option<f64>,
    },
}

fn default_beta_fast() -> f64 {
    32.0
}

fn default_beta_slow() -> f64 {
    1.0
}

fn default_truncate() -> bool {
    true
}

impl RotaryScaling {
    /// Radians a position of each pair of features, for heads of `size` features.
    fn frequencies(&self, theta: f64, size: usize) -> Vec<f32> {
        let scaled = |pair| self.scaled(theta.powf(-2.0 * pair / size as f64), pair, theta, size);
        (0..size / 2)
            .map(|pair| scaled(pair as f64) as f32)
            .collect()
    }

    fn scaled(&self, plain: f64, pair: f64, theta: f64, size: usize) -> f64 {
        match *self {
            Self::Default {} => plain,
            Self::Linear { factor } => plain / factor,
            Self::Llama3 {
                factor,
                low_freq_factor: low,
                high_freq_factor: high,
                original_max_position_embeddings: original,
            } => {
                let share = (original * plain / TAU - low) / (high - low);
                mix(plain / factor, plain, share)
            }
            Self::Yarn {
                factor,
                original_max_position_embeddings: original,
                beta_fast,
                beta_slow,
                truncate,
                ..
            } => {
                let size = size as f64;
                // The pair that turns so often within a text of before.
                let pair_of =
                    |turns: f64| size * (original / (turns * TAU)).ln() / (2.0 * theta.ln());
                let (mut first, mut last) = (pair_of(beta_fast), pair_of(beta_slow));
                if truncate {
                    (first, last) = (first.floor(), last.ceil());
                }
                (first, last) = (first.max(0.0), last.min(size - 1.0));
                let width = if first == last { 0.001 } else { last - first };
                mix(plain, plain / factor, (pair - first) / width)
            }
        }
    }

    /// The factor of cosines and sines.
    fn amplitude(&self) -> f64 {
        let Self::Yarn {
            factor,
            attention_factor,
            mscale,
            mscale_all_dim,
            ..
        } = *self
        else {
            return 1.0;
        };
        let scale = |mscale: f64| 0.1 * mscale * factor.max(1.0).ln() + 1.0;
        attention_factor.unwrap_or_else(|| match (mscale, mscale_all_dim) {
            (Some(one), Some(all)) if one != 0.0 && all != 0.0 => scale(one) / scale(all),
            _ => scale(1.0),
        })
    }
}

/// `share` is 0 for `from` and below, and 1 for `to` and above.
fn mix(from: f64, to: f64, share: f64) -> f64 {
    let share = share.clamp(0.0, 1.0);
    from * (1.0 - share) + to * share
}

impl RotaryEncodingConfig {
    /// An encoding that is stretched to longer texts.
    ///
    /// # Panics
    ///
    /// If `d_model` is odd, or `theta` not positive.
    pub fn init_scaled(&self, scaling: &RotaryScaling, device: &Device) -> RotaryEncoding {
        let frequencies = scaling.frequencies(self.theta.into(), self.d_model);
        let mut plain = burn::nn::RotaryEncodingConfig::clone(self).init_with_frequency_scaling(
            |_| Tensor::from_floats(frequencies.as_slice(), device),
            device,
        );
        plain.freq_complex = plain.freq_complex * scaling.amplitude();
        plain.into()
    }
}

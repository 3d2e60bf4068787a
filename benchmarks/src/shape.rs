//! The models by kind and size, and random batches for them. Nothing here knows of Burn.

use crate::subject::{Case, OptimizerKind};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use vit_inputs::SeededRng;
use vit_inputs::{Preset, VitConfig};

/// Number of different batches in a run.
const BATCHES: usize = 4;

/// Kinds of models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A vision transformer that classifies images
    Vit,
    /// A decoder in the style of GPT-2
    Gpt,
    /// Burn's own transformer encoder, as in tracel-ai/burn#5212: --preset tiny, or one size
    Encoder,
}

/// The shape of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Shape {
    /// A vision transformer.
    Vit(VitConfig),
    /// A decoder.
    Gpt(LanguageConfig),
    /// An encoder.
    Encoder(LanguageConfig),
}

/// The shape of a language model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LanguageConfig {
    /// Number of different tokens.
    pub vocabulary: usize,
    /// Tokens in a sequence.
    pub context: usize,
    /// Width of a token.
    pub dim: usize,
    /// Number of blocks.
    pub depth: usize,
    /// Attention heads in a block; divides `dim`.
    pub heads: usize,
    /// Width of the hidden layer in a block.
    pub hidden: usize,
    /// Probability of dropout while training.
    pub dropout: f64,
    /// Whether a token sees only those before it.
    pub is_decoder: bool,
}

impl Kind {
    /// The model of this kind and size, with these sizes of the decoder in place of the preset's.
    pub fn case(
        self,
        preset: Preset,
        [vocabulary, context]: [Option<usize>; 2],
        batch_size: usize,
    ) -> Case {
        let mut name = match (self, preset) {
            (Self::Vit, Preset::Tiny) => "ViT tiny".into(),
            (Self::Vit, Preset::Mini) => "ViT mini".into(),
            (Self::Vit, Preset::Small) => "ViT-S/16".into(),
            (Self::Vit, Preset::Base) => "ViT-B/16".into(),
            (Self::Vit, Preset::Large) => "ViT-L/16".into(),
            (Self::Gpt, preset) => format!("GPT {preset}"),
            (Self::Encoder, Preset::Tiny) => "Encoder tiny".into(),
            (Self::Encoder, _) => "Encoder of burn#5212".into(),
        };
        let model = match (self, preset) {
            (Self::Vit, Preset::Tiny) => Shape::Vit(preset.config(8, 1, 10)),
            (Self::Vit, Preset::Mini) => Shape::Vit(preset.config(64, 3, 100)),
            (Self::Vit, _) => Shape::Vit(preset.config(224, 3, 1000)),
            (Self::Gpt, _) => {
                let mut config = LanguageConfig::gpt(preset);
                for (what, given, size) in [
                    ("vocabulary", vocabulary, &mut config.vocabulary),
                    ("context", context, &mut config.context),
                ] {
                    if let Some(given) = given {
                        *size = given;
                        name += &format!(", {what} {given}");
                    }
                }
                Shape::Gpt(config)
            }
            (Self::Encoder, _) => Shape::Encoder(LanguageConfig::encoder(preset)),
        };
        Case {
            name,
            model,
            batch_size,
        }
    }
}

impl LanguageConfig {
    /// Decoders by size. `Large` has the proportions of a small language model: 16 layers, and a
    /// vocabulary of 30,000, which has a quarter of the weights.
    fn gpt(preset: Preset) -> Self {
        match preset {
            Preset::Tiny => Self::new([512, 32, 64, 2, 4], true),
            Preset::Mini => Self::new([4_000, 64, 384, 4, 6], true),
            Preset::Small => Self::new([8_000, 128, 384, 6, 6], true),
            Preset::Base => Self::new([50_257, 512, 768, 12, 12], true),
            Preset::Large => Self::new([30_000, 512, 1024, 16, 16], true),
        }
    }

    /// The encoder of the issue, or a tiny one.
    fn encoder(preset: Preset) -> Self {
        match preset {
            Preset::Tiny => Self::new([512, 32, 64, 2, 4], false),
            _ => Self::new([32_000, 512, 384, 24, 12], false),
        }
    }

    fn new([vocabulary, context, dim, depth, heads]: [usize; 5], is_decoder: bool) -> Self {
        Self {
            vocabulary,
            context,
            dim,
            depth,
            heads,
            hidden: 4 * dim,
            // 0.1 is the dropout of Burn's encoder.
            dropout: if is_decoder { 0.0 } else { 0.1 },
            is_decoder,
        }
    }
}

impl Shape {
    /// Elements of the largest parameter, and so of the largest single gradient.
    pub fn largest_param(&self) -> usize {
        match self {
            Self::Vit(config) => {
                let patch = config.channels * config.patch_size.pow(2);
                config.dim
                    * config
                        .hidden
                        .max(config.classes)
                        .max(config.tokens())
                        .max(patch)
            }
            Self::Gpt(config) | Self::Encoder(config) => {
                config.dim * config.vocabulary.max(config.hidden).max(config.context)
            }
        }
    }

    /// The optimizer that trains it by default.
    pub fn optimizer(&self) -> OptimizerKind {
        match self {
            Self::Vit(_) | Self::Gpt(_) => OptimizerKind::Adam,
            Self::Encoder(_) => OptimizerKind::AdamW,
        }
    }

    /// All batches of a run. The cost of a step does not depend on their content.
    pub fn batches(&self, size: usize, steps: usize, seed: u64) -> Vec<HostBatch> {
        let mut rng = SeededRng::new(&[seed]);
        let batch = |_| match self {
            Self::Vit(config) => images(config, size, &mut rng),
            Self::Gpt(config) | Self::Encoder(config) => tokens(config, size, &mut rng),
        };
        (0..steps.clamp(1, BATCHES)).map(batch).collect()
    }
}

/// A batch on the host.
#[derive(Clone, Debug)]
pub struct HostBatch {
    /// Pixels of images; empty for a language model.
    pub pixels: Vec<f32>,
    /// Tokens of sequences; empty for a vision transformer.
    pub tokens: Vec<i32>,
    /// `[batch, channels, size, size]` or `[batch, time]`.
    pub shape: Vec<usize>,
    /// The class of each image, or the token after each one.
    pub labels: Vec<i32>,
}

fn images(config: &VitConfig, size: usize, rng: &mut SeededRng) -> HostBatch {
    let shape = vec![size, config.channels, config.image_size, config.image_size];
    HostBatch {
        pixels: (0..shape.iter().product()).map(|_| pixel(rng)).collect(),
        tokens: Vec::new(),
        shape,
        labels: (0..size)
            .map(|_| rng.below(config.classes) as i32)
            .collect(),
    }
}

/// A uniform number in `-1.7..1.7`, so that the variance is about one.
fn pixel(rng: &mut SeededRng) -> f32 {
    let unit = (rng.next_u64() >> 40) as f32 / (1u32 << 24) as f32;
    (2.0 * unit - 1.0) * 3f32.sqrt()
}

/// Random sequences, labelled with the token after each one.
fn tokens(config: &LanguageConfig, size: usize, rng: &mut SeededRng) -> HostBatch {
    let (mut tokens, mut labels) = (Vec::new(), Vec::new());
    for _ in 0..size {
        let mut token = rng.below(config.vocabulary) as i32;
        for _ in 0..config.context {
            tokens.push(token);
            token = rng.below(config.vocabulary) as i32;
            labels.push(token);
        }
    }
    HostBatch {
        pixels: Vec::new(),
        tokens,
        shape: vec![size, config.context],
        labels,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_read_as_they_were_written() {
        for kind in [Kind::Vit, Kind::Gpt, Kind::Encoder] {
            let shape = kind.case(Preset::Small, [None; 2], 1).model;
            let json = serde_json::to_value(&shape).unwrap();
            assert_eq!(json["kind"], kind.to_possible_value().unwrap().get_name());
            assert_eq!(json["dim"], 384);
            assert_eq!(serde_json::from_value::<Shape>(json).unwrap(), shape);
        }
    }
}

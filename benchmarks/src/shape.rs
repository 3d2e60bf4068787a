//! Models by kind and size.

use crate::encoder::EncoderConfig;
use crate::gpt::GptConfig;
use crate::workload::Workload;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use vit_0_21::config::{OptimizerKind, Preset};
use vit_0_21::model::VitConfig;

/// The shape of a model, part of the JSON for a measuring process, in Rust or in Python.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Shape {
    /// A vision transformer.
    Vit(VitConfig),
    /// A decoder.
    Gpt(GptConfig),
    /// An encoder.
    Encoder(EncoderConfig),
}

/// Kinds of models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A vision transformer that classifies images
    Vit,
    /// A decoder that predicts the next token
    Gpt,
    /// Burn's own transformer encoder
    Encoder,
}

/// Sizes in place of a preset's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Width and height of an image.
    pub image: Option<usize>,
    /// Number of different tokens of the decoder.
    pub vocabulary: Option<usize>,
    /// Tokens in a sequence of the decoder.
    pub context: Option<usize>,
}

impl Kind {
    /// The model of this kind and size.
    pub fn shape(self, preset: Preset, sizes: &Sizes) -> Shape {
        match self {
            Self::Vit => {
                let (size, channels, classes) = match preset {
                    Preset::Tiny => (8, 1, 10),
                    Preset::Small | Preset::Base | Preset::Large => (224, 3, 1000),
                };
                Shape::Vit(preset.config(sizes.image.unwrap_or(size), channels, classes))
            }
            Self::Gpt => Shape::Gpt(gpt(preset, sizes)),
            Self::Encoder => Shape::Encoder(encoder(preset)),
        }
    }

    /// The name of this kind and size, for the table.
    pub fn name(self, preset: Preset, sizes: &Sizes) -> String {
        let name = match (self, preset) {
            (Self::Vit, Preset::Tiny) => "ViT tiny".into(),
            (Self::Vit, Preset::Small) => "ViT-S/16".into(),
            (Self::Vit, Preset::Base) => "ViT-B/16".into(),
            (Self::Vit, Preset::Large) => "ViT-L/16".into(),
            (Self::Gpt, preset) => format!("GPT {preset}"),
            (Self::Encoder, Preset::Tiny) => "Encoder tiny".into(),
            (Self::Encoder, _) => "Encoder of burn#5212".into(),
        };
        let other: Vec<String> = match self {
            Self::Vit => sizes
                .image
                .map(|size| format!(" at {size}x{size}"))
                .into_iter()
                .collect(),
            Self::Gpt => [("vocabulary", sizes.vocabulary), ("context", sizes.context)]
                .into_iter()
                .filter_map(|(what, size)| Some(format!(", {what} {}", size?)))
                .collect(),
            Self::Encoder => Vec::new(),
        };
        name + &other.concat()
    }
}

/// Decoders by size. `Large` has the proportions of a small language model: 16 layers, and a
/// vocabulary of 30,000, which has a quarter of the weights.
fn gpt(preset: Preset, sizes: &Sizes) -> GptConfig {
    let (vocabulary, context, dim, depth, heads) = match preset {
        Preset::Tiny => (512, 32, 64, 2, 4),
        Preset::Small => (8_000, 128, 384, 6, 6),
        Preset::Base => (50_257, 512, 768, 12, 12),
        Preset::Large => (30_000, 512, 1024, 16, 16),
    };
    let vocabulary = sizes.vocabulary.unwrap_or(vocabulary);
    let context = sizes.context.unwrap_or(context);
    GptConfig::new(vocabulary, context, dim, depth, heads, 4 * dim)
}

/// The encoder of the issue, or a tiny one: it has no other sizes.
fn encoder(preset: Preset) -> EncoderConfig {
    let (vocabulary, context, dim, depth, heads) = match preset {
        Preset::Tiny => (512, 32, 64, 2, 4),
        Preset::Small | Preset::Base | Preset::Large => (32_000, 512, 384, 24, 12),
    };
    EncoderConfig::new(vocabulary, context, dim, depth, heads, 4 * dim)
}

impl Shape {
    /// Elements of the largest parameter, and so of the largest single gradient.
    pub fn largest_param(&self) -> usize {
        match self {
            Self::Vit(config) => config.largest_param(),
            Self::Gpt(config) => config.largest_param(),
            Self::Encoder(config) => config.largest_param(),
        }
    }

    /// The optimizer that trains it.
    pub fn optimizer(&self) -> OptimizerKind {
        match self {
            Self::Vit(_) => VitConfig::OPTIMIZER,
            Self::Gpt(_) => GptConfig::OPTIMIZER,
            Self::Encoder(_) => EncoderConfig::OPTIMIZER,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_read_as_they_were_written() {
        for kind in [Kind::Vit, Kind::Gpt, Kind::Encoder] {
            let shape = kind.shape(Preset::Small, &Sizes::default());
            let json = serde_json::to_value(&shape).unwrap();
            let name = kind.to_possible_value().unwrap();
            assert_eq!(json["kind"], name.get_name());
            assert_eq!(json["dim"], 384);
            assert_eq!(serde_json::from_value::<Shape>(json).unwrap(), shape);
        }
    }

    #[test]
    fn sizes_replace_those_of_the_preset_and_are_in_the_name() {
        let sizes = Sizes {
            image: Some(64),
            vocabulary: Some(32_000),
            context: Some(512),
        };
        let Shape::Gpt(config) = Kind::Gpt.shape(Preset::Small, &sizes) else {
            panic!("another kind");
        };
        assert_eq!(config, GptConfig::new(32_000, 512, 384, 6, 6, 1536));
        // The others have no such sizes.
        for (kind, name) in [
            (Kind::Vit, "ViT-S/16 at 64x64"),
            (Kind::Gpt, "GPT small, vocabulary 32000, context 512"),
            (Kind::Encoder, "Encoder of burn#5212"),
        ] {
            assert_eq!(kind.name(Preset::Small, &sizes), name);
        }
        let one = Sizes {
            context: Some(64),
            ..Sizes::default()
        };
        assert_eq!(Kind::Gpt.name(Preset::Tiny, &one), "GPT tiny, context 64");
        let encoder = |sizes: &Sizes| Kind::Encoder.shape(Preset::Small, sizes);
        assert_eq!(encoder(&sizes), encoder(&Sizes::default()));
    }
}

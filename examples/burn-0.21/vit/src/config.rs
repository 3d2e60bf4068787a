//! Optimizers, backends, and the settings of a training run.

use crate::model::VitConfig;
use anyhow::Result;
use burn::config::Config;
use burn_gradient_release::Recompute;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use vit_common::display_as_value;
use vit_common::settings::identity;

pub use vit_common::config::{Mode, Preset, WEIGHT_DECAY};

/// Optimizers of Burn and of `burn-gradient-release-optim`, each with its own defaults. Not all: the training
/// is compiled once for each, on each backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum OptimizerKind {
    /// Adam
    Adam,
    /// Burn's Adam in one pass over memory
    AdamOnePass,
    /// Adam with moments in 8 bits
    #[serde(rename = "adam-8bit")]
    #[value(name = "adam-8bit")]
    Adam8bit,
    /// AdamW: Adam with decoupled weight decay
    #[value(name = "adamw")]
    AdamW,
    /// Burn's AdamW in one pass over memory
    #[serde(rename = "adamw-one-pass")]
    #[value(name = "adamw-one-pass")]
    AdamWOnePass,
    /// AdamW with moments in 8 bits
    #[serde(rename = "adamw-8bit")]
    #[value(name = "adamw-8bit")]
    AdamW8bit,
    /// Lion: one momentum, steps by its sign
    Lion,
    /// Adafactor: a second moment of rows and columns
    Adafactor,
    /// Stochastic gradient descent with momentum
    Sgd,
}

impl OptimizerKind {
    /// Whether it is one with decoupled weight decay.
    pub fn decays_weights(self) -> bool {
        matches!(self, Self::AdamW | Self::AdamWOnePass | Self::AdamW8bit)
    }

    /// Whether its moments have 8 bits.
    pub fn is_8_bit(self) -> bool {
        matches!(self, Self::Adam8bit | Self::AdamW8bit)
    }
}

/// What the forward pass keeps for the backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Checkpointing {
    /// Every activation
    None,
    /// Recomputes what is cheap to recompute (Burn's balanced checkpointing)
    Balanced,
    /// The input of each transformer block; recomputes the block, on the backend of gradient
    /// release
    Blocks,
    /// Little, at places that gradient release finds by itself; recomputes the rest
    Automatic,
}

/// Backends; a build has those whose cargo feature is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
#[value(rename_all = "lower")]
pub enum BackendKind {
    /// Burn's portable CPU backend
    Flex,
    /// The CPU backend over the ndarray crate
    NdArray,
    /// GPU through WebGPU
    Wgpu,
    /// NVIDIA GPU
    Cuda,
}

impl BackendKind {
    /// Whether an optimizer can step with moments in 8 bits on it without packing them on the host.
    pub fn has_8_bit_moments(self) -> bool {
        self != Self::NdArray
    }

    /// The first backend of this build.
    pub fn first() -> Self {
        if cfg!(feature = "flex") {
            Self::Flex
        } else if cfg!(feature = "ndarray") {
            Self::NdArray
        } else if cfg!(feature = "wgpu") {
            Self::Wgpu
        } else {
            Self::Cuda
        }
    }

    /// Whether this build has the backend.
    pub fn is_compiled_in(self) -> bool {
        match self {
            Self::Flex => cfg!(feature = "flex"),
            Self::NdArray => cfg!(feature = "ndarray"),
            Self::Wgpu => cfg!(feature = "wgpu"),
            Self::Cuda => cfg!(feature = "cuda"),
        }
    }

    /// Whether tensors live on the heap, where the counting allocator sees them.
    pub fn is_on_heap(self) -> bool {
        matches!(self, Self::Flex | Self::NdArray)
    }
}

display_as_value!(OptimizerKind, Checkpointing, BackendKind);

/// Backend, mode, checkpointing and optimizer of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Engine {
    /// Backend that holds the tensors.
    pub backend: BackendKind,
    /// Whether a GPU fuses operations that follow each other; the CPU backends never do.
    pub fusion: bool,
    /// How the optimizer gets its gradients.
    pub mode: Mode,
    /// What the forward pass keeps.
    pub checkpointing: Checkpointing,
    /// Bytes of activations that automatic checkpointing may keep; as few as it can without.
    pub activation_budget: Option<u64>,
    /// Optimizer.
    pub optimizer: OptimizerKind,
}

impl Engine {
    /// What gradient release recomputes by itself.
    pub fn recompute(&self) -> Recompute {
        match (self.checkpointing, self.activation_budget) {
            (Checkpointing::Automatic, None) => Recompute::Automatic,
            (Checkpointing::Automatic, Some(bytes)) => Recompute::Budget(bytes),
            _ => Recompute::None,
        }
    }
}

/// What keeps weights and gradients small.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Regularization {
    /// Weight decay of the optimizer; its own default without.
    pub weight_decay: Option<f64>,
    /// Whether biases, gains and embeddings are left out of it.
    pub no_decay_on_norms: bool,
    /// The norm that all gradients together are clipped to.
    pub clip_grad_norm: Option<f64>,
}

/// Settings that a resumed run may have others of. What is in the images says their digest.
const MAY_CHANGE: [&str; 6] = [
    "data",
    "engine.activation_budget",
    "engine.backend",
    "engine.checkpointing",
    "engine.fusion",
    "engine.mode",
];

/// The settings that determine the outcome of a training run; saved beside its results.
#[derive(Config, Debug, PartialEq)]
pub struct TrainConfig {
    /// The preset of the model.
    pub preset: Preset,
    /// The shape of the model.
    pub model: VitConfig,
    /// The images: a name, or the path of a folder.
    pub data: String,
    /// SHA-256 of the images as the model sees them, with their labels.
    pub data_digest: String,
    /// Backend, mode, checkpointing and optimizer.
    pub engine: Engine,
    /// Passes over the training images.
    pub epochs: usize,
    /// Images in a batch.
    pub batch_size: usize,
    /// Batches whose gradients add up to one step.
    pub grads_accumulation: usize,
    /// Epochs without a better validation loss after which the run ends.
    pub early_stopping: Option<usize>,
    /// The highest learning rate: reached after the warm-up, then falling along a cosine.
    pub learning_rate: f64,
    /// Weight decay and clipping.
    pub regularization: Option<Regularization>,
    /// Seed of the weights, of the order of the images and of dropout.
    pub seed: u64,
}

impl TrainConfig {
    /// What tells the run from others: all that must not change when it is resumed.
    ///
    /// # Errors
    ///
    /// A number that JSON does not have.
    pub fn identity(&self) -> Result<String> {
        let mut settings = serde_json::to_value(self)?;
        settings["regularization"] = serde_json::to_value(self.regularization())?;
        Ok(identity(&settings, &MAY_CHANGE))
    }

    /// Weight decay and clipping; nothing but the optimizer's defaults in settings of before.
    pub fn regularization(&self) -> Regularization {
        self.regularization.unwrap_or_default()
    }
}

#[cfg(test)]
impl TrainConfig {
    pub(crate) fn example() -> Self {
        Self {
            preset: Preset::Tiny,
            model: Preset::Tiny.config(8, 1, 10),
            data: "digits".into(),
            data_digest: "00".into(),
            engine: Engine {
                backend: BackendKind::Flex,
                fusion: true,
                mode: Mode::Release,
                checkpointing: Checkpointing::None,
                activation_budget: None,
                optimizer: OptimizerKind::AdamW,
            },
            epochs: 3,
            batch_size: 32,
            grads_accumulation: 1,
            early_stopping: None,
            learning_rate: 1.5e-3,
            regularization: Some(Regularization {
                weight_decay: Some(0.1),
                no_decay_on_norms: true,
                clip_grad_norm: Some(1.0),
            }),
            seed: 42,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_as_they_were_saved() {
        let config = TrainConfig::example();
        let json = serde_json::to_vec(&config).unwrap();
        assert_eq!(TrainConfig::load_binary(&json).unwrap(), config);
    }

    #[test]
    fn a_run_is_the_same_however_it_is_computed() {
        let config = TrainConfig::example();
        let mut resumed = config.clone();
        resumed.engine.mode = Mode::Plain;
        resumed.engine.backend = BackendKind::NdArray;
        resumed.data = "elsewhere".into();
        assert_eq!(config.identity().unwrap(), resumed.identity().unwrap());
        for change in [
            (|config| config.seed += 1) as fn(&mut TrainConfig),
            |config| config.engine.optimizer = OptimizerKind::Sgd,
            |config| config.preset = Preset::Small,
            |config| config.early_stopping = Some(3),
            |config| config.regularization = None,
            |config| config.data_digest = "11".into(),
        ] {
            let mut other = config.clone();
            change(&mut other);
            assert_ne!(config.identity().unwrap(), other.identity().unwrap());
        }
    }

    #[test]
    fn settings_of_earlier_versions_are_read() {
        let without = |of: &str, setting: &str| {
            let mut json = serde_json::to_value(TrainConfig::example()).unwrap();
            let settings = json.pointer_mut(of).unwrap().as_object_mut().unwrap();
            assert!(settings.remove(setting).is_some());
            TrainConfig::load_binary(json.to_string().as_bytes()).unwrap()
        };
        // From before there were budgets, and from before there was clipping.
        let config = without("/engine", "activation_budget");
        assert_eq!(config, TrainConfig::example());
        let config = without("", "regularization");
        assert_eq!(config.regularization(), Regularization::default());
    }

    #[test]
    fn the_recipe_is_read() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/recipes/digits.json");
        let recipe = TrainConfig::load(file).unwrap();
        assert_eq!(recipe.regularization().clip_grad_norm, Some(1.0));
        let digits = crate::data::Dataset::load(
            &recipe.data.parse().unwrap(),
            crate::data::ImageSize {
                requested: None,
                patch_size: recipe.model.patch_size,
            },
        );
        assert_eq!(digits.unwrap().digest(), recipe.data_digest);
    }

    #[test]
    fn names_are_those_of_the_command_line() {
        assert_eq!(OptimizerKind::AdamW.to_string(), "adamw");
        assert_eq!(BackendKind::NdArray.to_string(), "ndarray");
        assert_eq!(crate::model::Pool::ClassToken.to_string(), "class-token");
    }
}

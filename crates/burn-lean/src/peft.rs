//! Adapters in the files of [peft](https://github.com/huggingface/peft).

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path as FilePath;

use burn::Tensor;
use burn::module::{Lora, Module, Param};
use burn::tensor::Shape;
use serde::{Deserialize, Serialize};

use crate::path::{Path, PathVisitor, WithPaths, path_text};
use crate::safetensors::{OwnValues, Place, SafetensorsError, fill, tensors_of, write};

const WEIGHTS: &str = "adapter_model.safetensors";
const CONFIG: &str = "adapter_config.json";

/// Why adapters were not saved or loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PeftError {
    /// A file cannot be read or written.
    #[error("{file}: {source}")]
    File {
        /// Its name.
        file: &'static str,
        /// What the system says.
        source: io::Error,
    },
    /// A file has other contents than it should.
    #[error("{file}: {reason}")]
    Contents {
        /// Its name.
        file: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// The model has no adapters, or some that these files cannot have.
    #[error("{reason}")]
    Model {
        /// What is wrong.
        reason: String,
    },
}

/// `adapter_config.json`, as far as it matters here.
#[derive(Debug, Default, Deserialize, Serialize)]
struct Config {
    peft_type: String,
    r: usize,
    lora_alpha: f64,
    /// The names of modules, or their last parts.
    #[serde(default)]
    target_modules: serde_json::Value,
    #[serde(default)]
    bias: Option<String>,
    #[serde(default)]
    lora_bias: bool,
    /// Ranks and scales of single modules.
    #[serde(default)]
    rank_pattern: BTreeMap<String, usize>,
    #[serde(default)]
    alpha_pattern: BTreeMap<String, f64>,
    #[serde(default)]
    fan_in_fan_out: bool,
    #[serde(default)]
    use_rslora: bool,
    #[serde(default)]
    use_dora: bool,
    #[serde(default)]
    modules_to_save: Option<Vec<String>>,
    #[serde(default)]
    base_model_name_or_path: Option<String>,
    #[serde(default)]
    inference_mode: bool,
    #[serde(default)]
    lora_dropout: f64,
}

/// An adapter of a model.
struct Adapter {
    /// The paths of its factors.
    factors: [String; 2],
    /// The name of its module in the files.
    module: String,
}

/// Writes the adapters of a model into a folder, as `peft` reads them: `adapter_model.safetensors` and
/// `adapter_config.json`.
///
/// `lora` is what they were attached with. `module` gives the name that a module has in Python, as
/// `model.layers.0.self_attn.q_proj`, for that which it has here, as `blocks.0.query`.
///
/// # Errors
///
/// The model has no adapters, or a file cannot be written.
pub fn save_adapters<M: Module>(
    model: &M,
    lora: &Lora,
    folder: impl AsRef<FilePath>,
    module: impl Fn(&str) -> String,
) -> Result<(), PeftError> {
    let folder = folder.as_ref();
    let adapters = adapters_of(model, lora, module)?;
    let modules: BTreeSet<_> = adapters.iter().map(|adapter| &adapter.module).collect();
    let config = Config {
        peft_type: "LORA".into(),
        r: lora.rank,
        lora_alpha: lora.alpha,
        target_modules: serde_json::json!(modules),
        bias: Some("none".into()),
        inference_mode: true,
        ..Config::default()
    };
    let text = serde_json::to_string_pretty(&config).expect("it is made of texts and numbers");
    std::fs::create_dir_all(folder).map_err(of_config)?;
    let file = folder.join(WEIGHTS);
    write(model, &file, places(&adapters), |_, dtype| dtype, OwnValues).map_err(of_weights)?;
    std::fs::write(folder.join(CONFIG), text).map_err(of_config)
}

/// Reads adapters that `peft` or [`save_adapters`] has written into a model to which `lora` was applied.
///
/// # Errors
///
/// The model is dropped. A file cannot be read, is of other adapters, or has what Burn's adapters have
/// not, such as DoRA or trained biases.
pub fn load_adapters<M: Module>(
    model: M,
    lora: &Lora,
    folder: impl AsRef<FilePath>,
    module: impl Fn(&str) -> String,
) -> Result<M, PeftError> {
    let folder = folder.as_ref();
    let adapters = adapters_of(&model, lora, module)?;
    let text = std::fs::read_to_string(folder.join(CONFIG)).map_err(of_config)?;
    let config: Config = serde_json::from_str(&text).map_err(|error| PeftError::Contents {
        file: CONFIG,
        reason: error.to_string(),
    })?;
    config.check(lora)?;
    let tensors = tensors_of(&folder.join(WEIGHTS)).map_err(of_weights)?;
    let filled = fill(model, tensors, places(&adapters), |_, _| None);
    let (model, rest) = filled.map_err(of_weights)?;
    match rest.into_keys().next() {
        Some(name) => Err(PeftError::Contents {
            file: WEIGHTS,
            reason: format!("{name} is of no adapter of the model"),
        }),
        None => Ok(model),
    }
}

impl Config {
    /// Whether these are adapters as Burn has them, of this rank and scale.
    fn check(&self, lora: &Lora) -> Result<(), PeftError> {
        let scale = match self.use_rslora {
            true => self.lora_alpha / (self.r as f64).sqrt(),
            false => self.lora_alpha / self.r as f64,
        };
        let expected = lora.alpha / lora.rank as f64;
        let reason = if self.peft_type != "LORA" || self.use_dora {
            "it is not of LoRA, but of another method".into()
        } else if self.lora_bias || self.bias.as_deref().is_some_and(|bias| bias != "none") {
            "it has trained biases".into()
        } else if !self.rank_pattern.is_empty() || !self.alpha_pattern.is_empty() {
            "its adapters differ in rank or scale".into()
        } else if self
            .modules_to_save
            .as_ref()
            .is_some_and(|it| !it.is_empty())
        {
            "it has modules that were trained as a whole".into()
        } else if self.fan_in_fan_out {
            "its weights are transposed (`fan_in_fan_out`)".into()
        } else if self.r != lora.rank || (scale - expected).abs() > 1e-9 * expected.abs() {
            let rank = lora.rank;
            format!(
                "its rank is {} and its scale {scale}, those of the model are {rank} and {expected}",
                self.r
            )
        } else {
            return Ok(());
        };
        Err(PeftError::Contents {
            file: CONFIG,
            reason,
        })
    }
}

fn of_weights(error: SafetensorsError) -> PeftError {
    let file = WEIGHTS;
    match error {
        SafetensorsError::File { source, .. } => PeftError::File { file, source },
        SafetensorsError::Contents { reason, .. } => PeftError::Contents { file, reason },
        error => PeftError::Contents {
            file,
            reason: error.to_string(),
        },
    }
}

fn of_config(source: io::Error) -> PeftError {
    let file = CONFIG;
    PeftError::File { file, source }
}

impl Adapter {
    /// The paths of its factors, and the names that they have in the file.
    fn names(&self) -> [(String, String); 2] {
        let name = |factor| format!("base_model.model.{}.lora_{factor}.weight", self.module);
        let [a, b] = self.factors.clone();
        [(a, name("A")), (b, name("B"))]
    }
}

/// Finds pairs of factors by their paths.
fn adapters_of<M: Module>(
    model: &M,
    lora: &Lora,
    module: impl Fn(&str) -> String,
) -> Result<Vec<Adapter>, PeftError> {
    #[derive(Default)]
    struct Found(Vec<(String, Shape)>);
    impl PathVisitor for Found {
        fn visit<const D: usize>(&mut self, path: &Path, param: &Param<Tensor<D>>) {
            let container = path.last().map(|(_, container)| container.as_str());
            if container == Some(ADAPTER) {
                self.0.push((path_text(path), param.lazy_shape()));
            }
        }
    }
    let mut found = Found::default();
    model.visit(&mut WithPaths::new(&mut found));
    let of_model = |reason| PeftError::Model { reason };
    let mut adapters = Vec::new();
    for pair in found.0.chunks(2) {
        let [(a, shape), (b, _)] = pair else {
            unreachable!("an adapter has two factors");
        };
        let weight = a.trim_end_matches(".lora.a").trim_end_matches(".nf4");
        let Some(of) = weight.strip_suffix(".weight") else {
            let reason = format!("{weight} has an adapter: files have those of a `weight` alone");
            return Err(of_model(reason));
        };
        let (rank, of_lora) = (shape[1], lora.rank);
        if rank != of_lora {
            let reason = format!("the adapter of {weight} is of rank {rank}, and not {of_lora}");
            return Err(of_model(reason));
        }
        adapters.push(Adapter {
            factors: [a.clone(), b.clone()],
            module: module(of),
        });
    }
    match adapters.is_empty() {
        true => Err(of_model(
            "the model has no adapters: `apply_lora` attaches some".into(),
        )),
        false => Ok(adapters),
    }
}

/// The container of factors.
const ADAPTER: &str = "Struct:LoraAdapter";

/// Where factors are in the files. PyTorch has them as weights of linear layers, `[output, input]`.
fn places(adapters: &[Adapter]) -> impl Fn(&Path) -> Option<Place> {
    let names: BTreeMap<_, _> = adapters.iter().flat_map(Adapter::names).collect();
    move |path| {
        let name = names.get(&path_text(path))?.clone();
        Some(Place {
            name,
            is_transposed: true,
        })
    }
}

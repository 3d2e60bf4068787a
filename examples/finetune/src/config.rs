//! `config.json`, in the words of transformers 4 and 5.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use burn_lean::operations::nn::RotaryScaling;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// Fields that change nothing here: names, tokens, how to write the file, what only Python does.
const WITHOUT_EFFECT: &str = "_name_or_path architectures auto_map chunk_size_feed_forward \
    dtype id2label initializer_range label2id output_attentions output_hidden_states \
    pad_token_id pretraining_tp problem_type return_dict torch_dtype transformers_version use_cache";

/// A decoder of the Llama family.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// `vocab_size`
    pub vocabulary: usize,
    /// `bos_token_id` and `eos_token_id`
    pub special_tokens: Vec<u32>,
    /// `hidden_size`
    pub width: usize,
    /// `intermediate_size`
    pub hidden: usize,
    /// `num_attention_heads`
    pub heads: usize,
    /// `num_key_value_heads`
    pub key_heads: usize,
    /// `head_dim`
    pub head_size: usize,
    /// `rms_norm_eps`
    pub epsilon: f64,
    /// `max_position_embeddings`
    pub positions: usize,
    /// `rope_theta`
    pub theta: f32,
    /// How positions are stretched.
    pub scaling: RotaryScaling,
    /// Whether queries and keys are normalized, head by head.
    pub has_query_norms: bool,
    /// Whether the layers of queries, keys and values have biases.
    pub has_query_biases: bool,
    /// Whether the layer behind attention has a bias.
    pub has_output_bias: bool,
    /// Whether the layers of the feed-forward network have biases.
    pub has_mlp_biases: bool,
    /// Whether the embedding is the head, too.
    pub is_tied: bool,
    /// Whether bitsandbytes has packed the layers into four bits.
    pub is_packed: bool,
    /// The sliding window of each layer.
    pub windows: Vec<Option<usize>>,
}

impl ModelConfig {
    /// Reads `config.json` in a folder.
    ///
    /// # Errors
    ///
    /// It is not there, or [`parse`](Self::parse) refuses it.
    pub fn open(folder: &Path) -> Result<Self> {
        let path = folder.join("config.json");
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        Self::parse(&text).with_context(|| path.display().to_string())
    }

    /// # Errors
    ///
    /// It is of another model, or has a field that is not known here.
    pub fn parse(text: &str) -> Result<Self> {
        let mut fields = Fields(serde_json::from_str(text)?);
        let model: String = fields.need("model_type")?;
        ensure!(
            ["llama", "mistral", "qwen2", "qwen3"].contains(&&*model),
            "`model_type` is `{model}`; known are `llama`, `mistral`, `qwen2`, `qwen3`"
        );
        let is_qwen = model.starts_with("qwen");
        for field in WITHOUT_EFFECT.split_whitespace() {
            fields.0.remove(field);
        }
        fields.only("hidden_act", &"silu".into())?;
        fields.only("attention_dropout", &0.0.into())?;
        fields.only("is_encoder_decoder", &false.into())?;
        let width: usize = fields.need("hidden_size")?;
        let heads: usize = fields.need("num_attention_heads")?;
        ensure!(heads > 0, "`num_attention_heads` is 0");
        let key_heads: usize = match fields.take("num_key_value_heads")? {
            Some(key_heads) => key_heads,
            None if model == "llama" => heads,
            None => bail!("`num_key_value_heads` is missing"),
        };
        ensure!(
            key_heads > 0 && heads.is_multiple_of(key_heads),
            "{heads} heads are no multiple of {key_heads} heads of keys"
        );
        let head_size: usize = match fields.take("head_dim")? {
            Some(size) => size,
            None if model == "qwen3" => 128,
            None => width / heads,
        };
        ensure!(
            head_size.is_multiple_of(2),
            "`head_dim` is odd: {head_size}"
        );
        let positions = fields.need("max_position_embeddings")?;
        let layers = fields.need("num_hidden_layers")?;
        let has_biases = match model.as_str() {
            "llama" | "qwen3" => fields.take("attention_bias")?.unwrap_or(false),
            _ => false,
        };
        let mlp_bias: Option<bool> = match model.as_str() {
            "llama" => fields.take("mlp_bias")?,
            _ => None,
        };
        let windows = match is_qwen {
            true => windows_of_qwen(&mut fields, layers)?,
            false if model == "mistral" => {
                let is_told = fields.0.contains_key("sliding_window");
                let window = fields.take("sliding_window")?;
                vec![window.or((!is_told).then_some(4096)); layers]
            }
            false => vec![None; layers],
        };
        ensure!(!windows.contains(&Some(0)), "`sliding_window` is 0");
        let (theta, scaling) = positions_of(&mut fields, positions)?;
        let quantization: Option<Map<_, _>> = fields.take("quantization_config")?;
        let is_packed = quantization.is_some();
        if let Some(quantization) = quantization {
            check_quantization(Fields(quantization)).context("`quantization_config`")?;
        }
        let mut special_tokens: Vec<u32> = Vec::new();
        for name in ["bos_token_id", "eos_token_id"] {
            match fields.take::<OneOrMore>(name)? {
                Some(OneOrMore::One(token)) => special_tokens.push(token),
                Some(OneOrMore::More(tokens)) => special_tokens.extend(tokens),
                None => {}
            }
        }
        let config = Self {
            vocabulary: fields.need("vocab_size")?,
            special_tokens,
            width,
            hidden: fields.need("intermediate_size")?,
            heads,
            key_heads,
            head_size,
            epsilon: fields.take("rms_norm_eps")?.unwrap_or(1e-6),
            positions,
            theta,
            scaling,
            has_query_norms: model == "qwen3",
            has_query_biases: has_biases || model == "qwen2",
            has_output_bias: has_biases,
            has_mlp_biases: mlp_bias.unwrap_or(false),
            is_tied: fields.take("tie_word_embeddings")?.unwrap_or(false),
            is_packed,
            windows,
        };
        fields.finish()?;
        Ok(config)
    }
}

/// As transformers have it.
#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMore {
    One(u32),
    More(Vec<u32>),
}

/// Base and scaling: from `rope_parameters`, or `rope_theta` and `rope_scaling` of before.
fn positions_of(fields: &mut Fields, positions: usize) -> Result<(f32, RotaryScaling)> {
    let theta: Option<f32> = fields.take("rope_theta")?;
    let old: Option<Map<String, Value>> = fields.take("rope_scaling")?;
    let new: Option<Map<String, Value>> = fields.take("rope_parameters")?;
    ensure!(
        old.is_none() || new.is_none(),
        "`rope_scaling` and `rope_parameters` say the same twice"
    );
    let mut fields = Fields(new.or(old).unwrap_or_default());
    let theta = fields.take("rope_theta")?.or(theta).unwrap_or(10_000.0);
    let older: Option<String> = fields.take("type")?;
    let name = fields.take("rope_type")?.or(older);
    let name = name.unwrap_or_else(|| "default".into());
    let original: Option<Value> = fields.take("original_max_position_embeddings")?;
    if ["llama3", "yarn"].contains(&name.as_str()) {
        let original = original.unwrap_or_else(|| positions.into());
        let field = "original_max_position_embeddings";
        fields.0.insert(field.into(), original);
    }
    fields.0.insert("rope_type".into(), name.into());
    let scaling = serde_json::from_value(Value::Object(fields.0));
    Ok((theta, scaling.context("`rope_parameters`")?))
}

/// The files themselves have the rest, such as which layers are packed.
fn check_quantization(mut fields: Fields) -> Result<()> {
    for (name, known) in [
        ("quant_method", Value::from("bitsandbytes")),
        ("load_in_4bit", true.into()),
        ("load_in_8bit", false.into()),
        ("bnb_4bit_quant_type", "nf4".into()),
        ("bnb_4bit_use_double_quant", true.into()),
        ("bnb_4bit_quant_storage", "uint8".into()),
    ] {
        fields.only(name, &known)?;
    }
    let is_of_python = |name: &str| name.starts_with("llm_int8_") || name.starts_with('_');
    fields.0.retain(|name, _| !is_of_python(name));
    // The type of the activations: bf16 here, as over weights that are packed here.
    fields.0.remove("bnb_4bit_compute_dtype");
    fields.finish()
}

fn windows_of_qwen(fields: &mut Fields, layers: usize) -> Result<Vec<Option<usize>>> {
    let is_on = fields.take("use_sliding_window")?.unwrap_or(false);
    let window = fields.take("sliding_window")?.unwrap_or(4096);
    let first: usize = fields.take("max_window_layers")?.unwrap_or(28);
    let types: Option<Vec<String>> = fields.take("layer_types")?;
    let types = types.unwrap_or_else(|| {
        let name = |layer| match is_on && layer >= first {
            true => "sliding_attention".into(),
            false => "full_attention".into(),
        };
        (0..layers).map(name).collect()
    });
    ensure!(
        types.len() == layers,
        "`layer_types` is not of {layers} layers"
    );
    let window_of = |name: &String| match name.as_str() {
        "full_attention" => Ok(None),
        "sliding_attention" if is_on => Ok(Some(window)),
        other => bail!("`layer_types` has `{other}`, with `use_sliding_window` {is_on}"),
    };
    types.iter().map(window_of).collect()
}

/// The fields of an object that nobody has read yet.
struct Fields(Map<String, Value>);

impl Fields {
    /// The value of a field. Null is none.
    fn take<T: DeserializeOwned>(&mut self, name: &str) -> Result<Option<T>> {
        match self.0.remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => Some(serde_json::from_value(value))
                .transpose()
                .with_context(|| format!("`{name}`")),
        }
    }

    fn need<T: DeserializeOwned>(&mut self, name: &str) -> Result<T> {
        let value = self.take(name)?;
        value.with_context(|| format!("`{name}` is missing"))
    }

    /// Reads a field that may have one value only.
    fn only(&mut self, name: &str, expected: &Value) -> Result<()> {
        let Some(found) = self.take::<Value>(name)? else {
            return Ok(());
        };
        // `0` and `0.0` are one number, and two values.
        let is_same_number = expected.is_number() && found.as_f64() == expected.as_f64();
        ensure!(
            found == *expected || is_same_number,
            "`{name}` is {found}; only {expected} is known"
        );
        Ok(())
    }

    /// Refuses what nobody has read.
    fn finish(self) -> Result<()> {
        let mut unknown = self.0.into_iter().filter(|(_, value)| !value.is_null());
        match unknown.next() {
            Some((name, value)) => bail!(
                "`{name}` ({value}) is not known here, and may change what the model computes; remove it if \
                 it does not"
            ),
            None => Ok(()),
        }
    }
}

//! Models beside those of transformers: logits, losses of 20 steps, and weights after them.
//!
//! `reference/make.py` made the folders.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use burn::optim::AdamWConfig;
use burn::store::{ModuleStore, SafetensorsStore, bridge};
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use burn_lean::WithGradientRelease;
use burn_lean::safetensors::save;
use finetune::config::ModelConfig;
use finetune::model::{Batch, Decoder, open};
use serde::Deserialize;
use tempfile::TempDir;

const MODELS: [&str; 4] = ["llama", "mistral", "qwen2", "qwen3"];

#[derive(Deserialize)]
struct Known {
    tokens: Vec<Vec<i32>>,
    /// Of the last two tokens of each text.
    logits: Vec<Vec<Vec<f32>>>,
    losses: Vec<f32>,
    /// Every n-th number of each weight, after all steps.
    after: BTreeMap<String, Vec<f32>>,
}

fn folder(model: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/reference")
        .join(model)
}

fn known(model: &str) -> Known {
    serde_json::from_str(&fs::read_to_string(folder(model).join("known.json")).unwrap()).unwrap()
}

fn load(folder: &Path, device: &Device) -> anyhow::Result<Decoder> {
    let model = ModelConfig::open(folder)?.init(24, device);
    Ok(open(folder)?.load(model, str::to_owned)?)
}

fn tokens(known: &Known, device: &Device) -> Tensor<2, Int> {
    let shape = [known.tokens.len(), known.tokens[0].len()];
    Tensor::from_data(TensorData::new(known.tokens.concat(), shape), device)
}

/// The largest difference from the logits of the last two tokens.
fn distance(model: &Decoder, known: &Known, logits: &[Vec<Vec<f32>>]) -> f32 {
    let found = model.logits(tokens(known, &Device::flex()));
    let last = found.dims()[1] - 2;
    let found = found
        .narrow(1, last, 2)
        .into_data()
        .try_to_vec::<f32>()
        .unwrap();
    let expected = logits.concat().concat();
    assert_eq!(found.len(), expected.len());
    largest(&found, &expected)
}

fn largest(one: &[f32], other: &[f32]) -> f32 {
    let differences = one
        .iter()
        .zip(other)
        .map(|(one, other)| (one - other).abs());
    differences.fold(0.0, f32::max)
}

#[test]
fn logits_are_those_of_transformers() {
    for name in MODELS {
        let known = known(name);
        let model = load(&folder(name), &Device::flex()).unwrap();
        let distance = distance(&model, &known, &known.logits);
        println!("{name}: {distance:e}");
        assert!(distance < 1e-4, "{name}: {distance}");
    }
}

#[test]
fn stretched_positions_are_those_of_transformers() {
    let known_of_all = known("llama");
    let text = fs::read_to_string(folder("llama").join("known.json")).unwrap();
    let logits: serde_json::Value = serde_json::from_str(&text).unwrap();
    for scaling in ["linear", "llama3", "yarn"] {
        let config = fs::read_to_string(folder("llama").join(format!("config-{scaling}.json")));
        let config = ModelConfig::parse(&config.unwrap()).unwrap();
        let weights = open(&folder("llama")).unwrap();
        let model = config.init(24, &Device::flex());
        let model = weights.load(model, str::to_owned).unwrap();
        let expected: Vec<Vec<Vec<f32>>> =
            serde_json::from_value(logits[format!("logits_{scaling}")].clone()).unwrap();
        let distance = distance(&model, &known_of_all, &expected);
        println!("{scaling}: {distance:e}");
        assert!(distance < 1e-4, "{scaling}: {distance}");
    }
}

/// Sums of f32 are in another order, and AdamW divides by roots of small numbers: 20 steps at a rate of
/// 1e-2 bring weights of about 0.2 apart by less than 1e-3, and losses by less than 1e-4 of themselves.
#[test]
fn twenty_steps_are_those_of_torch() {
    for name in MODELS {
        let known = known(name);
        let device = Device::flex().autodiff();
        let mut model = load(&folder(name), &device).unwrap();
        let adamw = AdamWConfig::new().with_epsilon(1e-5).with_weight_decay(0.1);
        let mut optim = adamw.init().with_gradient_release();
        let all = tokens(&known, &device);
        let [texts, time] = all.dims();
        let places = (0..texts * time).filter(|at| (at + 1) % time != 0);
        let places: Vec<i64> = places.map(|at| at as i64).collect();
        let places = Tensor::<1, Int>::from_data(places.as_slice(), &device);
        let batch = Batch {
            targets: all.clone().narrow(1, 1, time - 1).flatten(0, 1),
            tokens: all,
            places,
        };
        let mut apart = 0.0f32;
        for &expected in &known.losses {
            let loss = model.loss(batch.clone());
            let value = loss.clone().into_scalar::<f32>();
            apart = apart.max((value - expected).abs() / expected);
            model = optim.backward(1e-2, loss, model);
        }
        assert!(apart < 1e-4, "losses of {name}: {apart}");

        let written = TempDir::new().unwrap();
        let file = written.path().join("model.safetensors");
        save(&model, file, str::to_owned, |_, _| DType::F32).unwrap();
        let found = values(written.path());
        assert!(found.keys().eq(known.after.keys()), "{name}: other tensors");
        for (of, expected) in &known.after {
            let step = (found[of].1.len() / 8).max(1);
            let found: Vec<f32> = found[of].1.iter().copied().step_by(step).collect();
            let apart = largest(&found, expected);
            assert!(
                found.len() == expected.len() && apart < 1e-3,
                "{name}, {of}: {apart}"
            );
        }
        println!("{name}: losses {apart:e}");
    }
}

/// The type of each tensor of a folder's files, and its numbers.
fn values(folder: &Path) -> BTreeMap<String, (DType, Vec<f32>)> {
    let mut all = BTreeMap::new();
    for file in fs::read_dir(folder).unwrap() {
        let file = file.unwrap().path();
        if file.extension().is_some_and(|it| it == "safetensors") {
            let mut store = SafetensorsStore::from_file(file);
            for (name, tensor) in store.get_all_tensors().unwrap() {
                let numbers = bridge::to_data(tensor).unwrap().iter::<f32>().collect();
                all.insert(name.clone(), (tensor.dtype, numbers));
            }
        }
    }
    all
}

#[test]
fn what_is_written_is_what_was_read() {
    for name in MODELS {
        let model = load(&folder(name), &Device::flex()).unwrap();
        let written = TempDir::new().unwrap();
        let of_file = values(&folder(name));
        let file = written.path().join("model.safetensors");
        save(&model, file, str::to_owned, |name, _| of_file[name].0).unwrap();
        assert_eq!(values(written.path()), of_file, "{name}");
    }
}

/// What is wrong with a copy of a reference that was changed.
fn error(model: &str, change: impl FnOnce(&Path)) -> String {
    let copy = TempDir::new().unwrap();
    for file in fs::read_dir(folder(model)).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), copy.path().join(file.file_name())).unwrap();
    }
    change(copy.path());
    format!("{:#}", load(copy.path(), &Device::flex()).unwrap_err())
}

fn with_config(folder: &Path, change: impl FnOnce(String) -> String) {
    let path = folder.join("config.json");
    let changed = change(fs::read_to_string(&path).unwrap());
    fs::write(path, changed).unwrap();
}

#[test]
fn files_that_do_not_fit_are_refused_in_words() {
    let missing = error("llama", |folder| {
        with_config(folder, |it| {
            it.replace("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3")
        });
    });
    assert!(
        missing.contains("model.layers.2.") && missing.contains("is in no file"),
        "{missing}"
    );
    let additional = error("llama", |folder| {
        with_config(folder, |it| {
            it.replace("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1")
        });
    });
    assert!(
        additional.contains("nothing that takes model.layers.1."),
        "{additional}"
    );
    let misshapen = error("llama", |folder| {
        with_config(folder, |it| {
            it.replace("\"vocab_size\": 48", "\"vocab_size\": 50")
        });
    });
    assert!(
        misshapen.contains(
            "model.embed_tokens.weight is [48, 32] in the file, and [50, 32] in the model"
        ),
        "{misshapen}"
    );
    let cut = error("llama", |folder| {
        let file = fs::File::options()
            .write(true)
            .open(folder.join("model.safetensors"));
        file.unwrap().set_len(60_000).unwrap();
    });
    assert!(cut.contains("model.safetensors"), "{cut}");
    let gone = error("mistral", |folder| {
        fs::remove_file(folder.join("model-00002-of-00002.safetensors")).unwrap();
    });
    assert!(gone.contains("model-00002-of-00002.safetensors"), "{gone}");
    let tied = error("llama", |folder| {
        with_config(folder, |it| {
            it.replace(
                "\"tie_word_embeddings\": false",
                "\"tie_word_embeddings\": true",
            )
        });
    });
    assert!(tied.contains("nothing that takes lm_head.weight"), "{tied}");
}

#[test]
fn configurations_that_are_not_understood_are_refused_in_words() {
    let text = fs::read_to_string(folder("llama").join("config.json")).unwrap();
    let error = |from: &str, to: &str| {
        assert!(text.contains(from));
        let error = ModelConfig::parse(&text.replace(from, to)).unwrap_err();
        format!("{error:#}")
    };
    let other = error("\"model_type\": \"llama\"", "\"model_type\": \"gemma2\"");
    assert!(other.contains("`model_type` is `gemma2`"), "{other}");
    let unknown = error("\"mlp_bias\"", "\"logit_scale\": 0.5, \"mlp_bias\"");
    assert!(unknown.contains("`logit_scale`"), "{unknown}");
    let scaling = error("\"rope_type\": \"default\"", "\"rope_type\": \"longrope\"");
    assert!(scaling.contains("`longrope`"), "{scaling}");
    let activation = error("\"silu\"", "\"gelu\"");
    assert!(activation.contains("`hidden_act`"), "{activation}");
    let dropout = error("\"attention_dropout\": 0.0", "\"attention_dropout\": 0.1");
    assert!(dropout.contains("`attention_dropout`"), "{dropout}");
    let missing = error("\"hidden_size\"", "\"_name_or_path\"");
    assert!(missing.contains("`hidden_size` is missing"), "{missing}");
}

#[test]
fn both_dialects_are_one_configuration() {
    for (name, old) in [
        (
            "config.json",
            r#""rope_theta": 10000.0, "rope_scaling": null"#,
        ),
        (
            "config-llama3.json",
            r#""rope_theta": 10000.0, "rope_scaling": {"type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": 16}"#,
        ),
    ] {
        let text = fs::read_to_string(folder("llama").join(name)).unwrap();
        let new = ModelConfig::parse(&text).unwrap();
        let mut fields: serde_json::Value = serde_json::from_str(&text).unwrap();
        let object = fields.as_object_mut().unwrap();
        object.remove("rope_parameters").unwrap();
        object.remove("dtype");
        let old: serde_json::Value = serde_json::from_str(&format!("{{{old}}}")).unwrap();
        object.extend(old.as_object().unwrap().clone());
        object.insert("torch_dtype".into(), "bfloat16".into());
        assert_eq!(ModelConfig::parse(&fields.to_string()).unwrap(), new);
    }
}

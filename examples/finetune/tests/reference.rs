//! Models beside those of transformers, peft and bitsandbytes: logits, losses of some steps, and weights after
//! them.
//!
//! `reference/make.py` and `reference/adapters.py` made the folders.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use burn::module::{Lora, Module, ParamGroup};
use burn::optim::AdamWConfig;
use burn::store::{ModuleStore, SafetensorsStore, bridge};
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use burn_lean::operations::Nf4;
use burn_lean::safetensors::save;
use burn_lean::{WithGradientRelease, load_adapters, save_adapters};
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

fn tensor(tokens: &[Vec<i32>], device: &Device) -> Tensor<2, Int> {
    let shape = [tokens.len(), tokens[0].len()];
    Tensor::from_data(TensorData::new(tokens.concat(), shape), device)
}

/// All tokens but the first are learned.
fn batch(tokens: &[Vec<i32>], device: &Device) -> Batch {
    let all = tensor(tokens, device);
    let [texts, time] = all.dims();
    let places = (0..texts * time).filter(|at| (at + 1) % time != 0);
    let places: Vec<i64> = places.map(|at| at as i64).collect();
    Batch {
        targets: all.clone().narrow(1, 1, time - 1).flatten(0, 1),
        tokens: all,
        places: Tensor::from_data(places.as_slice(), device),
    }
}

/// The largest difference from the logits of the last two tokens.
fn distance(model: &Decoder, tokens: &[Vec<i32>], logits: &[Vec<Vec<f32>>]) -> f32 {
    let found = model.logits(tensor(tokens, &Device::flex()));
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
        let distance = distance(&model, &known.tokens, &known.logits);
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
        let distance = distance(&model, &known_of_all.tokens, &expected);
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
        let batch = batch(&known.tokens, &device);
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

/// What `adapters.py` knows.
#[derive(Deserialize)]
struct KnownAdapters {
    tokens: Vec<Vec<i32>>,
    losses: Vec<f32>,
    losses_nf4: Vec<f32>,
    logits_nf4: Vec<Vec<Vec<f32>>>,
}

fn known_adapters() -> KnownAdapters {
    let text = fs::read_to_string(folder("adapters").join("known.json"));
    serde_json::from_str(&text.unwrap()).unwrap()
}

fn lora() -> Lora {
    Lora::new(2, 4.0).set_param_group(ParamGroup::from_predicate("layers"))
}

/// A model in four bits, which has the shape of `llama`.
fn load_nf4(file: &Path, nf4: Nf4, device: &Device) -> anyhow::Result<Decoder> {
    let model = ModelConfig::open(&folder("llama"))?.init(24, device);
    Ok(open(file)?.load_nf4(nf4, model, str::to_owned)?)
}

#[test]
fn four_bits_are_those_of_bitsandbytes() {
    let (known, file) = (known_adapters(), folder("adapters/nf4"));
    let model = load_nf4(&file, Nf4::new(), &Device::flex()).unwrap();
    let distance = distance(&model, &known.tokens, &known.logits_nf4);
    println!("{distance:e}");
    assert!(distance < 1e-4, "{distance}");

    let written = TempDir::new().unwrap();
    let to = written.path().join("model.safetensors");
    save(&model, &to, str::to_owned, |_, dtype| dtype).unwrap();
    let (found, expected) = (bytes(&to), bytes(&file.join("model.safetensors")));
    assert_eq!(
        Vec::from_iter(found.keys()),
        Vec::from_iter(expected.keys())
    );
    for (name, expected) in expected {
        let found = &found[&name];
        assert_eq!((found.0, &found.1), (expected.0, &expected.1), "{name}");
        match name.contains(".quant_state.") {
            true => {
                let json = |bytes| serde_json::from_slice::<serde_json::Value>(bytes).unwrap();
                assert_eq!(json(&found.2), json(&expected.2), "{name}");
            }
            false => assert!(found.2 == expected.2, "{name}"),
        }
    }
    // What we pack has the same bits: all but the last bit of the mean of scales, and what is of it.
    let dense = load(&folder("llama"), &Device::flex()).unwrap();
    let group = ParamGroup::from_predicate("layers");
    let packed = Nf4::new().with_group(group).pack(dense).unwrap();
    save(&packed, &to, str::to_owned, |_, dtype| dtype).unwrap();
    let packed = bytes(&to);
    for (name, (dtype, _, expected)) in bytes(&file.join("model.safetensors")) {
        if dtype == DType::U8 && name.ends_with(".weight") {
            assert!(packed[&name].2 == expected, "{name}");
        }
    }
}

/// What `adapters.py check` reads with bitsandbytes, which should print what this does.
#[test]
#[ignore = "writes into the folder NF4_FOLDER"]
fn a_folder_for_bitsandbytes() {
    let to = PathBuf::from(std::env::var("NF4_FOLDER").unwrap());
    let dense = load(&folder("llama"), &Device::flex()).unwrap();
    let group = ParamGroup::from_predicate("layers");
    let packed = Nf4::new().with_group(group).pack(dense).unwrap();
    let to = to.join("model.safetensors");
    save(&packed, to, str::to_owned, |_, dtype| dtype).unwrap();
    let logits = packed.logits(tensor(&known_adapters().tokens, &Device::flex()));
    let [_, time, _] = logits.dims();
    println!("{}", logits.slice([0..2, time - 1..time, 0..4]));
}

/// The type, the shape and the bytes of each tensor of a file. The length of a text differs by its blanks.
fn bytes(file: &Path) -> BTreeMap<String, (DType, Vec<usize>, Vec<u8>)> {
    let mut store = SafetensorsStore::from_file(file);
    let tensors = store.get_all_tensors().unwrap().iter();
    let all = tensors.map(|(name, tensor)| {
        let data = bridge::to_data(tensor).unwrap();
        let shape = match name.contains(".quant_state.") {
            true => Vec::new(),
            false => data.shape().to_vec(),
        };
        (
            name.clone(),
            (tensor.dtype, shape, data.as_bytes().to_vec()),
        )
    });
    all.collect()
}

/// Sums of f32 are in another order, and AdamW divides by roots of small numbers: 50 steps at a rate of 1e-3
/// bring factors of about 0.2 apart by less than 1e-5, and losses by less than 1e-5 of themselves.
#[test]
fn fifty_steps_of_adapters_are_those_of_peft() {
    let (known, device) = (known_adapters(), Device::flex().autodiff());
    let dense = load(&folder("llama"), &device).unwrap().apply_lora(lora());
    let nf4 = Nf4::new().with_lora(lora());
    let packed = load_nf4(&folder("adapters/nf4"), nf4, &device).unwrap();
    for (model, trained, losses) in [
        (dense, "trained", &known.losses),
        (packed, "trained-nf4", &known.losses_nf4),
    ] {
        let initial = folder("adapters/initial");
        let mut model = load_adapters(model, &lora(), initial, str::to_owned).unwrap();
        let adamw = AdamWConfig::new().with_epsilon(1e-5).with_weight_decay(0.1);
        let mut optim = adamw.init().with_gradient_release();
        let batch = batch(&known.tokens, &device);
        let mut apart = 0.0f32;
        for &expected in losses {
            let loss = model.loss(batch.clone());
            let value = loss.clone().into_scalar::<f32>();
            apart = apart.max((value - expected).abs() / expected);
            model = optim.backward(1e-3, loss, model);
        }
        println!("{trained}: losses {apart:e}");
        assert!(apart < 1e-5, "losses of {trained}: {apart}");

        let written = TempDir::new().unwrap();
        save_adapters(&model, &lora(), written.path(), str::to_owned).unwrap();
        let (found, expected) = (
            values(written.path()),
            values(&folder("adapters").join(trained)),
        );
        let initial = values(&folder("adapters/initial"));
        assert!(found.keys().eq(expected.keys()));
        let (mut apart, mut moved) = (0.0f32, 0.0f32);
        for (name, (_, expected)) in &expected {
            apart = apart.max(largest(&found[name].1, expected));
            moved = moved.max(largest(&initial[name].1, expected));
        }
        println!("{trained}: factors {apart:e} apart, moved by {moved:e}");
        assert!(apart < 1e-5 && moved > 1e-2, "{trained}: {apart}, {moved}");
    }
}

#[test]
fn other_bits_are_refused_in_words() {
    let file = folder("adapters/nf4").join("model.safetensors");
    let config = fs::read_to_string(folder("adapters/nf4/config.json")).unwrap();
    assert!(ModelConfig::parse(&config).unwrap().is_packed);
    for (from, to, expected) in [
        (r#""nf4""#, r#""fp4""#, r#"`bnb_4bit_quant_type` is "fp4""#),
        ("bitsandbytes", "gptq", r#"`quant_method` is "gptq""#),
        (
            r#""load_in_8bit": false"#,
            r#""load_in_8bit": true"#,
            "`load_in_8bit` is true",
        ),
        (
            "bnb_4bit_compute_dtype",
            "bits",
            "`bits` (\"float32\") is not known",
        ),
    ] {
        let refused = format!(
            "{:#}",
            ModelConfig::parse(&config.replace(from, to)).unwrap_err()
        );
        let is_told = refused.contains("quantization_config") && refused.contains(expected);
        assert!(is_told, "{from}: {refused}");
    }
    let model = || {
        ModelConfig::open(&folder("llama"))
            .unwrap()
            .init(24, &Device::flex())
    };
    let dense = open(&file).unwrap().load(model(), str::to_owned);
    let dense = dense.unwrap_err().to_string();
    assert!(
        dense.contains("it is packed: `load_nf4` reads it"),
        "{dense}"
    );

    let copy = TempDir::new().unwrap();
    let changed = |from: &str, to: &str| {
        let mut all = fs::read(&file).unwrap();
        let at = all.windows(from.len()).position(|it| it == from.as_bytes());
        let at = at.unwrap_or_else(|| panic!("there is no {from}"));
        all[at..at + from.len()].copy_from_slice(to.as_bytes());
        let path = copy.path().join("model.safetensors");
        fs::write(&path, all).unwrap();
        format!(
            "{:#}",
            load_nf4(&path, Nf4::new(), &Device::flex()).unwrap_err()
        )
    };
    for (from, to, expected) in [
        (
            "bitsandbytes__nf4",
            "bitsandbytes__fp4",
            "it is in fp4, and not in nf4",
        ),
        (
            "\"blocksize\": 64",
            "\"blocksize\": 32",
            "known is nf4 in blocks of 64",
        ),
        (
            "nested_blocksize",
            "nested_blockless",
            "its scales are not packed",
        ),
        (
            ".nested_absmax",
            ".nested_absmix",
            "nested_absmax is in no file",
        ),
        (
            "\"shape\": [32",
            "\"shape\": [30",
            "or cut: the weight is [32",
        ),
    ] {
        let refused = changed(from, to);
        assert!(refused.contains(expected), "{from}: {refused}");
    }
    let adapted = load_nf4(&file, Nf4::new().with_lora(lora()), &Device::flex()).unwrap();
    let saved = save(&adapted, copy.path().join("new"), str::to_owned, |_, it| it);
    let saved = saved.unwrap_err().to_string();
    assert!(saved.contains("save the model without adapters"), "{saved}");
}

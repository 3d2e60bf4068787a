//! Weights from and to `*.safetensors` files: beside those of Burn's store, and with their memory.

use std::fs;
use std::path::Path;

use burn::store::{BurnToPyTorchAdapter, ModuleSnapshot, PyTorchToBurnAdapter, SafetensorsStore};
use burn_lean::MixedPrecision;
use burn_lean::operations::nn;
use burn_lean::safetensors::{SafetensorsError, Weights, read_all, save};

use crate::harness::prelude::*;
use crate::heap::peak_of;

#[derive(Module, Debug)]
struct Net {
    tokens: nn::Embedding,
    norm: nn::LayerNorm,
    layers: Vec<nn::Linear>,
}

/// Blocks are shorter than the embedding, and no divisor of it.
fn net(seed: usize) -> Net {
    let linear = |from, to| nn::LinearConfig::new(from, to).init(&flex());
    let net = Net {
        tokens: nn::EmbeddingConfig::new(301, 499).init(&flex()),
        norm: nn::LayerNormConfig::new(499).init(&flex()),
        layers: vec![linear(499, 307), linear(307, 3)],
    };
    numbered_from(net, seed)
}

fn same_name(name: &str) -> String {
    name.to_owned()
}

/// A folder with the weights of a model, as Burn's store writes them.
fn written(net: &Net) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.safetensors");
    let store = SafetensorsStore::from_file(file).with_to_adapter(BurnToPyTorchAdapter);
    net.save_into(&mut { store }).unwrap();
    folder
}

#[test]
fn files_are_those_of_burns_store() {
    let folder = written(&net(1));
    let loaded = Weights::open(folder.path()).unwrap();
    let loaded = loaded.load(net(2), same_name).unwrap();
    assert_eq!(bits(&loaded), bits(&net(1)));

    let file = folder.path().join("again.safetensors");
    save(&loaded, &file, same_name, |_, dtype| dtype).unwrap();
    let mut by_burn = net(3);
    let store = SafetensorsStore::from_file(file).with_from_adapter(PyTorchToBurnAdapter);
    by_burn.load_from(&mut { store }).unwrap();
    assert_eq!(bits(&by_burn), bits(&net(1)));
}

#[test]
fn types_are_those_that_are_asked_for() {
    let folder = written(&net(1));
    let half = Weights::open(folder.path()).unwrap();
    let half = half.with_precision(MixedPrecision::bf16());
    let half = half.load(net(2), same_name).unwrap();
    let cast = MixedPrecision::bf16().cast(net(1)).unwrap();
    assert_eq!(half.tokens.weight.val().dtype(), DType::BF16);
    assert_eq!(half.norm.gamma.val().dtype(), DType::F32);
    assert_eq!(bits(&half), bits(&cast));

    // The wide ones come first in the file, whatever their names.
    let file = folder.path().join("mixed.safetensors");
    let names = |name: &str| format!("the.{name}");
    let types = |name: &str, dtype| match name.starts_with("the.layers") {
        true => DType::F16,
        false => dtype,
    };
    save(&half, &file, names, types).unwrap();
    let mixed = Weights::open(&file).unwrap();
    let found: Vec<_> = mixed
        .tensors()
        .map(|(name, dtype, _)| (name.to_owned(), dtype))
        .collect();
    let expected = [
        ("the.layers.0.bias", DType::F16),
        ("the.layers.0.weight", DType::F16),
        ("the.layers.1.bias", DType::F16),
        ("the.layers.1.weight", DType::F16),
        ("the.norm.bias", DType::F32),
        ("the.norm.weight", DType::F32),
        ("the.tokens.weight", DType::BF16),
    ];
    assert_eq!(
        found,
        expected.map(|(name, dtype)| (name.to_owned(), dtype))
    );
    let mixed = mixed.load(net(2), names).unwrap();
    let rounded = half.layers[1].weight.val().inner().cast(DType::F16);
    let found = mixed.layers[1].weight.val().inner();
    found
        .into_data()
        .assert_eq(&rounded.cast(DType::F32).into_data(), true);
    assert_eq!(
        bits(&mixed.tokens),
        bits(&MixedPrecision::to_f32(half.tokens))
    );
}

#[test]
fn frozen_parameters_stay_frozen() {
    let folder = written(&net(1));
    let frozen = Weights::open(folder.path()).unwrap();
    let frozen = frozen.load(net(2).no_grad(), same_name).unwrap();
    assert!(!frozen.tokens.weight.is_require_grad());
    let trained = Weights::open(folder.path()).unwrap();
    let trained = trained.load(net(2), same_name).unwrap();
    assert!(trained.tokens.weight.is_require_grad());
}

/// The peak of a call, in what its result takes.
fn ratio<R>(call: impl FnOnce() -> R) -> (R, f64) {
    let before = crate::heap::HEAP.current_usage();
    let (result, peak) = peak_of(call);
    let taken = crate::heap::HEAP.current_usage() - before;
    (result, peak as f64 / taken as f64)
}

/// Layers of a megabyte each, more or less: the largest is a 25th of the model.
#[test]
fn a_block_is_all_that_reading_and_writing_need() {
    let layers = || -> Vec<nn::Linear> {
        let layer = |_| nn::LinearConfig::new(512, 500).init(&flex());
        (0..24).map(layer).collect()
    };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.safetensors");
    let by_burn = folder.path().join("by_burn.safetensors");
    alone(|| {
        let model = layers();
        read_all(&model);
        let (_, writing) = peak_of(|| save(&model, &file, same_name, |_, it| it).unwrap());
        let store = SafetensorsStore::from_file(by_burn).with_to_adapter(BurnToPyTorchAdapter);
        let (_, burns) = peak_of(|| model.save_into(&mut { store }).unwrap());
        println!("writing: {writing} bytes, with Burn's store {burns}");
        assert!(writing < 300_000 && burns > 4_000_000);
        drop(model);
        for precision in [None, Some(MixedPrecision::bf16())] {
            let (model, reading) = ratio(|| {
                let mut weights = Weights::open(&file).unwrap();
                if let Some(precision) = precision {
                    weights = weights.with_precision(precision);
                }
                let model = weights.load(layers(), same_name).unwrap();
                assert!(!model[0].weight.is_initialized());
                read_all(&model);
                model
            });
            println!("reading: {reading:.3} of the model");
            assert!(reading < 1.05, "{reading}");
            drop(model);
        }
    });
}

/// What is wrong with a folder that was changed.
fn refused(change: impl FnOnce(&Path), model: Net) -> String {
    let folder = written(&net(1));
    change(folder.path());
    let loaded = Weights::open(folder.path()).and_then(|it| it.load(model, same_name));
    loaded.unwrap_err().to_string()
}

#[test]
fn what_does_not_fit_is_refused() {
    let as_it_is = |_: &Path| {};
    let mut more = net(2);
    more.layers.push(nn::LinearConfig::new(3, 2).init(&flex()));
    let missing = refused(as_it_is, more);
    assert_eq!(missing, "layers.2.weight is in no file");
    let mut fewer = net(2);
    fewer.layers.pop();
    let additional = refused(as_it_is, fewer);
    assert_eq!(additional, "the model has nothing that takes layers.1.bias");
    let mut other = net(2);
    other.layers[1] = nn::LinearConfig::new(307, 4).init(&flex());
    let misshapen = refused(as_it_is, other);
    let expected = "layers.1.weight is [3, 307] in the file, and [4, 307] in the model";
    assert_eq!(misshapen, expected);

    let resize = |length: fn(u64) -> u64| {
        move |folder: &Path| {
            let file = folder.join("model.safetensors");
            let file = fs::File::options().write(true).open(file).unwrap();
            file.set_len(length(file.metadata().unwrap().len()))
                .unwrap();
        }
    };
    for length in [|it| it - 1, |it| it + 1] {
        let cut = refused(resize(length), net(2));
        assert!(cut.contains("bytes, and not the"), "{cut}");
    }
    for length in [|_| 4, |_| 50] {
        let cut = refused(resize(length), net(2));
        assert!(cut.ends_with("it is cut, or no safetensors file"), "{cut}");
    }
    let gone = refused(
        |folder| fs::remove_file(folder.join("model.safetensors")).unwrap(),
        net(2),
    );
    assert!(gone.contains("model.safetensors: "), "{gone}");

    let with_index = |index: &'static str| {
        move |folder: &Path| {
            let [from, to] = ["model.safetensors", "a.safetensors"].map(|it| folder.join(it));
            fs::rename(from, to).unwrap();
            fs::write(folder.join("model.safetensors.index.json"), index).unwrap();
        }
    };
    for (index, expected) in [
        (
            r#"{"weight_map": {"x": "a.safetensors"}}"#,
            "a.safetensors has no x",
        ),
        (
            r#"{"weight_map": {"norm.bias": "a.safetensors"}}"#,
            "a.safetensors has layers.0.bias, which is not told",
        ),
        (
            r#"{"weight_map": {"x": "../a.safetensors"}}"#,
            "is of another folder",
        ),
        (
            r#"{"weight_map": {"x": "b.safetensors"}}"#,
            "b.safetensors: ",
        ),
        ("{}", "missing field `weight_map`"),
    ] {
        let error = refused(with_index(index), net(2));
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn only_floats_are_read_and_written() {
    #[derive(Module, Debug)]
    struct Counted {
        count: Param<Tensor<1, Int>>,
    }
    let folder = written(&net(1));
    let count = Tensor::from_ints([1], &flex());
    let counted = Counted {
        count: Param::initialized(burn::module::ParamId::new(), count),
    };
    let integers = folder.path().join("integers.safetensors");
    counted
        .save_into(&mut SafetensorsStore::from_file(&integers))
        .unwrap();
    let error = Weights::open(integers).unwrap_err().to_string();
    assert!(error.starts_with("count is in I"), "{error}");
    let saved = save(&counted, folder.path().join("new"), same_name, |_, it| it);
    assert!(
        saved
            .unwrap_err()
            .to_string()
            .starts_with("count is in integers")
    );
    let loaded = Weights::open(folder.path())
        .unwrap()
        .load(counted, same_name);
    let error = loaded.unwrap_err().to_string();
    assert_eq!(error, "count is in integers; known are F32, BF16 and F16");
    let file = folder.path().join("new.safetensors");
    let twice = save(&net(1), &file, |_| "a".to_owned(), |_, dtype| dtype);
    let twice = twice.unwrap_err().to_string();
    assert!(twice.ends_with("two parameters have the name a"), "{twice}");
    let saved = save(&net(1), &file, same_name, |_, _| DType::F64);
    assert!(matches!(saved, Err(SafetensorsError::Type { .. })));
    assert!(!file.exists());
}

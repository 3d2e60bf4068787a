//! Adapters in the files of Python's peft: `reference/adapters.py` has made some.

use std::path::{Path, PathBuf};

use burn::module::Lora;
use burn_lean::operations::Nf4;
use burn_lean::{PeftError, load_adapters, save_adapters};

use crate::harness::distance;
use crate::harness::prelude::*;

#[derive(Module, Debug)]
struct Mlp {
    first: Linear,
    second: Linear,
}

impl Mlp {
    fn new() -> Self {
        let linear = |from, to, first: usize| {
            let mut at = first;
            let mut numbers = |shape: Vec<usize>| {
                at += 1;
                numbers::<1>([shape.iter().product()], at - 1, &flex()) * 0.6
            };
            let mut layer: Linear = LinearConfig::new(from, to).init(&flex());
            layer.weight = Param::from_tensor(numbers(vec![from, to]).reshape([from, to]));
            layer.bias = Some(Param::from_tensor(numbers(vec![to])));
            layer
        };
        Self {
            first: linear(4, 6, 1),
            second: linear(6, 4, 3),
        }
    }

    fn adapted() -> Self {
        numbered_from(Self::new().apply_lora(lora()), 900).with_base(Self::new())
    }

    /// With the numbers of the adapters of another one.
    fn with_base(self, base: Self) -> Self {
        self.load_record(base.into_record().allow_partial(true))
    }

    fn loss(&self, step: usize) -> Tensor<1> {
        let x = self
            .first
            .forward(numbers::<2>([3, 4], step, &flex()))
            .tanh();
        self.second.forward(x).square().mean()
    }
}

fn lora() -> Lora {
    Lora::new(2, 4.0)
}

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/promises/reference/peft")
        .join(name)
}

fn load(model: Mlp, name: &str) -> Result<Mlp, PeftError> {
    load_adapters(model, &lora(), folder(name), str::to_string)
}

#[test]
fn trained_as_by_pytorch() {
    let mut model = load(Mlp::adapted(), "initial").unwrap();
    let trained = load(Mlp::adapted(), "trained").unwrap();
    assert!(distance(&bits(&model), &bits(&trained)) > 0.1);
    let adamw = AdamWConfig::new()
        .with_epsilon(1e-8)
        .with_weight_decay(0.01);
    let mut optim = adamw.init().with_gradient_release();
    for step in 0..50 {
        model = optim.backward(1e-2, model.loss(step), model);
    }
    let distance = distance(&bits(&model), &bits(&trained));
    // Roundings of 50 steps, and Adam's of small gradients.
    assert!(distance < 1e-5, "{distance:e}");
}

#[test]
fn what_is_saved_is_loaded() {
    let model = load(Mlp::adapted(), "trained").unwrap();
    let to = tempfile::tempdir().unwrap();
    let names = |module: &str| format!("model.{module}_proj");
    save_adapters(&model, &lora(), to.path(), names).unwrap();
    let again = load_adapters(Mlp::adapted(), &lora(), to.path(), names).unwrap();
    assert_eq!(bits(&again), bits(&model));
    // Over a packed base, too.
    let packed = Nf4::new().with_lora(lora()).pack(Mlp::new()).unwrap();
    let packed = load_adapters(packed, &lora(), to.path(), names).unwrap();
    let factors = |bits: Bits| -> Vec<Vec<u32>> {
        let factors = bits.into_iter().filter(|(path, _)| path.contains("lora."));
        factors.map(|(_, bits)| bits).collect()
    };
    assert_eq!(factors(bits(&packed)), factors(bits(&model)));
    let same = tempfile::tempdir().unwrap();
    save_adapters(&packed, &lora(), same.path(), names).unwrap();
    let again = load_adapters(Mlp::adapted(), &lora(), same.path(), names).unwrap();
    assert_eq!(bits(&again), bits(&model));
}

#[test]
fn what_does_not_fit_is_refused() {
    let text = |result: Result<Mlp, PeftError>| result.unwrap_err().to_string();
    let no_adapters = text(load(Mlp::new(), "trained"));
    assert!(no_adapters.contains("no adapters"), "{no_adapters}");
    let others = Lora::new(2, 8.0);
    let other_scale = load_adapters(Mlp::adapted(), &others, folder("trained"), str::to_string);
    let other_scale = text(other_scale);
    assert!(
        other_scale.contains("its scale 2, those of the model are 2 and 4"),
        "{other_scale}"
    );
    let other_rank = Lora::new(3, 6.0);
    let other_rank = load_adapters(
        Mlp::adapted(),
        &other_rank,
        folder("trained"),
        str::to_string,
    );
    assert!(text(other_rank).contains("is of rank 2, and not 3"));
    let nowhere = text(load(Mlp::adapted(), "nowhere"));
    assert!(nowhere.starts_with("adapter_config.json: "), "{nowhere}");
    let renamed = load_adapters(Mlp::adapted(), &lora(), folder("trained"), |module| {
        module.replace("second", "third")
    });
    let renamed = text(renamed);
    assert!(
        renamed.contains("third.lora_A.weight is in no file"),
        "{renamed}"
    );
    let smaller = Vec::from([Mlp::adapted().first]);
    let smaller = load_adapters(smaller, &lora(), folder("trained"), |_| "first".into());
    assert!(
        smaller
            .unwrap_err()
            .to_string()
            .contains("second.lora_A.weight")
    );

    let to = tempfile::tempdir().unwrap();
    let part = Vec::from([Mlp::adapted().first]);
    save_adapters(&part, &lora(), to.path(), |_| "first".into()).unwrap();
    let part = load_adapters(Mlp::adapted(), &lora(), to.path(), str::to_string);
    assert!(text(part).contains("second.lora_A.weight is in no file"));
    let with_config = |change: &dyn Fn(&mut serde_json::Value)| {
        for file in ["adapter_model.safetensors", "adapter_config.json"] {
            std::fs::copy(folder("trained").join(file), to.path().join(file)).unwrap();
        }
        let file = to.path().join("adapter_config.json");
        let mut config = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        change(&mut config);
        std::fs::write(file, config.to_string()).unwrap();
        load_adapters(Mlp::adapted(), &lora(), to.path(), str::to_string)
    };
    for (field, value, expected) in [
        ("peft_type", serde_json::json!("LOHA"), "another method"),
        ("use_dora", serde_json::json!(true), "another method"),
        ("bias", serde_json::json!("all"), "trained biases"),
        ("lora_bias", serde_json::json!(true), "trained biases"),
        (
            "rank_pattern",
            serde_json::json!({"first": 4}),
            "differ in rank",
        ),
        ("fan_in_fan_out", serde_json::json!(true), "transposed"),
        ("modules_to_save", serde_json::json!(["head"]), "as a whole"),
        ("use_rslora", serde_json::json!(true), "its scale 2.8"),
        ("r", serde_json::json!(4), "its rank is 4"),
        (
            "lora_alpha",
            serde_json::json!("four"),
            "adapter_config.json: ",
        ),
    ] {
        let refused = text(with_config(&|config| config[field] = value.clone()));
        assert!(refused.contains(expected), "{field}: {refused}");
    }
    let cut = with_config(&|_| {
        let file = to.path().join("adapter_model.safetensors");
        let bytes = std::fs::read(&file).unwrap();
        std::fs::write(file, &bytes[..bytes.len() / 2]).unwrap();
    });
    let cut = text(cut);
    assert!(cut.starts_with("adapter_model.safetensors: "), "{cut}");
}

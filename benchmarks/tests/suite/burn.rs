//! Both versions of Burn: each mode is the same training, and saves what it is for.

use super::{Outcome, measured};
use serde_json::{Value, json};

const MODELS: [&str; 3] = ["vit", "gpt", "encoder"];

impl Outcome {
    /// The run of a model whose subject has these values.
    fn find(&self, model: &str, subject: &[(&str, Value)]) -> &Value {
        let found = self.runs().iter().find(|run| {
            let has = |(name, value): &(&str, Value)| run["subject"][name] == *value;
            run["case"]["model"]["kind"] == model && subject.iter().all(has)
        });
        found.unwrap_or_else(|| panic!("no run of {model} with {subject:?}"))
    }

    /// The runs of a version of Burn.
    fn of_burn(&self, burn: &str) -> Vec<&Value> {
        let runs = self.runs().iter();
        runs.filter(|run| run["subject"]["burn"] == burn).collect()
    }
}

fn mode(mode: &str, checkpointing: &str) -> Vec<(&'static str, Value)> {
    vec![
        ("mode", json!(mode)),
        ("checkpointing", json!(checkpointing)),
    ]
}

fn peak(run: &Value) -> u64 {
    run["memory"]["peak_bytes"].as_u64().unwrap()
}

fn loss(run: &Value) -> f64 {
    run["final_loss"].as_f64().unwrap()
}

/// Every mode of a model is the same training, checkpointing or not.
fn is_same_training(run: &Value, plain: &Value) {
    let subject = &run["subject"];
    assert_eq!(run["weights_digest"], plain["weights_digest"], "{subject}");
    assert_eq!(run["final_loss"], plain["final_loss"], "{subject}");
    assert_eq!(run["step_seconds"].as_array().unwrap().len(), 2);
}

/// The bytes of a run, by what they are for and by the part of a step.
fn is_itemised(run: &Value) {
    let subject = &run["subject"];
    let bytes = |name: &str| run["memory"][name].as_i64().unwrap();
    let item = |name: &str| run["items"][name].as_i64().unwrap();
    let sum = item("parameters") + item("optimizer_state") + item("held");
    assert_eq!(sum + item("temporaries"), run["memory"]["peak_bytes"]);
    assert_eq!(item("parameters"), 4 * run["parameters"].as_i64().unwrap());
    assert!(item("largest_gradient") < item("parameters"));
    assert!(item("optimizer_state") >= 2 * item("parameters"));
    assert!(item("activations") > 0);
    // The backward pass leaves every gradient alive, or none. The containers of the gradients count
    // too, and the batch is freed: some percent of a model this small.
    let gradients = item("gradients") as f64 / item("parameters") as f64;
    let expected = f64::from(subject["mode"] != "release");
    let is_near = (gradients - expected).abs() < 0.15;
    assert!(is_near, "{subject}: {gradients}");
    // The heap needs no synchronization: the observed step is like the others.
    let highest = ["peak_in_forward", "peak_in_backward", "peak_in_step"].map(bytes);
    let highest = *highest.iter().max().unwrap() as f64;
    assert!((highest / bytes("peak_bytes") as f64 - 1.0).abs() < 0.02);
}

#[test]
fn every_mode_is_measured_and_itemised() {
    let outcome = measured(
        "--burn 0.21,0.22 --part vit,gpt,encoder --batch-size 2 --mode plain,release,unarmed,ideal \
         --checkpointing none,balanced,blocks,automatic",
    );
    // On 0.21, plain Burn has two kinds of checkpointing, the unarmed optimizer three and the armed
    // ones four. On 0.22, plain Burn and release have three.
    assert_eq!(outcome.of_burn("0.21").len(), 3 * (2 + 3 + 2 * 4));
    assert_eq!(outcome.of_burn("0.22").len(), 3 * 2 * 3);
    for model in MODELS {
        let run = |burn: &str, mode: &str, checkpointing: &str| {
            let mut subject = self::mode(mode, checkpointing);
            subject.push(("burn", json!(burn)));
            outcome.find(model, &subject)
        };
        let first = run("0.21", "plain", "none");
        for burn in ["0.21", "0.22"] {
            let plain = run(burn, "plain", "none");
            let runs = outcome.of_burn(burn).into_iter();
            for run in runs.filter(|run| run["case"] == plain["case"]) {
                is_same_training(run, plain);
                for size in ["parameters", "largest_parameter"] {
                    assert_eq!(run[size], first[size], "{model}");
                }
                if run["subject"]["mode"] == "ideal" {
                    assert!(run["items"].is_null() && run["step_milliseconds"].is_null());
                } else {
                    is_itemised(run);
                }
            }
        }
        // A model this small has next to no gradients, but activations.
        let [kept, blocks] = ["none", "blocks"].map(|of| run("0.22", "release", of));
        let activations = |run: &Value| run["items"]["activations"].as_u64().unwrap();
        assert!(activations(blocks) < activations(kept), "{model}");
        assert!(peak(blocks) < peak(kept), "{model}");
    }
    for text in [
        "| Burn 0.21, flex ",
        "| Burn 0.22, flex ",
        "Burn 0.21, flex: release over plain",
        "unarmed over plain",
        "release, blocks over plain",
        "release, automatic over plain",
        "the same weights",
        "Burn 0.22, flex: release over plain",
        "Burn 0.22, flex: plain, blocks over plain",
        "Burn 0.22, flex, blocks checkpointing: release over plain",
        "Burn 0.21: plain, automatic: ",
        "Burn 0.22: unarmed: ",
        "--no-pytorch",
    ] {
        outcome.mentions(text);
    }
    assert!(!outcome.table.contains("OTHER"), "{}", outcome.table);
}

#[test]
fn weights_are_the_same_within_one_arithmetic() {
    let outcome = measured(
        "--burn 0.21 --part vit,gpt,encoder --batch-size 8 --mode plain,release --checkpointing \
         none,blocks,automatic --linear default,flat --loss-chunk whole,16",
    );
    let [whole, chunks] = [Value::Null, json!(16)];
    let [burn, flat] = [json!("default"), json!("flat")];
    let by_default = [burn.clone(), whole.clone()];
    let one_flat = [flat.clone(), whole];
    let in_chunks = [burn, chunks.clone()];
    let of_vit = [&by_default, &one_flat];
    let of_language = [&by_default, &one_flat, &in_chunks, &[flat, chunks]];
    // Plain Burn and release, and release with two ways to recompute.
    let arithmetics = of_vit.len() + 2 * of_language.len();
    assert_eq!(outcome.runs().len(), 4 * arithmetics);
    let find = |model: &str, mode: &str, checkpointing: &str, [linear, chunk]: &[Value; 2]| {
        let mut subject = self::mode(mode, checkpointing);
        subject.extend([("linear", linear.clone()), ("loss_chunk", chunk.clone())]);
        outcome.find(model, &subject)
    };

    for (model, all) in [
        ("vit", &of_vit[..]),
        ("gpt", &of_language[..]),
        ("encoder", &of_language[..]),
    ] {
        let mut digests: Vec<&Value> = Vec::new();
        for arithmetic in all {
            let plain = find(model, "plain", "none", arithmetic);
            let kept = |run: &Value| run["items"]["activations"].as_u64().unwrap();
            for checkpointing in ["none", "blocks", "automatic"] {
                let release = find(model, "release", checkpointing, arithmetic);
                is_same_training(release, plain);
                // A plan is made whatever the loss: chunks come after what is cut by itself.
                let is_recomputed = kept(release) < kept(plain) * 3 / 4;
                assert_eq!(is_recomputed, checkpointing != "none", "{model}: {release}");
                let backend = release["backend"].as_str().unwrap();
                assert_eq!(backend.contains("flat-linear"), arithmetic[0] == "flat");
            }
            let usual = find(model, "plain", "none", &by_default);
            assert!((loss(plain) / loss(usual) - 1.0).abs() < 1e-3);
            digests.push(&plain["weights_digest"]);
        }
        // Each adds up in another order.
        digests.sort_by_key(|digest| digest.as_str());
        digests.dedup();
        assert_eq!(digests.len(), all.len(), "{model}");
    }

    // What each is for. Without a gradient for every image, the largest of which takes 65 kB:
    let vit = |arithmetic| find("vit", "release", "blocks", arithmetic);
    let largest = 4 * vit(&by_default)["largest_parameter"].as_u64().unwrap();
    let saved = peak(vit(&by_default)) - peak(vit(&one_flat));
    assert!(
        saved > 2 * largest,
        "{saved} bytes, {largest} in a parameter"
    );
    // With the scores of one chunk, of 256 tokens in all. Plain Burn saves as well, as the gradient
    // of the scores is that of one chunk; but it keeps the scores of all.
    for model in ["gpt", "encoder"] {
        let peak = |mode, arithmetic| peak(find(model, mode, "none", arithmetic));
        let saved = |mode| peak(mode, &by_default) - peak(mode, &in_chunks);
        let scores = 4 * 256 * 512;
        let (release, plain) = (saved("release"), saved("plain"));
        assert!(release > plain + scores / 2, "{model}: {release}, {plain}");
    }
    for text in [
        "| release, blocks, flat linear, loss chunk 16 ",
        "flex, flat linear, loss chunk 16: release, blocks over plain",
        "flex, loss chunk 16: release over plain",
        "ViT tiny, loss chunk 16: ",
    ] {
        outcome.mentions(text);
    }
    assert!(!outcome.table.contains("OTHER"), "{}", outcome.table);
}

#[test]
fn chunks_of_the_loss_and_optimizers_are_measured_on_burn_0_22() {
    let outcome = measured(
        "--burn 0.22 --part gpt,encoder --batch-size 8 --mode plain,release --checkpointing none \
         --loss-chunk whole,16 --optimizer adam,adamw,sgd,lion,adafactor",
    );
    assert_eq!(outcome.runs().len(), 2 * 2 * 2 * 5);
    for model in ["gpt", "encoder"] {
        for optimizer in ["adam", "adamw", "sgd", "lion", "adafactor"] {
            let run = |mode: &str, chunk: Value| {
                let mut subject = self::mode(mode, "none");
                subject.extend([("optimizer", json!(optimizer)), ("loss_chunk", chunk)]);
                outcome.find(model, &subject)
            };
            let (whole, chunks) = (run("release", Value::Null), run("release", json!(16)));
            is_same_training(whole, run("plain", Value::Null));
            is_same_training(chunks, run("plain", json!(16)));
            assert!((loss(whole) / loss(chunks) - 1.0).abs() < 1e-3);
            // The scores of 256 tokens, and of 16.
            let saved = peak(whole).saturating_sub(peak(chunks));
            assert!(saved > 4 * 256 * 512 / 4, "{model}, {optimizer}: {saved}");
        }
    }
}

#[test]
fn lean_operations_keep_less() {
    let outcome = measured(
        "--burn 0.22 --part vit,gpt,encoder --batch-size 8 --operations default,lean --mode \
         plain,release --checkpointing none,blocks,nested",
    );
    for model in MODELS {
        for checkpointing in ["none", "blocks", "nested"] {
            if model != "vit" && checkpointing == "nested" {
                continue;
            }
            let run = |mode: &str, operations: &str| {
                let mut subject = self::mode(mode, checkpointing);
                subject.push(("operations", json!(operations)));
                outcome.find(model, &subject)
            };
            let lean = run("release", "lean");
            is_same_training(lean, run("plain", "lean"));
            let burns = run("release", "default");
            assert!((loss(lean) / loss(burns) - 1.0).abs() < 1e-3);
            assert!(peak(lean) < peak(burns), "{model}, {checkpointing}");
        }
    }
    outcome.mentions("release, lean operations");
    assert!(!outcome.table.contains("OTHER"), "{}", outcome.table);
}

#[test]
fn the_decoder_has_the_sizes_of_the_command_line() {
    let outcome = measured(
        "--burn 0.21,0.22 --part gpt --batch-size 2 --mode release --checkpointing none \
         --vocabulary 300,600 --context 16",
    );
    assert_eq!(outcome.runs().len(), 4);
    let block = 2 * 2 * 64 + 4 * (64 * 64 + 64) + 2 * 64 * 256 + 256 + 64;
    for (run, vocabulary) in outcome.runs().iter().zip([300, 300, 600, 600]) {
        let shape = &run["case"]["model"];
        assert_eq!(shape["vocabulary"], vocabulary);
        assert_eq!(shape["context"], 16);
        let parameters = 2 * vocabulary * 64 + 16 * 64 + 2 * block + 2 * 64;
        assert_eq!(run["parameters"], parameters);
        assert_eq!(run["largest_parameter"], vocabulary * 64);
    }
    let name = "| GPT tiny, vocabulary 300, context 16, batch 2 ";
    assert_eq!(outcome.table.matches(name).count(), 2, "{}", outcome.table);
}

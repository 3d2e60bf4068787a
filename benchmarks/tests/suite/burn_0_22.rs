//! Burn 0.22 beside Burn 0.21 and PyTorch.

use super::{Outcome, is_itemised, is_same_training, measured, mentions, runs};
use serde_json::{Value, json};
use std::fs;
use tempfile::TempDir;

/// The runs of a model on a version of Burn.
fn of<'a>(json: &'a Value, model: &str, burn: &str) -> Vec<&'a Value> {
    let of_model = runs(json)
        .iter()
        .filter(|run| run["case"]["model"]["kind"] == model);
    of_model
        .filter(|run| run["subject"]["burn"] == burn)
        .collect()
}

#[test]
fn both_versions_are_in_one_table() {
    let home = TempDir::new().unwrap();
    let options = "--burn 0.21,0.22 --no-pytorch --part vit,gpt,encoder --batch-size 2 --mode \
         plain,release,unarmed --checkpointing none,balanced,blocks";
    let Outcome { table, json } = measured(home.path(), options);
    assert!(json["versions"]["burn_0_22"].as_str().unwrap() > "0.22");
    for model in ["vit", "gpt", "encoder"] {
        // On 0.21, blocks need the backend of gradient release.
        assert_eq!(of(&json, model, "0.21").len(), 2 + 3 + 3, "{model}");
        let found = of(&json, model, "0.22");
        assert_eq!(found.len(), 2 * 3, "{model}");
        let of_mode = |mode: &str, checkpointing: &str| {
            let run = found.iter().find(|run| {
                run["subject"]["mode"] == mode && run["subject"]["checkpointing"] == checkpointing
            });
            *run.unwrap()
        };
        let plain = of_mode("plain", "none");
        for run in &found {
            is_same_training(run, plain);
            is_itemised(run);
            assert_eq!(run["parameters"], of(&json, model, "0.21")[0]["parameters"]);
        }
        // A model this small has next to no gradients, but activations.
        let run = |checkpointing| of_mode("release", checkpointing);
        let peak = |checkpointing| run(checkpointing)["memory"]["peak_bytes"].as_u64().unwrap();
        let kept = |checkpointing| run(checkpointing)["items"]["activations"].as_u64().unwrap();
        assert!(kept("blocks") < kept("none"), "{model}");
        assert!(peak("blocks") < peak("none"), "{model}");
    }

    assert!(!table.contains("OTHER"), "{table}");
    for text in [
        "| Burn 0.21, flex ",
        "| Burn 0.22, flex ",
        "Burn 0.22, flex: release over plain",
        "Burn 0.22, flex: plain, blocks over plain",
        "Burn 0.22, flex, blocks checkpointing: release over plain",
        "the same weights",
        "Burn 0.22: unarmed, none: ",
    ] {
        mentions(&table, text);
    }
    let plot = fs::read_to_string(home.path().join("memory.svg")).unwrap();
    assert!(plot.contains("Burn 0.21, flex: plain") && plot.contains("Burn 0.22, flex: plain"));
}

#[test]
fn chunks_of_the_loss_and_optimizers_are_measured() {
    let home = TempDir::new().unwrap();
    let options = "--burn 0.22 --no-pytorch --part gpt,encoder --batch-size 8 --mode plain,release \
         --checkpointing none --loss-chunk whole,16 --optimizer adam,adamw,sgd,lion,adafactor";
    let Outcome { table, json } = measured(home.path(), options);
    assert_eq!(runs(&json).len(), 2 * 2 * 2 * 5);
    assert!(!table.contains("OTHER"), "{table}");
    for model in ["gpt", "encoder"] {
        for optimizer in ["adam", "adam-w", "sgd", "lion", "adafactor"] {
            let with = |chunk: Value| -> Vec<&Value> {
                let mut runs = of(&json, model, "0.22");
                runs.retain(|run| {
                    let subject = &run["subject"];
                    subject["optimizer"] == optimizer && subject["loss_chunk"] == chunk
                });
                runs
            };
            let (whole, chunks) = (with(Value::Null), with(json!(16)));
            for runs in [&whole, &chunks] {
                assert_eq!(runs[0]["weights_digest"], runs[1]["weights_digest"]);
            }
            let loss = |run: &Value| run["final_loss"].as_f64().unwrap();
            assert!((loss(whole[0]) / loss(chunks[0]) - 1.0).abs() < 1e-3);
            // The scores of 256 tokens, and of 16.
            let peak = |run: &Value| run["memory"]["peak_bytes"].as_u64().unwrap();
            let saved = peak(whole[1]).saturating_sub(peak(chunks[1]));
            assert!(saved > 4 * 256 * 512 / 4, "{model}, {optimizer}: {saved}");
        }
    }
}

#[test]
fn the_decoder_has_the_sizes_of_the_command_line() {
    let home = TempDir::new().unwrap();
    let options = "--burn 0.21,0.22 --no-pytorch --part gpt --batch-size 2 --mode release --checkpointing \
         none --vocabulary 300 --context 16";
    let Outcome { table, json } = measured(home.path(), options);
    let block = 2 * 2 * 64 + 4 * (64 * 64 + 64) + 2 * 64 * 256 + 256 + 64;
    let parameters = 2 * 300 * 64 + 16 * 64 + 2 * block + 2 * 64;
    assert_eq!(runs(&json).len(), 2);
    for run in runs(&json) {
        assert_eq!(run["case"]["model"]["vocabulary"], 300);
        assert_eq!(run["case"]["model"]["context"], 16);
        assert_eq!(run["parameters"], parameters);
        assert_eq!(run["largest_parameter"], 300 * 64);
    }
    let name = "| GPT tiny, vocabulary 300, context 16, batch 2 ";
    assert_eq!(table.matches(name).count(), 2, "{table}");
}

#[test]
fn lean_operations_keep_less() {
    let home = TempDir::new().unwrap();
    let options = "--burn 0.22 --no-pytorch --part vit,gpt,encoder --batch-size 8 --operations default,lean \
         --mode plain,release --checkpointing none,blocks,nested";
    let Outcome { table, json } = measured(home.path(), options);
    assert!(!table.contains("OTHER"), "{table}");
    mentions(&table, "release, lean operations");
    for (model, checkpointing) in [
        ("vit", "none"),
        ("vit", "blocks"),
        ("vit", "nested"),
        ("gpt", "none"),
        ("gpt", "blocks"),
        ("encoder", "none"),
        ("encoder", "blocks"),
    ] {
        let runs = of(&json, model, "0.22");
        let run = |operations: &str, mode: &str| {
            let found = runs.iter().find(|run| {
                let subject = &run["subject"];
                subject["operations"] == operations
                    && subject["mode"] == mode
                    && subject["checkpointing"] == checkpointing
            });
            *found.unwrap()
        };
        let loss = |run: &Value| run["final_loss"].as_f64().unwrap();
        let peak = |run: &Value| run["memory"]["peak_bytes"].as_u64().unwrap();
        let (burns, lean) = (run("default", "release"), run("lean", "release"));
        assert_eq!(
            lean["weights_digest"],
            run("lean", "plain")["weights_digest"]
        );
        assert!((loss(lean) / loss(burns) - 1.0).abs() < 1e-3);
        assert!(peak(lean) < peak(burns), "{model}, {checkpointing}");
    }
}

#[test]
fn what_is_not_there_is_named() {
    let home = TempDir::new().unwrap();
    let options =
        "--burn 0.22 --no-pytorch --part gpt,vocabulary --mode release --checkpointing automatic";
    let Outcome { table, json } = measured(home.path(), options);
    assert!(runs(&json).is_empty());
    for text in [
        "Burn 0.22: release, automatic: ",
        "vocabulary of GPT tiny: ",
    ] {
        mentions(&table, text);
    }
}

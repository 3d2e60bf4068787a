//! The choices that change weights by rounding: `--linear` and `--loss-chunk`.

use super::{Outcome, measured, mentions, runs};
use serde_json::{Value, json};
use tempfile::TempDir;

/// The run of a model with these settings.
fn find<'a>(
    json: &'a Value,
    model: &str,
    mode: &str,
    checkpointing: &str,
    [linear, loss_chunk]: &[Value; 2],
) -> &'a Value {
    let found = runs(json).iter().find(|run| {
        let subject = &run["subject"];
        run["case"]["model"]["kind"] == model
            && subject["mode"] == mode
            && subject["checkpointing"] == checkpointing
            && subject["linear"] == *linear
            && subject["loss_chunk"] == *loss_chunk
    });
    found.unwrap_or_else(|| panic!("{model}, {mode}, {checkpointing}, {linear}, {loss_chunk}"))
}

#[test]
fn weights_are_the_same_within_one_arithmetic() {
    let home = TempDir::new().unwrap();
    let options = "--burn 0.21 --no-pytorch --part vit,gpt,encoder --batch-size 8 --mode plain,release \
         --checkpointing none,blocks,automatic --linear default,flat --loss-chunk whole,16";
    let Outcome { table, json } = measured(home.path(), options);

    let [whole, chunks] = [Value::Null, json!(16)];
    let [burn, flat] = [json!("default"), json!("flat")];
    let by_default = [burn.clone(), whole.clone()];
    let one_flat = [flat.clone(), whole];
    let in_chunks = [burn, chunks.clone()];
    let of_vit = [&by_default, &one_flat];
    let of_language = [&by_default, &one_flat, &in_chunks, &[flat, chunks]];
    // Plain Burn and release, and release with two ways to recompute.
    assert_eq!(
        runs(&json).len(),
        4 * (of_vit.len() + 2 * of_language.len())
    );

    for (model, all) in [
        ("vit", &of_vit[..]),
        ("gpt", &of_language[..]),
        ("encoder", &of_language[..]),
    ] {
        let mut digests: Vec<&Value> = Vec::new();
        for arithmetic in all {
            let run = |mode, checkpointing| find(&json, model, mode, checkpointing, arithmetic);
            let plain = run("plain", "none");
            assert!(plain["recomputed"].is_null());
            for checkpointing in ["none", "blocks", "automatic"] {
                let release = run("release", checkpointing);
                assert_eq!(
                    plain["weights_digest"], release["weights_digest"],
                    "{model}, {checkpointing}, {arithmetic:?}"
                );
                // A plan is made whatever the loss: chunks come after what is cut by itself.
                let recomputed = &release["recomputed"];
                let is_planned = recomputed["planned_bytes"].is_u64();
                assert_eq!(is_planned, checkpointing == "automatic", "{recomputed}");
                let backend = release["backend"].as_str().unwrap();
                assert_eq!(backend.contains("flat-linear"), arithmetic[0] == "flat");
            }
            let loss = |run: &Value| run["final_loss"].as_f64().unwrap();
            let usual = find(&json, model, "plain", "none", &by_default);
            assert!((loss(plain) / loss(usual) - 1.0).abs() < 1e-3);
            digests.push(&plain["weights_digest"]);
        }
        // Each adds up in another order.
        digests.sort_by_key(|digest| digest.as_str());
        digests.dedup();
        assert_eq!(digests.len(), all.len(), "{model}");
    }

    // What each is for. Without a gradient for every image, the largest of which takes 65 kB:
    let vit = |arithmetic| find(&json, "vit", "release", "blocks", arithmetic);
    let bytes = |run: &Value| run["memory"]["peak_bytes"].as_u64().unwrap();
    let largest = 4 * vit(&by_default)["largest_parameter"].as_u64().unwrap();
    let saved = bytes(vit(&by_default)) - bytes(vit(&one_flat));
    assert!(
        saved > 2 * largest,
        "{saved} bytes, {largest} in a parameter"
    );
    // With the scores of one chunk, of 256 tokens in all. Plain Burn saves as well, as the gradient
    // of the scores is that of one chunk; but it keeps the scores of all.
    for model in ["gpt", "encoder"] {
        let peak = |mode, arithmetic| bytes(find(&json, model, mode, "none", arithmetic));
        let saved = |mode| peak(mode, &by_default) - peak(mode, &in_chunks);
        let scores = 4 * 256 * 512;
        let (release, plain) = (saved("release"), saved("plain"));
        assert!(release > plain + scores / 2, "{model}: {release}, {plain}");
    }

    assert!(!table.contains("OTHER"), "{table}");
    for text in [
        "| release, blocks, flat linear, loss chunk 16 ",
        "flex, flat linear, loss chunk 16: release, blocks over plain",
        "flex, loss chunk 16: release over plain",
        "ViT tiny: loss chunk 16: ",
    ] {
        mentions(&table, text);
    }
}

#[test]
fn vocabularies_and_timelines_are_those_of_the_arithmetic() {
    let home = TempDir::new().unwrap();
    let options = "--burn 0.21 --no-pytorch --part gpt,vocabulary --batch-size 2 --mode release \
         --checkpointing none --linear default,flat --loss-chunk 8 --memory-timeline";
    let Outcome { table, json } = measured(home.path(), options);
    let searched: Vec<_> = json["vocabulary"].as_array().unwrap().iter().collect();
    assert_eq!(searched.len(), 2);
    for (found, linear) in searched.into_iter().zip(["default", "flat"]) {
        assert_eq!(
            (&found["linear"], &found["loss_chunk"]),
            (&json!(linear), &json!(8))
        );
    }
    mentions(
        &table,
        "GPT tiny (Burn 0.21, flex, flat linear, loss chunk 8)",
    );

    for (run, file) in runs(&json).iter().zip([
        "timelines/gpt-tiny-batch-2-flex-loss-chunk-8-release.json.gz",
        "timelines/gpt-tiny-batch-2-flex-flat-linear-loss-chunk-8-release.json.gz",
    ]) {
        assert_eq!(run["timeline"]["file"], file);
        assert_eq!(run["timeline"]["weights_digest"], run["weights_digest"]);
        assert!(home.path().join(file).exists());
    }
    assert_ne!(
        runs(&json)[0]["weights_digest"],
        runs(&json)[1]["weights_digest"]
    );
}

//! Files: those of our recorder, of PyTorch, and those that are neither.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use lean_timeline::Snapshot;
use lean_timeline::analysis::{Peak, Totals};
use lean_timeline::snapshot::{Category, PhaseKind, SnapshotError};
use serde_json::{Value, json};
use tempfile::{NamedTempFile, TempDir};

use crate::example::{holder, sample, step};

fn written(snapshot: &Snapshot) -> Vec<u8> {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("written.json");
    snapshot.save(&file).unwrap();
    fs::read(file).unwrap()
}

fn json_of(snapshot: &Snapshot) -> Value {
    serde_json::from_slice(&written(snapshot)).unwrap()
}

fn read(text: impl AsRef<[u8]>) -> Result<Snapshot, SnapshotError> {
    let file = NamedTempFile::new().unwrap();
    fs::write(&file, text).unwrap();
    Snapshot::load(&file)
}

/// A recording with a workspace at its peak, and others.
fn sampled() -> Snapshot {
    let mut snapshot = step();
    let samples = [(2, 181, 185), (7, 185, 300), (11, 80, 146)];
    let samples = samples.map(|(tick, in_use, peak)| sample(tick, in_use, peak));
    snapshot.samples = samples.into();
    snapshot.warnings = vec!["\"a\"\n{b}".into()];
    snapshot
}

#[test]
fn what_is_saved_is_loaded() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("run.json");
    for snapshot in [Snapshot::default(), step(), sampled()] {
        snapshot.save(&file).unwrap();
        assert_eq!(Snapshot::load(&file).unwrap(), snapshot);
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

/// What memory_viz shows of an allocation.
#[test]
fn an_event_names_parameter_operation_phase_and_category() {
    let json = json_of(&sampled());
    let events = json["device_traces"][0].as_array().unwrap();
    let find = |field: &str, value: Value| {
        let found = events.iter().find(|event| event[field] == value);
        found
            .unwrap_or_else(|| panic!("no {field} {value}"))
            .clone()
    };
    let mut gradient = find("category", json!("gradient"));
    gradient["addr"].take();
    let frames = json!([{"filename": "add", "line": 0, "name": "two.weight"}]);
    let expected = json!({
        "action": "alloc", "addr": null, "size": 40, "stream": 0, "time_us": 30, "frames": frames,
        "category": "gradient", "user_metadata": "backward of step 1", "tick": 3
    });
    assert_eq!(gradient, expected);
    let delta = find("size", json!(25));
    let phase = "optimizer of step 1, stepping two.weight";
    assert_eq!(
        [&delta["user_metadata"], &delta["category"]],
        [phase, "temporary"]
    );
    // Without an event of this category the page fails.
    find("category", json!("unknown"));
}

/// PyTorch's tools see allocations and releases alone.
#[test]
fn others_count_the_same_peak() {
    for snapshot in [step(), sampled()] {
        let json = json_of(&snapshot);
        let (mut most, mut live) = (0, HashMap::new());
        for event in json["device_traces"][0].as_array().unwrap() {
            let (address, size) = (event["addr"].as_u64(), event["size"].as_u64().unwrap());
            match event["action"].as_str().unwrap() {
                "alloc" => assert_eq!(live.insert(address, size), None),
                "free_completed" => assert_eq!(live.remove(&address), Some(size)),
                _ => {}
            }
            most = most.max(live.values().sum());
        }
        let peak = Peak::of(&snapshot, &Totals::of(&snapshot)).unwrap();
        assert_eq!(most, peak.bytes);
        // The blocks of a segment lie side by side, and those in use are what is held at the end.
        let segment = &json["segments"][0];
        let begin = segment["address"].as_u64().unwrap();
        let mut address = begin;
        for block in segment["blocks"].as_array().unwrap() {
            assert_eq!(block["address"], address);
            if block["state"] == "active_allocated" {
                assert_eq!(live.remove(&Some(address)), block["size"].as_u64());
            }
            address += block["size"].as_u64().unwrap();
        }
        assert_eq!(
            (&segment["total_size"], live.len()),
            (&json!(address - begin), 0)
        );
    }
}

#[test]
fn the_ending_of_a_file_makes_it_a_trace_for_perfetto() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("run.perfetto.json");
    sampled().save(&file).unwrap();
    let json: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let of = |kind: &str, name: &str| -> Vec<Value> {
        let events = json["traceEvents"].as_array().unwrap().iter();
        let of = events.filter(|event| event["ph"] == kind && event["name"] == name);
        of.cloned().collect()
    };
    let backward = &of("X", "backward")[0];
    assert_eq!([&backward["ts"], &backward["dur"]], [20, 30]);
    assert_eq!(of("X", "two.weight").len(), 1);
    assert_eq!((of("C", "held").len(), of("C", "in use").len()), (12, 12));
    assert_eq!(of("C", "held")[3]["args"]["gradients"], 40);
    assert_eq!(of("C", "in use")[3]["args"]["bytes"], 300);
    fails(Snapshot::load(&file), "is not a memory snapshot");
}

/// As `json.dump(torch.cuda.memory._snapshot(), file)` writes it: two blocks are older than the
/// trace, one of which is freed in it.
fn of_pytorch() -> Value {
    let frames = json!([
        {"name": "at::empty", "filename": "??", "line": 0},
        {"name": "forward", "filename": "/lib/torch/nn/modules/linear.py", "line": 125},
    ]);
    let event = |action: &str, addr: u64, size: u64, time_us: u64| {
        json!({"action": action, "addr": addr, "size": size, "stream": 0, "time_us": time_us,
            "compile_context": "N/A", "user_metadata": "", "frames": frames})
    };
    let mut events = vec![
        json!({"action": "segment_alloc", "addr": 4096, "size": 4096, "stream": 0, "frames": []}),
        event("alloc", 4196, 50, 1_700_000_000_000_010),
        event("free_requested", 4246, 30, 1_700_000_000_000_020),
        event("free_completed", 4246, 30, 1_700_000_000_000_021),
        event("alloc", 4246, 20, 1_700_000_000_000_020),
        event("free_completed", 4196, 50, 1_700_000_000_000_041),
    ];
    events[4]["user_metadata"] = json!("epoch 3");
    let block = |size: u64, state: &str| json!({"size": size, "state": state, "frames": []});
    let blocks = [
        block(100, "active_allocated"),
        block(50, "inactive"),
        block(20, "active_allocated"),
    ];
    json!({
        "segments": [{"device": 1, "address": 4096, "total_size": 170, "blocks": blocks}],
        "device_traces": [[], events], "allocator_settings": {}, "external_annotations": [],
    })
}

#[test]
fn a_snapshot_of_pytorch_is_read() {
    let mut json = of_pytorch();
    let snapshot = read(json.to_string()).unwrap();
    let totals = Totals::of(&snapshot);
    assert_eq!(totals.known(), [130, 180, 150, 170, 120]);
    assert_eq!(totals.layer(Category::Other), totals.known());
    // Times are since the first event, and never fall.
    assert_eq!(
        (&*snapshot.title, &*snapshot.times),
        ("device 1", &[0, 0, 11, 11, 31][..])
    );
    let place = "linear.py:125 forward";
    let peak = Peak::of(&snapshot, &totals).unwrap();
    let names = peak
        .holders
        .iter()
        .map(|held| &*snapshot.operations[held.operation]);
    assert_eq!(names.collect::<Vec<_>>(), ["unknown", place, place]);
    assert!(snapshot.operations.contains(&format!("{place} (epoch 3)")));
    // Those of its profiler have categories, and no times.
    let event = json["device_traces"][1][1].as_object_mut().unwrap();
    event.insert("category".into(), json!("activation"));
    event.remove("time_us");
    let totals = Totals::of(&read(json.to_string()).unwrap());
    assert_eq!(totals.layer(Category::Activations), [0, 50, 50, 50, 0]);
}

/// Checks that there is an error in one line with `text` in it.
#[track_caller]
fn fails<T: std::fmt::Debug>(result: Result<T, SnapshotError>, text: &str) {
    let line = result.expect_err(text).to_string();
    assert_eq!(line.lines().count(), 1, "{line:?}");
    assert!(line.contains(text), "{line:?} should mention {text:?}");
}

#[test]
fn something_else_is_not_a_snapshot() {
    for other in [
        "some text",
        "[1, 2]",
        r#"{"device_traces": 3}"#,
        "{}",
        "\u{80}",
    ] {
        fails(read(other), "is not a memory snapshot");
    }
    let file = written(&sampled());
    for length in (0..64).chain((64..file.len() - 2).step_by(97)) {
        fails(read(&file[..length]), "ends early");
    }
}

#[test]
fn what_contradicts_itself_is_neither_loaded_nor_saved() {
    type Change = fn(&mut Snapshot);
    let changes: [(Change, &str); 12] = [
        (|of| of.times.swap(0, 3), "times"),
        (|of| of.parameters[0].shape = vec![1 << 30; 3], "parameters"),
        (|of| of.holders.swap(0, 3), "holders"),
        (|of| of.holders[2].until = 2, "holders"),
        (|of| of.holders[2].until = 13, "holders"),
        (|of| of.holders[2].parameter = Some(2), "holders"),
        (|of| of.holders[2].operation = 2, "holders"),
        (|of| of.holders[2].bytes = u64::MAX, "bytes"),
        (|of| of.phases.swap(0, 1), "phases"),
        (|of| of.phases[3].kind = PhaseKind::Step(2), "phases"),
        (|of| of.samples[0].tick = 12, "samples"),
        (|of| of.samples[0].peak = 1 << 53, "samples"),
    ];
    for (change, part) in changes {
        let mut bad = sampled();
        change(&mut bad);
        assert_eq!(bad.check(), Err(part));
        fails(bad.save("/nowhere"), &format!("its {part} cannot be right"));
    }
    // Files that somebody has changed.
    let far = json!(u64::MAX);
    for (pointer, value, text) in [
        ("/burn/phases/0/until", json!(13), "its phases"),
        ("/burn/times/1", json!(-1), "invalid value"),
        ("/device_traces/0/1/tick", json!(12), "its holders"),
        ("/device_traces/0/1/size", far, "its bytes"),
        (
            "/device_traces/0/1/frames/0/filename",
            json!("new"),
            "its holders",
        ),
    ] {
        let mut json = json_of(&sampled());
        *json.pointer_mut(pointer).unwrap() = value;
        fails(read(json.to_string()), text);
    }
    let mut json = json_of(&sampled());
    json["burn"].take();
    fails(read(json.to_string()), "its holders");
}

#[test]
fn a_place_that_cannot_be_written_or_read_is_named() {
    let home = TempDir::new().unwrap();
    let folder = home.path();
    let nowhere = folder.join("missing").join("run.json");
    for path in [&nowhere, Path::new("/"), Path::new("")] {
        fails(step().save(path), "cannot write");
    }
    for path in [&nowhere, folder] {
        fails(
            Snapshot::load(path),
            &format!("cannot read {}", path.display()),
        );
    }
    // A folder has the name of the file: the temporary file is deleted.
    let taken = folder.join("taken");
    fs::create_dir(&taken).unwrap();
    fails(step().save(&taken), "cannot write");
    assert_eq!(fs::read_dir(folder).unwrap().count(), 1);
    // Temporary files are private by default; the file is as readable as any other.
    let files = ["saved", "other"].map(|name| folder.join(name));
    step().save(&files[0]).unwrap();
    fs::write(&files[1], "").unwrap();
    let [saved, other] = files.map(|path| fs::metadata(path).unwrap().permissions());
    assert_eq!(saved, other);
}

/// Long recordings are read event by event, and the addresses of what was released are used again.
#[test]
fn a_long_recording_is_written_and_read() {
    let mut snapshot = step();
    snapshot.times = (0..20_000).collect();
    let short = (12..19_997).map(|from| {
        let bytes = 1 + from as u64 % 3;
        holder(bytes, Category::Temporaries, None, (from, from + 3))
    });
    snapshot.holders.extend(short);
    assert_eq!(read(written(&snapshot)).unwrap(), snapshot);
    let bytes = &json_of(&snapshot)["segments"][0]["total_size"];
    assert!(bytes.as_u64() < Some(1000), "{bytes}");
}

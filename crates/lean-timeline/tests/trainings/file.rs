//! The file of a snapshot: saved and loaded, and files that are no snapshots.

use crate::synthetic::{Sampled, Training};
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use lean_timeline::Snapshot;
use lean_timeline::snapshot::{PhaseKind, SnapshotError, VERSION};
use serde_json::{Value, json};
use std::fmt::Debug;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;
use tempfile::TempDir;

fn bytes(snapshot: &Snapshot) -> Vec<u8> {
    let mut file = Vec::new();
    snapshot.write(&mut file).unwrap();
    file
}

fn unpacked(file: &[u8]) -> String {
    let mut text = String::new();
    GzDecoder::new(file).read_to_string(&mut text).unwrap();
    text
}

fn packed(text: &str) -> Vec<u8> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(text.as_bytes()).unwrap();
    gzip.finish().unwrap()
}

/// Reads the file of a small snapshot with a change in its JSON.
fn changed(change: impl FnOnce(&mut Value)) -> Result<Snapshot, SnapshotError> {
    let file = bytes(&Training::plain().snapshot());
    let mut json = serde_json::from_str(&unpacked(&file)).unwrap();
    change(&mut json);
    Snapshot::read(&*packed(&json.to_string()))
}

/// Checks that there is an error of this kind, in one line with `text` in it.
fn fails<T: Debug>(result: Result<T, SnapshotError>, kind: &str, text: &str) {
    let error = result.expect_err(text);
    assert!(
        format!("{error:?}").starts_with(kind),
        "{error:?} should be {kind}"
    );
    let line = error.to_string();
    assert_eq!(line.lines().count(), 1, "{line:?}");
    assert!(line.contains(text), "{line:?} should mention {text:?}");
}

#[test]
fn what_is_saved_is_loaded() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("run.memory");
    let mut snapshots = vec![Snapshot::default()];
    for sampled in [Sampled::Everywhere, Sampled::AtMarks, Sampled::Nowhere] {
        for training in [Training::plain(), Training::release()] {
            snapshots.push(training.sampled(sampled).snapshot());
        }
    }
    snapshots[1].warnings.push("\"a\"\n{b}".into());
    // The bytes in use may be less than those of the holders, and a peak less than either.
    snapshots[1].samples[7].in_use = 3;
    snapshots[1].samples[7].peak = 2;
    for snapshot in snapshots {
        snapshot.save(&file).unwrap();
        assert_eq!(Snapshot::load(&file).unwrap(), snapshot);
    }
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "{left:?}");
}

#[test]
fn who_reads_a_file_that_is_saved_anew_reads_the_old_one_to_its_end() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("run.memory");
    let (old, new) = (Training::plain().snapshot(), Training::release().snapshot());
    old.save(&path).unwrap();
    let reader = File::open(&path).unwrap();
    new.save(&path).unwrap();
    assert_eq!(Snapshot::read(reader).unwrap(), old);
    assert_eq!(Snapshot::load(&path).unwrap(), new);
}

/// Temporary files are private by default.
#[cfg(unix)]
#[test]
fn a_saved_file_is_as_readable_as_any_other() {
    use std::os::unix::fs::PermissionsExt;
    let folder = TempDir::new().unwrap();
    let (saved, other) = (folder.path().join("saved"), folder.path().join("other"));
    Snapshot::default().save(&saved).unwrap();
    fs::write(&other, "").unwrap();
    let mode = |path| fs::metadata(path).unwrap().permissions().mode();
    assert_eq!(mode(saved), mode(other));
}

#[test]
fn the_json_is_as_it_is_described() {
    let snapshot = Training::plain().snapshot();
    let text = unpacked(&bytes(&snapshot));
    assert!(
        text.starts_with(r#"{"format":"memory-timeline","version":1,"title":"#),
        "{}",
        &text[..80]
    );
    assert_eq!(VERSION, 1);
    let json: Value = serde_json::from_str(&text).unwrap();
    let column = |of: &str, name: &str| -> Vec<i64> {
        let values = json[of][name].as_array().unwrap().iter();
        values.map(|value| value.as_i64().unwrap_or(-1)).collect()
    };
    assert_eq!(
        json["categories"][column("holders", "category")[0] as usize],
        "parameters"
    );
    let from: i64 = column("holders", "from").iter().sum();
    assert_eq!(from as usize, snapshot.holders.last().unwrap().from);
    let last = snapshot.samples.last().unwrap();
    let in_use: i64 = column("samples", "in_use").iter().sum();
    assert_eq!(in_use as u64, last.in_use);
    let above = *column("samples", "above").last().unwrap();
    assert_eq!((in_use + above) as u64, last.peak);
    let step = snapshot
        .phases
        .iter()
        .position(|phase| matches!(phase.kind, PhaseKind::Step(_)))
        .unwrap();
    let phases = &json["phases"];
    assert_eq!(phases["kind"][0], "forward");
    assert_eq!(phases["parameter"][0], Value::Null);
    assert_eq!(phases["kind"][step], "step");
    assert_eq!(
        PhaseKind::Step(column("phases", "parameter")[step] as usize),
        snapshot.phases[step].kind
    );
}

#[test]
fn something_else_is_not_a_snapshot() {
    for foreign in [
        b"not gzip at all".to_vec(),
        b"{\"format\":\"memory-timeline\"}".to_vec(),
        packed(""),
        packed("some text"),
        packed("{\"format\":\"other\",\"version\":1}"),
        packed("[1, 2, 3]"),
    ] {
        let text = "<stream> is not a memory snapshot";
        fails(Snapshot::read(&*foreign), "Foreign", text);
    }
}

#[test]
fn a_file_that_has_changed_is_told_from_one_that_is_cut_short() {
    let mut file = bytes(&Training::plain().snapshot());
    let lengths = (0..64).chain((64..file.len()).step_by(97));
    for length in lengths.chain([file.len() - 1]) {
        fails(Snapshot::read(&file[..length]), "Truncated", "ends early");
    }
    let checksum = file.len() - 8;
    file[checksum] ^= 1;
    fails(Snapshot::read(&*file), "Damaged", "is damaged");
}

#[test]
fn a_later_version_asks_for_an_update() {
    let later = changed(|json| json["version"] = json!(2));
    let text = "was written by version 2 of the format, this program reads up to 1: update it";
    fails(later, "Newer", text);
    // Also if that version has other keys.
    let later = packed(r#"{"format":"memory-timeline","version":7,"new":{}}"#);
    fails(Snapshot::read(&*later), "Newer", "version 7");
}

#[test]
fn what_contradicts_itself_is_not_loaded() {
    let far = json!(u64::MAX);
    for (pointer, value, text) in [
        (
            "/holders/parameter/0",
            json!(54),
            "holder 0 is of parameter",
        ),
        (
            "/holders/operation/3",
            json!(1000),
            "holder 3 is of operation",
        ),
        (
            "/holders/category/0",
            json!(6),
            "holder 0 is of category 6, of 6",
        ),
        ("/holders/ticks/2", json!(1_000_000), "holder 2 lasts from"),
        ("/holders/ticks/2", far.clone(), "holder 2 lasts from"),
        ("/holders/from/2", json!(1_000_000), "lasts from"),
        ("/holders/from/2", far.clone(), "beyond all reason"),
        ("/holders/from/0", json!(-1), "invalid value"),
        (
            "/holders/bytes/0",
            far.clone(),
            "more bytes are held at tick 0",
        ),
        ("/holders/bytes", json!([1, 2]), "columns of 2 and of"),
        (
            "/phases/kind/0",
            json!("step"),
            "phase 0 is the step of no parameter",
        ),
        ("/phases/ticks/0", json!(1_000_000), "phase 0 lasts from"),
        (
            "/samples/operation/5",
            json!(1000),
            "sample 5 is of operation",
        ),
        ("/samples/tick/5", json!(1_000_000), "is after tick"),
        (
            "/samples/in_use/0",
            json!(-1),
            "sample 0 is of fewer bytes than none",
        ),
        ("/times/3", far, "beyond all reason"),
    ] {
        let result = changed(|json| *json.pointer_mut(pointer).unwrap() = value);
        fails(result, "Inconsistent", text);
    }
    // Only a step has a parameter; other phases ignore it.
    let of_a_phase = |kind: &str| {
        changed(|json| {
            let kinds = json["phases"]["kind"].as_array().unwrap();
            let phase = kinds.iter().position(|of| of == kind).unwrap();
            json["phases"]["parameter"][phase] = json!(54);
        })
    };
    fails(of_a_phase("step"), "Inconsistent", "is of parameter");
    assert!(of_a_phase("forward").is_ok());
}

#[test]
fn what_contradicts_itself_is_not_saved() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("run.memory");
    let good = Training::plain().snapshot();
    good.save(&file).unwrap();
    type Change = fn(&mut Snapshot);
    let changes: [(Change, &str); 7] = [
        (
            |of| of.parameters[0].shape = vec![1 << 30; 3],
            "more elements than any machine holds",
        ),
        (
            |of| of.phases[0].iteration = usize::MAX,
            "phase 0 is of a step beyond all reason",
        ),
        (|of| of.holders.swap(0, 100), "holders are out of order"),
        (|of| of.times.swap(0, 100), "times are out of order"),
        (|of| of.phases.swap(0, 1), "phases are out of order"),
        (|of| of.samples.swap(0, 1), "samples are out of order"),
        (
            |of| of.holders[9].until = 3,
            "holder 9 ends at tick 3, before it begins at 9",
        ),
    ];
    for (change, text) in changes {
        let mut bad = good.clone();
        change(&mut bad);
        fails(bad.save(&file), "Inconsistent", text);
        fails(bad.save(&file), "Inconsistent", "run.memory");
    }
    // The old file is unchanged, and nothing is left beside it.
    assert_eq!(Snapshot::load(&file).unwrap(), good);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_place_that_cannot_be_written_or_read_is_named() {
    let folder = TempDir::new().unwrap();
    let nowhere = folder.path().join("missing").join("run.memory");
    let snapshot = Snapshot::default();
    for path in [nowhere.as_path(), Path::new("/"), Path::new("")] {
        fails(snapshot.save(path), "Write", "cannot write");
    }
    for path in [nowhere.as_path(), folder.path()] {
        let text = format!("cannot open {}", path.display());
        fails(Snapshot::load(path), "Open", &text);
    }
    // A folder has the name of the file: the temporary file is deleted.
    let taken = folder.path().join("taken");
    fs::create_dir(&taken).unwrap();
    assert!(snapshot.save(&taken).is_err());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

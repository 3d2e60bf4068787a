//! The program in several processes, with `mpirun`. What the processes say to each other is tested
//! in `lean-replicas` and in the crates that use it; here, that the program uses it.

use crate::PROGRAM;
use crate::program::{Home, result, said, write_images};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;

/// `train` in processes each of which has options of its own.
fn launch(folder: &Path, of_each: &[&str]) -> Command {
    let mut command = Command::new("mpirun");
    // In a container everybody is root.
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1");
    command.env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command.arg("--oversubscribe");
    for (rank, own) in of_each.iter().enumerate() {
        command.args((rank > 0).then_some(":"));
        command.args(["-n", "1", PROGRAM.path, "train"]);
        command.arg("--data-parallel").arg("--artifact-dir");
        command.arg(folder).args(own.split_whitespace());
    }
    command
}

/// A short run of two epochs of 8 batches, whose dropout does not depend on how many processes there
/// are, and its home.
fn new() -> (Home, String) {
    let home = Home::new();
    write_images(&home.folder("images"), 1, 320);
    let images = home.folder("images");
    let new = "--epochs 2 --batch-size 32 --dropout 0 --data";
    (home, format!("{new} {}", images.display()))
}

/// The results of `train` in so many processes.
fn train(home: &Home, name: &str, processes: usize, options: &str) -> Value {
    result(&mut launch(&home.folder(name), &vec![options; processes]))
}

fn digest(result: &Value) -> &str {
    result["weights_digest"].as_str().expect("a digest")
}

/// Sums in another order: the last bits differ.
fn assert_near(one: &Value, other: &Value) {
    let [one, other] = [one, other].map(|result| result["validation_loss"].as_f64().unwrap());
    assert!((one - other).abs() < 0.02, "{one} {other}");
}

/// Sharded states, and a resume by more or fewer processes: all train as one process.
#[test]
fn replicas_train_as_one_process_does() {
    let (home, new) = new();
    let sharded = format!("{new} --shard-optimizer");
    let alone = result(&mut crate::program::train(&home.folder("alone"), &new));
    let one = train(&home, "one", 1, &new);
    assert_eq!(digest(&one), digest(&alone));
    let two = train(&home, "two", 2, &new);
    assert_near(&two, &alone);
    for (name, processes, options) in [
        ("same", 2, "--resume --shard-optimizer"),
        ("whole", 2, "--resume"),
        ("fewer", 1, "--resume"),
    ] {
        let whole = train(&home, name, 2, &sharded);
        assert_eq!(digest(&whole), digest(&two));
        home.forget(name, 1);
        let resumed = train(&home, name, processes, options);
        if processes == 2 {
            assert_eq!(digest(&resumed), digest(&two), "{name}");
        }
        assert_near(&resumed, &two);
    }
}

#[test]
fn processes_that_differ_are_refused_and_change_nothing() {
    let (home, new) = new();
    let folder = home.folder("run");
    train(&home, "run", 2, &new);
    let results = || fs::read(folder.join("results.json")).unwrap();
    let before = results();
    let anew = format!("{new} --overwrite");
    for (first, second, text) in [
        (&*new, &*new, "holds a finished run"),
        (
            &anew,
            &format!("{anew} --seed 43"),
            "rank 1: the setting seed: 43",
        ),
        (
            &anew,
            &format!("{anew} --lr 0"),
            "invalid value '0' for '--lr",
        ),
        (
            "--resume",
            "--resume --checkpointing balanced",
            "rank 1: the setting checkpointing: \"balanced\"",
        ),
    ] {
        let output = launch(&folder, &[first, second]).output().unwrap();
        let said = said(&output);
        assert!(!output.status.success() && said.contains(text), "{said}");
        assert_eq!(results(), before, "{text}");
    }
    // Of 256 images, one is left.
    let few = anew.replace("--batch-size 32", "--batch-size 51");
    let refused = said(&launch(&folder, &[&few, &few]).output().unwrap());
    assert!(refused.contains("choose another --batch-size"), "{refused}");
    assert_eq!(results(), before);
    let plain = format!("{anew} --mode plain");
    let output = launch(&folder, &[&plain]).output().unwrap();
    assert!(said(&output).contains("--data-parallel needs gradient release"));
}

//! The program in several processes, with `mpirun`. What the processes say to each other is tested
//! in `lean-replicas` and in the crates that use it; here, that the program uses it.

use crate::PROGRAM;
use crate::program::{names, result, said, wait_for, write_images};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// A short run of two epochs of 8 batches, whose dropout does not depend on how many processes there
/// are. Its images follow.
pub(crate) const NEW: &str = "--epochs 2 --batch-size 32 --dropout 0 --data";

/// `train` in processes each of which has options of its own.
fn launch(folder: &Path, of_each: &[&str]) -> Command {
    let mut command = Command::new("mpirun");
    // In a container everybody is root.
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1");
    command.env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command.arg("--oversubscribe");
    for (rank, own) in of_each.iter().enumerate() {
        command.args((rank > 0).then_some(":"));
        command.args(["-n", "1", PROGRAM.path, "train", "--json"]);
        command.arg("--data-parallel").arg("--artifact-dir");
        command.arg(folder).args(own.split_whitespace());
    }
    command
}

/// `train` in so many processes.
pub(crate) fn train(processes: usize, folder: &Path, options: &str) -> Command {
    launch(folder, &vec![options; processes])
}

/// The path of images in this folder.
pub(crate) fn images(home: &TempDir) -> String {
    let folder = home.path().join("images");
    write_images(&folder, 1, 320);
    folder.into_os_string().into_string().unwrap()
}

pub(crate) fn digest(result: &Value) -> &str {
    result["weights_digest"].as_str().expect("a digest")
}

/// Sums in another order: the last bits differ.
fn assert_near(one: &Value, other: &Value) {
    let [one, other] = [one, other].map(|result| result["train_loss"].as_f64().unwrap());
    assert!((one - other).abs() < 0.02, "{one} {other}");
}

/// Fails with this exit code, and this text in what is said.
fn fails(mut command: Command, code: i32, text: &str) {
    let output = command.output().unwrap();
    let said = said(&output);
    assert!(said.contains(text), "{said}");
    assert_eq!(output.status.code(), Some(code), "{said}");
}

/// Sharded states, a resume by more or fewer processes, and a killed one: all train as one process.
#[test]
fn replicas_train_as_one_process_does() {
    let home = TempDir::new().unwrap();
    let new = format!("{NEW} {}", images(&home));
    let sharded = format!("{new} --shard-optimizer");
    let run = |name: &str, processes, options: &str| {
        result(&mut train(processes, &home.path().join(name), options))
    };
    let alone = result(&mut crate::program::train(&home.path().join("alone"), &new));
    assert_eq!(digest(&run("one", 1, &new)), digest(&alone));
    let two = run("two", 2, &new);
    assert_eq!(digest(&run("sharded", 2, &sharded)), digest(&two));
    assert_near(&two, &alone);

    let stop = format!("{sharded} --stop-after 12");
    for (name, processes, options) in [
        ("same", 2, "--resume --shard-optimizer"),
        ("whole", 2, "--resume"),
        ("fewer", 1, "--resume"),
    ] {
        let stopped = train(2, &home.path().join(name), &stop).output().unwrap();
        let said = said(&stopped);
        assert!(said.contains("continues after epoch 1"), "{said}");
        let resumed = run(name, processes, options);
        if processes == 2 {
            assert_eq!(digest(&resumed), digest(&two), "{name}");
        }
        assert_near(&resumed, &two);
    }

    let killed = home.path().join("killed");
    let mut running = train(2, &killed, &sharded);
    running.stdout(Stdio::piped()).stderr(Stdio::piped());
    let running = running.spawn().unwrap();
    wait_for(&killed.join(PROGRAM.saved(1)));
    kill(&running, "-KILL", 1);
    let said = said(&running.wait_with_output().unwrap());
    assert!(said.contains("exited on signal 9"), "{said}");
    let resumed = run("killed", 2, "--resume --shard-optimizer");
    assert_eq!(digest(&resumed), digest(&two));
}

/// Signals one of the processes that a launcher has started.
pub(crate) fn kill(launcher: &Child, signal: &str, rank: usize) {
    let children = format!("/proc/{0}/task/{0}/children", launcher.id());
    let children = fs::read_to_string(children).unwrap();
    let process = children.split_whitespace().nth(rank).expect("it is there");
    let kill = Command::new("kill").args([signal, process]).status();
    assert!(kill.unwrap().success());
}

#[test]
fn processes_that_differ_are_refused_and_change_nothing() {
    let home = TempDir::new().unwrap();
    let folder = home.path().join("run");
    let new = format!("{NEW} {}", images(&home));
    result(&mut train(2, &folder, &new));
    let before = fs::read(folder.join("results.json")).unwrap();
    let anew = format!("{new} --overwrite");
    let anew = anew.as_str();
    // Of the same number, size and classes.
    let [some, other] = [1, 2].map(|seed| {
        let folder = home.path().join(seed.to_string());
        write_images(&folder, seed, 144);
        format!("{NEW} {} --overwrite", folder.display())
    });
    for (first, second, code, text) in [
        (&*new, &*new, 1, "holds a finished run"),
        (
            anew,
            &format!("{anew} --seed 43"),
            1,
            "rank 1: the setting seed: 43",
        ),
        (anew, &format!("{NEW} /nowhere"), 1, "no folder /nowhere"),
        (
            anew,
            &format!("{anew} --lr 7"),
            2,
            "invalid value '7' for '--lr",
        ),
        (&some, &other, 1, "rank 1: the setting data_digest: \""),
        (
            "--resume",
            "--resume --checkpointing blocks",
            1,
            "rank 1: the setting checkpointing: \"blocks\"",
        ),
    ] {
        fails(launch(&folder, &[first, second]), code, text);
        let after = fs::read(folder.join("results.json")).unwrap();
        assert_eq!(after, before, "{text}");
        assert_eq!(names(&folder.join("checkpoint")).len(), 12, "{text}");
    }
    let plain = train(2, &folder, &format!("{anew} --mode plain"));
    fails(plain, 1, "--data-parallel needs gradient release");
    // 1438 images: the last batch has two.
    let few = train(4, &folder, "--overwrite --batch-size 359");
    fails(few, 1, "choose another --batch-size");
}

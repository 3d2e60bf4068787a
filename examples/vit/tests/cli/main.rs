//! The program as a user meets it: what it writes, where, and with which exit code.

mod memory_timeline;

use assert_cmd::Command;
use serde_json::Value;
use std::cell::OnceCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command as Process, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tempfile::TempDir;

fn vit() -> Command {
    Command::cargo_bin("vit").expect("the binary is built with the tests")
}

/// A short run on the bundled digits.
fn train(folder: &Path) -> Command {
    let mut command = vit();
    command
        .args(["train", "--json", "--epochs", "2", "--batch-size", "256"])
        .args(["--dropout", "0.1", "--artifact-dir"])
        .arg(folder);
    command
}

fn result(command: &mut Command) -> Value {
    let output = command.assert().success().get_output().stdout.clone();
    let text = String::from_utf8(output).unwrap();
    serde_json::from_str(text.lines().last().unwrap()).unwrap()
}

/// Fails with one line that mentions `text`, and leaves `untouched` as it never was.
fn fails(command: &mut Command, text: &str, untouched: &Path) {
    let output = command.assert().failure().get_output().clone();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.starts_with("error: "), "{stderr:?}");
    assert_eq!(stderr.lines().count(), 1, "{stderr:?}");
    assert!(stderr.contains(text), "{stderr:?} should mention {text:?}");
    assert!(output.stdout.is_empty());
    assert!(!untouched.exists(), "nothing should have been written");
}

fn idx(dims: &[u32], elements: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0, 0, 8, dims.len() as u8];
    for size in dims {
        bytes.extend(size.to_be_bytes());
    }
    bytes.extend(elements);
    bytes
}

/// Two images and their labels under MNIST's names, to train and to validate.
fn write_idx(folder: &Path) {
    for part in ["train", "t10k"] {
        let image = |what: &str| folder.join(format!("{part}-{what}-ubyte"));
        fs::write(image("images-idx3"), idx(&[2, 4, 4], &[7; 32])).unwrap();
        fs::write(image("labels-idx1"), idx(&[2], &[0, 1])).unwrap();
    }
}

fn write_png(file: &Path, level: u8) {
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    image::RgbImage::from_pixel(4, 4, image::Rgb([level, 0, 255 - level]))
        .save(file)
        .unwrap();
}

/// What a run and its resumption must have in common.
const OUTCOME: [&str; 4] = [
    "weights_digest",
    "validation_accuracy",
    "train_loss",
    "epochs",
];

fn outcome(result: &Value) -> [&Value; 4] {
    OUTCOME.map(|key| &result[key])
}

fn resume(folder: &Path) -> Command {
    let mut command = vit();
    command
        .args(["train", "--json", "--resume", "--artifact-dir"])
        .arg(folder);
    command
}

/// Everything on stderr of a run that ends well, and in one line on stdout its result.
fn lines(command: &mut Command) -> Vec<String> {
    let output = command.assert().success().get_output().clone();
    let text = String::from_utf8(output.stderr).unwrap();
    text.lines().map(String::from).collect()
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(folder)
        .map(|entries| {
            entries
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect()
        })
        .unwrap_or_default();
    names.sort();
    names
}

/// A small data set of its own: random images with random labels, so that the validation loss soon
/// gets worse.
struct Noise {
    home: TempDir,
}

impl Noise {
    /// Epochs of 8 batches, which take a moment.
    fn new() -> Self {
        Self::with(60, 16)
    }

    fn with(train: u32, validation: u32) -> Self {
        let home = TempDir::new().unwrap();
        let mut state = 1u32;
        let mut random = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        for (part, count) in [("train", train), ("t10k", validation)] {
            let pixels: Vec<u8> = (0..count * 64).map(|_| random()).collect();
            let labels: Vec<u8> = (0..count).map(|_| random() % 4).collect();
            let file = |what: &str| home.path().join(format!("{part}-{what}-ubyte"));
            fs::write(file("images-idx3"), idx(&[count, 8, 8], &pixels)).unwrap();
            fs::write(file("labels-idx1"), idx(&[count], &labels)).unwrap();
        }
        Self { home }
    }

    fn folder(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// The arguments of a run of so many epochs, whose artifacts go to `name`.
    fn args(&self, name: &str, epochs: usize) -> Vec<String> {
        let path = |path: &Path| path.to_str().unwrap().to_string();
        ["train", "--json", "--batch-size", "8", "--epochs"]
            .map(String::from)
            .into_iter()
            .chain([epochs.to_string(), "--data".into(), path(self.home.path())])
            .chain(["--artifact-dir".into(), path(&self.folder(name))])
            .collect()
    }

    fn train(&self, name: &str, epochs: usize) -> Command {
        let mut command = vit();
        command.args(self.args(name, epochs));
        command
    }

    /// Starts or resumes the run, and kills it as soon as `now` says so.
    #[cfg(unix)]
    fn kill(&self, name: &str, epochs: usize, is_first: bool, now: impl Fn() -> bool) -> bool {
        use std::os::unix::process::ExitStatusExt;
        let mut args = self.args(name, epochs);
        if !is_first {
            args.push("--resume".into());
        }
        let mut child = Process::new(assert_cmd::cargo::cargo_bin("vit"))
            .args(args)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        while !now() && child.try_wait().unwrap().is_none() {
            sleep(Duration::from_micros(50));
        }
        child.kill().unwrap();
        child.wait().unwrap().signal() == Some(9)
    }
}

#[test]
fn resuming_gives_the_weights_of_the_uninterrupted_run() {
    let noise = Noise::new();
    let whole = result(&mut noise.train("whole", 3));

    // In the middle of the first epoch; exactly at its end, before it was validated; in the middle
    // of a later one; from either mode to the other.
    for (stop, before, after, continues) in [
        ("3", "release", "release", "begins with the first epoch"),
        ("8", "plain", "release", "begins with the first epoch"),
        ("13", "release", "plain", "from the checkpoint of epoch 1"),
        ("21", "plain", "release", "from the checkpoint of epoch 2"),
    ] {
        let folder = noise.folder(stop);
        let mut stopped = noise.train(stop, 3);
        let said = lines(stopped.args(["--stop-after", stop, "--mode", before]));
        assert!(said.last().unwrap().contains(continues), "{said:?}");
        assert!(!folder.join("results.json").exists());

        let resumed = result(resume(&folder).args(["--mode", after]));
        assert_eq!(outcome(&resumed), outcome(&whole), "stopped at {stop}");
        let checkpoints = names(&folder.join("checkpoint"));
        let newest = ["model", "optim", "scheduler"]
            .map(|part| [2, 3].map(|epoch| format!("{part}-{epoch}.mpk")));
        assert_eq!(checkpoints, newest.concat());

        // Nor is anything lost or written twice in the logs.
        for log in ["train", "valid"] {
            for file in ["Loss.log", "Accuracy.log"] {
                for epoch in ["epoch-1", "epoch-2", "epoch-3"] {
                    let log = |run: &str| noise.folder(run).join(log).join(epoch).join(file);
                    let [resumed, whole] = [stop, "whole"].map(|run| fs::read(log(run)).unwrap());
                    assert_eq!(resumed, whole, "{epoch}/{file} after a stop at {stop}");
                }
            }
        }
    }
}

#[test]
fn accumulation_is_resumed_in_either_mode() {
    let noise = Noise::new();
    let train = |name: &str, mode: &str| {
        let mut command = noise.train(name, 2);
        command.args(["--grads-accumulation", "3", "--mode", mode]);
        command
    };
    let plain = result(&mut train("plain", "plain"));
    let release = result(&mut train("release", "release"));
    assert_eq!(outcome(&plain), outcome(&release));
    let every_batch = result(&mut noise.train("every-batch", 2));
    assert_ne!(plain["weights_digest"], every_batch["weights_digest"]);

    for (before, after) in [("plain", "release"), ("release", "plain")] {
        let name = format!("from-{before}");
        let mut stopped = train(&name, before);
        stopped.args(["--stop-after", "12"]).assert().success();
        let resumed = result(resume(&noise.folder(&name)).args(["--mode", after]));
        assert_eq!(outcome(&resumed), outcome(&plain));
    }
}

#[cfg(unix)]
#[test]
fn a_run_killed_again_and_again_gives_the_weights_of_the_uninterrupted_one() {
    let noise = Noise::new();
    let start = Instant::now();
    let whole = result(&mut noise.train("whole", 8));
    let epoch_time = start.elapsed() / 8;
    let folder = noise.folder("killed");
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let mut delays = Vec::new();
    for epoch in 1..=4 {
        // Somewhere in the epoch after this one.
        let delay = epoch_time.mul_f64(f64::from(clock.subsec_nanos() % (40 + epoch)) / 44.0);
        delays.push(delay);
        let saved = folder.join(format!("checkpoint/scheduler-{epoch}.mpk"));
        let seen = OnceCell::new();
        let killed = noise.kill("killed", 8, epoch == 1, || {
            saved.exists() && seen.get_or_init(Instant::now).elapsed() > delay
        });
        assert!(killed, "it had ended {delay:?} after epoch {epoch}");
    }
    let resumed = result(&mut resume(&folder));
    assert_eq!(
        outcome(&resumed),
        outcome(&whole),
        "killed after {delays:?}"
    );
}

#[cfg(unix)]
#[test]
fn a_run_killed_while_it_saves_gives_the_weights_of_the_uninterrupted_one() {
    let noise = Noise::new();
    let whole = result(&mut noise.train("whole", 4));
    for part in ["model", "optim"] {
        let folder = noise.folder(part);
        let checkpoints = folder.join("checkpoint");
        let unfinished = checkpoints.join(format!("unfinished-{part}-2.mpk"));
        // The file is there for a moment only: not every attempt sees it.
        let killed = (0..20).any(|_| {
            let _ = fs::remove_dir_all(&folder);
            noise.kill(part, 4, true, || unfinished.exists()) && unfinished.exists()
        });
        assert!(killed, "never while {part} was being saved");
        let resumed = result(&mut resume(&folder));
        assert_eq!(outcome(&resumed), outcome(&whole));
        let left = names(&checkpoints);
        assert!(left.iter().all(|name| !name.starts_with("unfinished")));
    }
}

#[test]
fn a_damaged_checkpoint_is_an_error_in_one_line() {
    let noise = Noise::new();
    let mut stopped = noise.train("run", 2);
    stopped.args(["--stop-after", "12"]).assert().success();
    fs::write(noise.folder("run/checkpoint/optim-1.mpk"), "no record").unwrap();
    let output = resume(&noise.folder("run")).assert().failure();
    let stderr = String::from_utf8(output.get_output().stderr.clone()).unwrap();
    let lines: Vec<_> = stderr.lines().collect();
    assert_eq!(lines.len(), 2, "{stderr}");
    assert!(lines[1].starts_with("error: "), "{stderr}");
    assert!(lines[1].contains("optimizer checkpoint"), "{stderr}");
}

#[test]
fn early_stopping_is_not_forgotten_by_a_resumed_run() {
    let noise = Noise::new();
    let train = |name: &str| {
        let mut command = noise.train(name, 30);
        command.args(["--early-stopping", "2", "--lr", "0.01"]);
        command
    };
    let whole = result(&mut train("whole"));
    let epochs = whole["epochs"].as_u64().unwrap();
    assert!((3..30).contains(&epochs), "{epochs} epochs");

    // In the last epoch: the best one lies before the checkpoint.
    let stop = (8 * epochs - 2).to_string();
    let mut stopped = train("stopped");
    stopped.args(["--stop-after", &stop]).assert().success();
    let resumed = result(&mut resume(&noise.folder("stopped")));
    assert_eq!(outcome(&resumed), outcome(&whole));

    // Killed when all was done but the results were not written: not one epoch more.
    fs::remove_file(noise.folder("whole").join("results.json")).unwrap();
    let again = result(&mut resume(&noise.folder("whole")));
    assert_eq!(outcome(&again), outcome(&whole));
}

#[test]
fn both_modes_train_the_same_weights() {
    let home = TempDir::new().unwrap();
    let mut digests = Vec::new();
    for mode in ["plain", "release"] {
        let folder = home.path().join(mode);
        let result = result(train(&folder).args(["--mode", mode]));
        digests.push(result["weights_digest"].clone());
        assert!(result["peak_bytes"].as_u64().unwrap() > 0);
        assert!(folder.join("config.json").exists());
        let saved: Value =
            serde_json::from_slice(&fs::read(folder.join("results.json")).unwrap()).unwrap();
        assert_eq!(saved, result);
    }
    assert_eq!(digests[0], digests[1]);
}

#[test]
fn without_a_terminal_an_epoch_is_a_line_on_stderr() {
    let noise = Noise::new();
    let said = lines(&mut noise.train("run", 2));
    let epochs: Vec<_> = said.iter().filter(|line| line.contains("epoch ")).collect();
    assert_eq!(epochs.len(), 2, "{said:?}");
    for (line, number) in epochs.iter().zip(["1/2", "2/2"]) {
        assert!(line.starts_with("epoch") && line.contains(number), "{line}");
        for part in ["loss", "validation loss", "accuracy", "peak"] {
            assert!(line.contains(part), "{line}");
        }
    }
}

#[test]
fn every_parameter_is_released_at_the_scheduled_rate() {
    let noise = Noise::new();
    noise.train("run", 1).assert().success();
    let log = |name: &str| {
        let file = noise.folder("run/train/epoch-1").join(name);
        fs::read_to_string(file).unwrap()
    };
    assert_eq!(log("Released.log"), "100,1\n".repeat(8));
    assert_eq!(log("Applied_Learning_Rate.log"), log("Learning_Rate.log"));
    assert!(log("Peak_Memory.log").lines().count() == 8);
}

#[test]
fn a_loss_that_is_no_number_ends_the_run() {
    let noise = Noise::new();
    let mut command = noise.train("run", 50);
    let diverging = command.args(["--optimizer", "sgd", "--lr", "1"]);
    let output = diverging.assert().failure().get_output().clone();
    let stderr = String::from_utf8(output.stderr).unwrap();
    let last = stderr.lines().last().unwrap();
    assert!(
        last.starts_with("error: the loss is NaN in epoch"),
        "{last}"
    );
    assert!(last.contains("--lr"), "{last}");
    assert!(output.stdout.is_empty());
    assert!(!noise.folder("run/results.json").exists());
    let epoch = last.split("epoch ").nth(1).unwrap();
    let epoch = epoch.split(':').next().unwrap();
    let checkpoint = format!("run/checkpoint/model-{epoch}.mpk");
    assert!(!noise.folder(&checkpoint).exists());
}

#[cfg(unix)]
#[test]
fn ctrl_c_says_where_the_run_can_be_resumed() {
    // Nearly all the time goes into validation, so that is what is interrupted.
    let noise = Noise::with(8, 2000);
    let folder = noise.folder("run");
    let child = Process::new(assert_cmd::cargo::cargo_bin("vit"))
        .args(noise.args("run", 100_000))
        .args(["--mode", "plain"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let start = Instant::now();
    while !folder.join("checkpoint/scheduler-1.mpk").exists() {
        assert!(start.elapsed() < Duration::from_secs(60));
        sleep(Duration::from_millis(5));
    }
    sleep(Duration::from_millis(50));
    let kill = Process::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status()
        .unwrap();
    assert!(kill.success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    let stderr = String::from_utf8(output.stderr).unwrap();
    let said = stderr.lines().last().unwrap();
    let epoch = said.rsplit(' ').next().unwrap();
    assert!(said.contains("--resume"), "{said}");
    assert!(
        said.contains("continues from the checkpoint of epoch"),
        "{said}"
    );
    assert!(
        folder
            .join(format!("checkpoint/model-{epoch}.mpk"))
            .exists()
    );

    // An epoch is kept only if it was validated to its end.
    let losses = folder.join(format!("valid/epoch-{epoch}/Loss.log"));
    assert_eq!(fs::read_to_string(losses).unwrap().lines().count(), 250);

    // It is not lost by forgetting --resume.
    vit()
        .args(["train", "--artifact-dir"])
        .arg(&folder)
        .assert()
        .failure();
}

#[test]
fn every_optimizer_trains_alike_in_both_modes() {
    let noise = Noise::new();
    for optimizer in ["adam", "adamw", "sgd", "adagrad", "rmsprop", "adan"] {
        let [plain, release] = ["plain", "release"].map(|mode| {
            let mut command = noise.train(&format!("{optimizer}-{mode}"), 1);
            result(command.args(["--optimizer", optimizer, "--mode", mode]))
        });
        assert_eq!(outcome(&plain), outcome(&release), "{optimizer}");
    }
}

#[test]
fn folders_of_both_kinds_train() {
    let home = TempDir::new().unwrap();
    let idx = home.path().join("idx");
    fs::create_dir(&idx).unwrap();
    write_idx(&idx);
    let classes = home.path().join("classes");
    for number in 0..5u8 {
        write_png(&classes.join(format!("red/{number}.png")), 200 + number);
        write_png(&classes.join(format!("blue/{number}.png")), number);
    }
    for data in [idx, classes] {
        let run = home.path().join("run");
        let result = result(
            vit()
                .args(["train", "--epochs", "1", "--json", "--data"])
                .arg(&data)
                .arg("--artifact-dir")
                .arg(&run),
        );
        assert_eq!(result["epochs"], 1);
    }
}

#[test]
fn damaged_idx_files_are_named() {
    let home = TempDir::new().unwrap();
    let images = "train-images-idx3-ubyte";
    let labels = "train-labels-idx1-ubyte";
    let cases: [(&str, Option<Vec<u8>>, &str); 5] = [
        (images, None, "has no file train-images-idx3-ubyte"),
        (
            images,
            Some(idx(&[2, 4, 4], &[7; 31])),
            "cut short: 31 of 32",
        ),
        (labels, Some(idx(&[3], &[0, 1, 0])), "has 2 images but"),
        (
            images,
            Some(idx(&[2], &[0, 1])),
            "labels where images belong",
        ),
        (labels, Some(vec![0x1f, 0x8b, 8, 0]), "gzip"),
    ];
    for (file, content, text) in cases {
        write_idx(home.path());
        let file = home.path().join(file);
        match content {
            Some(content) => fs::write(file, content).unwrap(),
            None => fs::remove_file(file).unwrap(),
        }
        let run = home.path().join("run");
        fails(train(&run).arg("--data").arg(home.path()), text, &run);
    }
}

#[test]
fn bad_input_gets_one_line_and_leaves_nothing() {
    let home = TempDir::new().unwrap();
    let run = home.path().join("run");
    let cases: [(&[&str], &str); 9] = [
        (&["--data", "/nowhere/at/all"], "/nowhere/at/all"),
        (&["--batch-size", "0"], "batch-size"),
        (&["--lr", "0"], "--lr"),
        (&["--lr", "NaN"], "--lr"),
        (&["--dropout", "1"], "--dropout"),
        (&["--optimizer", "muon"], "muon"),
        (&["--image-size", "9"], "patches"),
        (&["--grads-accumulation", "46"], "45 batches"),
        (&["--no-fusion"], "flex never fuses"),
    ];
    for (args, text) in cases {
        let mut command = vit();
        command.args(["train", "--artifact-dir"]).arg(&run);
        fails(command.args(args), text, &run);
    }

    if !Path::new("/usr/share/datasets/fashion-mnist").exists() {
        let fashion = &mut train(&run);
        fashion.args(["--data", "fashion-mnist"]);
        fails(fashion, "package dataset-fashion-mnist", &run);
    }

    let picture = home.path().join("classes/a/1.png");
    write_png(&picture, 1);
    write_png(&home.path().join("classes/b/1.png"), 2);
    fs::write(&picture, "no picture").unwrap();
    let classes = home.path().join("classes");
    fails(train(&run).arg("--data").arg(classes), "a/1.png", &run);
}

#[cfg(not(feature = "cuda"))]
#[test]
fn a_backend_that_is_not_compiled_in_is_named() {
    let home = TempDir::new().unwrap();
    let run = home.path().join("run");
    fails(
        train(&run).args(["--backend", "cuda"]),
        "--features cuda",
        &run,
    );
}

#[test]
fn a_run_is_resumed_only_as_what_it_was() {
    let home = TempDir::new().unwrap();
    let run = home.path().join("run");
    let missing = &mut train(&run);
    fails(missing.arg("--resume"), "nothing to resume", &run);

    train(&run)
        .args(["--stop-after", "1", "--early-stopping", "3"])
        .assert()
        .success();
    let before = fs::read(run.join("config.json")).unwrap();
    let other = home.path().join("other");
    let preset = &mut train(&run);
    preset.args(["--resume", "--preset", "small"]);
    fails(preset, "--preset tiny, not small", &other);
    let epochs = &mut vit();
    epochs.args(["train", "--resume", "--epochs", "9", "--artifact-dir"]);
    fails(epochs.arg(&run), "--epochs 2, not 9", &other);
    for (flag, text) in [
        ("--grads-accumulation", "--grads-accumulation 1, not 2"),
        ("--early-stopping", "--early-stopping 3, not 2"),
    ] {
        fails(resume(&run).args([flag, "2"]), text, &other);
    }
    assert_eq!(fs::read(run.join("config.json")).unwrap(), before);
}

//! Options and images that the program refuses in one line, before anything is written.

use crate::both::refusals::{Refusals, are_refused};
use crate::program::{fails, idx, result, train};
use std::fs;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

/// Beside those that both programs refuse.
const REFUSED: Refusals = &[
    (
        "--activation-budget 1GiB",
        "--activation-budget is for --checkpointing automatic, not for none",
    ),
    (
        "--checkpointing blocks --activation-budget 1GiB",
        "--activation-budget is for --checkpointing automatic, not for blocks",
    ),
    (
        "--checkpointing automatic --activation-budget much",
        "--activation-budget",
    ),
    ("--checkpointing automatic --activation-budget -1", "-1"),
    ("--clip-grad-norm 0", "--clip-grad-norm must be above 0"),
    (
        "--epochs 18446744073709551615",
        "--epochs 18446744073709551615 of 45 batches each are more than can be counted",
    ),
    (
        "--epochs 18446744073709551615 --batch-size 1438",
        "--epochs 18446744073709551615 of 1 batches each are more than can be counted",
    ),
    ("--grads-accumulation 46", "45 batches"),
    (
        "--memory-timeline /",
        "--memory-timeline takes a file, and / is a folder",
    ),
    (
        "--memory-timeline /dev/full",
        "--memory-timeline takes a file, and /dev/full is none",
    ),
    (
        "--memory-timeline /nowhere/at/all.gz",
        "choose a folder that exists",
    ),
    (
        "--mode plain --checkpointing automatic",
        "use --mode release, or --checkpointing balanced",
    ),
    (
        "--mode plain --checkpointing blocks",
        "use --mode release, or --checkpointing balanced",
    ),
    ("--mode plain --clip-grad-norm 1", "use --mode release"),
    ("--no-fusion", "flex never fuses"),
    (
        "--optimizer adam-8bit --backend ndarray",
        "--optimizer adam-8bit is not for --backend ndarray",
    ),
    ("--optimizer sgd --no-decay-on-norms", "not for sgd"),
];

#[test]
fn bad_options_of_vit_get_one_line_and_leave_nothing() {
    are_refused(REFUSED);
}

/// Writes two images with labels under MNIST's names, for training and for validation.
fn write_idx(folder: &Path) {
    fs::create_dir_all(folder).unwrap();
    for part in ["train", "t10k"] {
        let write = |what: &str, bytes| {
            fs::write(folder.join(format!("{part}-{what}-ubyte")), bytes).unwrap();
        };
        write("images-idx3", idx(&[2, 4, 4], &[7; 32]));
        write("labels-idx1", idx(&[2], &[0, 1]));
    }
}

/// Writes five images of each of two classes.
fn write_classes(folder: &Path) {
    for number in 0..5u8 {
        for (class, level) in [("red", 200 + number), ("blue", number)] {
            fs::create_dir_all(folder.join(class)).unwrap();
            image::RgbImage::from_pixel(4, 4, image::Rgb([level, 0, 255 - level]))
                .save(folder.join(class).join(format!("{number}.png")))
                .unwrap();
        }
    }
}

#[test]
fn folders_of_both_kinds_train() {
    let home = TempDir::new().unwrap();
    let data = home.path().join("data");
    for write in [write_idx, write_classes] {
        write(&data);
        let mut run = train(&home.path().join("run"), &["--epochs", "1", "--overwrite"]);
        assert_eq!(result(run.arg("--data").arg(&data))["epochs"], 1);
        fs::remove_dir_all(&data).unwrap();
    }
}

/// What is in the place of an image file.
enum Instead {
    Nothing,
    Bytes(Vec<u8>),
    /// Nobody writes to it: to open it would wait for ever.
    Pipe,
}

#[test]
fn damaged_images_are_named() {
    use Instead::{Bytes, Nothing, Pipe};
    let images = "train-images-idx3-ubyte";
    let labels = "train-labels-idx1-ubyte";
    let red = "red/1.png";
    for (file, instead, text) in [
        (images, Nothing, "has no file train-images-idx3-ubyte"),
        (
            images,
            Bytes(idx(&[2, 4, 4], &[7; 31])),
            "cut short: 31 of 32",
        ),
        (
            images,
            Bytes(idx(&[2], &[0, 1])),
            "labels where images belong",
        ),
        (labels, Bytes(idx(&[3], &[0, 1, 0])), "has 2 images but"),
        (labels, Bytes(vec![0x1f, 0x8b, 8, 0]), "gzip"),
        (red, Bytes(b"no picture".to_vec()), red),
        #[cfg(unix)]
        (images, Pipe, "train-images-idx3-ubyte is not a file"),
        #[cfg(unix)]
        (red, Pipe, "1.png is not a file"),
    ] {
        let home = TempDir::new().unwrap();
        let data = home.path().join("data");
        match file == red {
            true => write_classes(&data),
            false => write_idx(&data),
        }
        let file = data.join(file);
        fs::remove_file(&file).unwrap();
        match instead {
            Nothing => {}
            Bytes(bytes) => fs::write(file, bytes).unwrap(),
            Pipe => assert!(
                Command::new("mkfifo")
                    .arg(&file)
                    .status()
                    .unwrap()
                    .success()
            ),
        }
        let run = home.path().join("run");
        fails(train(&run, &[]).arg("--data").arg(&data), &[text]);
        assert!(!run.exists());
    }
}

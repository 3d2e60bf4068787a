//! Of the examples that train before and after: the program compares the weights itself, and fails if
//! they differ; it tells both peaks; a README that shows the changed lines shows all of them.

use std::{fs, path::Path, process::Command};

#[test]
fn both_programs_reach_the_same_weights() {
    let run = Command::new(env!(concat!("CARGO_BIN_EXE_", env!("CARGO_PKG_NAME"))))
        .current_dir(env!("CARGO_TARGET_TMPDIR"))
        .output()
        .unwrap();
    assert!(run.status.success(), "{run:?}");
    let said = String::from_utf8(run.stdout).unwrap();
    assert!(said.contains("the same, bit for bit"), "{said}");
    // The peak of plain Burn, and that of gradient release.
    let words: Vec<_> = said.split_whitespace().collect();
    let numbers = words.windows(2).filter(|pair| pair[1].starts_with("MiB"));
    let peaks: Vec<f64> = numbers.map(|pair| pair[0].parse().unwrap()).collect();
    assert_eq!(peaks.len(), 2, "{said}");
    assert!(peaks[1] < peaks[0], "{said}");
}

#[test]
fn the_diff_in_the_readme_is_the_diff() {
    let read = |file| fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file));
    // The hand-written loops have none.
    let Ok(readme) = read("README.md") else {
        return;
    };
    let [before, after] = ["src/before.rs", "src/after.rs"].map(|file| read(file).unwrap());
    let only = |sign, lines: &str, other: &str| -> Vec<String> {
        let code = lines.lines().filter(|line| !line.starts_with("//!"));
        code.filter(|line| other.lines().all(|theirs| theirs != *line))
            .map(|line| format!("{sign}{line}"))
            .collect()
    };
    let changed = [only('-', &before, &after), only('+', &after, &before)];
    let (_, diff) = readme.split_once("```diff\n").unwrap();
    let (diff, _) = diff.split_once("```").unwrap();
    let shown = ['-', '+'].map(|sign| {
        let lines = diff.lines().filter(|line| line.starts_with(sign));
        lines.map(String::from).collect::<Vec<_>>()
    });
    assert_eq!(changed, shown);
}

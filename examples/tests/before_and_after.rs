//! Of the examples that train before and after: the program compares the weights itself, and fails if
//! they differ.

use std::process::Command;

#[test]
fn both_programs_reach_the_same_weights() {
    let run = Command::new(env!(concat!("CARGO_BIN_EXE_", env!("CARGO_PKG_NAME"))))
        .current_dir(env!("CARGO_TARGET_TMPDIR"))
        .output()
        .unwrap();
    assert!(run.status.success(), "{run:?}");
    let said = String::from_utf8(run.stdout).unwrap();
    assert!(said.contains("the same, bit for bit"), "{said}");
}

//! The program in several processes.

#[path = "../../../../vit-common/tests/processes.rs"]
mod both;
#[path = "../../../../vit-common/tests/program.rs"]
mod program;
#[path = "../cli/this.rs"]
mod this;

use both::{NEW, digest, images, kill, train};
use program::{result, said, wait_for};
use std::process::Stdio;
use tempfile::TempDir;
use this::PROGRAM;

#[test]
fn an_interruption_of_one_stops_all() {
    let home = TempDir::new().unwrap();
    let new = format!("{NEW} {}", images(&home));
    let whole = result(&mut train(2, &home.path().join("whole"), &new));
    let folder = home.path().join("run");
    let mut run = train(2, &folder, &new);
    run.stdout(Stdio::piped()).stderr(Stdio::piped());
    let run = run.spawn().unwrap();
    wait_for(&folder.join(PROGRAM.saved(1)));
    kill(&run, "-INT", 1);
    let output = run.wait_with_output().unwrap();
    let said = said(&output);
    assert!(said.contains("continues after epoch 1"), "{said}");
    assert!(!folder.join("results.json").exists());
    let resumed = result(&mut train(2, &folder, "--resume"));
    assert_eq!(digest(&resumed), digest(&whole));
}

//! The program in several processes.

#[path = "../../../vit-common/tests/processes.rs"]
mod both;
#[path = "../../../vit-common/tests/program.rs"]
mod program;
#[path = "../cli/this.rs"]
mod this;

use both::{NEW, digest, images, train, with};
use program::result;
use tempfile::TempDir;
use this::PROGRAM;

#[test]
fn blocks_are_recomputed_with_their_dropout() {
    let home = TempDir::new().unwrap();
    let images = images(&home);
    let new = NEW.map(|option| if option == "0" { "0.1" } else { option });
    let new = with(&new, &[&images]);
    let run = |name: &str, more: &[&str]| {
        result(&mut train(2, &home.path().join(name), &with(&new, more)))
    };
    let recomputed = run(
        "recomputed",
        &["--checkpointing", "blocks", "--shard-optimizer"],
    );
    assert_eq!(digest(&recomputed), digest(&run("kept", &[])));
}

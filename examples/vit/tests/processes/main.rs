//! The program in several processes.

#[path = "../../../vit-common/tests/processes.rs"]
mod both;
#[path = "../../../vit-common/tests/program.rs"]
mod program;
#[path = "../cli/this.rs"]
mod this;

use both::{NEW, digest, images, train};
use program::result;
use tempfile::TempDir;
use this::PROGRAM;

#[test]
fn blocks_are_recomputed_with_their_dropout() {
    let home = TempDir::new().unwrap();
    let new = NEW.replace("--dropout 0", "--dropout 0.1");
    let new = format!("{new} {}", images(&home));
    let run = |name: &str, more: &str| {
        let options = format!("{new} {more}");
        result(&mut train(2, &home.path().join(name), &options))
    };
    let recomputed = run("recomputed", "--checkpointing blocks --shard-optimizer");
    assert_eq!(digest(&recomputed), digest(&run("kept", "")));
}

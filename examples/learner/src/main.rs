//! Handwritten digits with Burn's Learner, before and after gradient release.
//!
//! `before.rs` and `after.rs` are the same program without and with gradient release:
//! `diff examples/learner/src/{before,after}.rs`. Logs and checkpoints go to `artifacts/learner`.

mod after;
mod before;
mod data;
mod model;

use anyhow::{Result, ensure};

use crate::model::{Classifier, weights};

const FOLDER: &str = "artifacts/learner";
const EPOCHS: usize = 2;

fn main() -> Result<()> {
    let before: Classifier = before::train()?;
    let after: Classifier = after::train()?;
    ensure!(
        weights(&before) == weights(&after),
        "the two programs reached different weights"
    );
    println!("the weights are the same, bit for bit");
    Ok(())
}

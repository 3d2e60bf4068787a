//! Handwritten digits with Burn's Learner, before and after gradient release.
//!
//! `before.rs` and `after.rs` are the same program without and with gradient release:
//! `diff examples/burn-0.21/learner/src/{before,after}.rs`. Logs and checkpoints go to
//! `artifacts/learner-0-21`.

mod after;
mod before;
mod data;
mod model;

use anyhow::{Result, ensure};

use crate::model::weights;

const FOLDER: &str = "artifacts/learner-0-21";
const EPOCHS: usize = 2;

fn main() -> Result<()> {
    let before = before::train()?;
    let after = after::train()?;
    ensure!(
        weights(&before) == weights(&after),
        "the two programs reached different weights"
    );
    println!("the weights are the same, bit for bit");
    Ok(())
}

//! What gradient release and other optimizers would save, as text.

use anyhow::{Context, Result};
use comfy_table::ContentArrangement;

use super::text::{mib, mib_more, table};
use crate::analysis::{Choice, Stepping, Totals};
use crate::snapshot::Snapshot;

/// The estimated peak of each way to train. With `fit`, what to switch on so that a step needs no
/// more than so many bytes.
pub(super) fn savings(snapshot: &Snapshot, fit: Option<u64>) -> Result<String> {
    let totals = Totals::of(snapshot);
    let all = Choice::all(snapshot, &totals).context("nothing can be estimated")?;
    let header = [
        "peak, MiB",
        "saved",
        "gradient release",
        "optimizer",
        "weights",
    ];
    let mut table = table(&header, 0..2);
    table.set_content_arrangement(ContentArrangement::Disabled);
    for choice in &all {
        let (release, optimizer, weights) = words(choice);
        let saved = mib_more(all[0].peak as i64 - choice.peak as i64);
        table.add_row([&mib(choice.peak), &saved, release, optimizer, weights]);
    }
    let Some(memory) = fit else {
        return Ok(format!("{table}\n"));
    };
    let chosen = Choice::within(&all, memory).with_context(|| {
        let least = all.iter().map(|choice| choice.peak).min();
        format!(
            "nothing that is estimated fits into {} MiB: the least is {} MiB; scopes and operations, \
             which are not estimated, save activations",
            mib(memory),
            mib(least.unwrap_or(0))
        )
    })?;
    let (release, optimizer, weights) = words(chosen);
    Ok(format!(
        "The first that fits into {} MiB: gradient release {release}, optimizer {optimizer}; a peak of \
         {} MiB, {weights} weights.\n\n{table}\n",
        mib(memory),
        mib(chosen.peak)
    ))
}

fn words(choice: &Choice) -> (&'static str, &'static str, &'static str) {
    let release = match choice.release {
        true => "on",
        false => "off",
    };
    let (optimizer, weights) = match choice.stepping {
        Stepping::Recorded => ("as recorded", "the same"),
        Stepping::InOnePass => ("Adam in one pass", "the same, if Adam's"),
        Stepping::EightBit => ("Adam in one pass, moments in 8 bits", "other"),
    };
    (release, optimizer, weights)
}

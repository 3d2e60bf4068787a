//! The table at the end of a run.

use crate::config::Mode;
use crate::model::VitConfig;
use crate::results::Results;
use crate::terminal::mib;
use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;

/// The table that a finished run ends with. A run that accumulates adds up the gradients of several
/// batches for a step.
pub fn summary(model: &VitConfig, mode: Mode, accumulates: bool, results: &Results) -> String {
    let all = 4 * model.num_params() as u64;
    let largest = 4 * model.largest_param() as u64;
    // The sums that accumulation keeps from batch to batch, in either mode.
    let sums = if accumulates { all } else { 0 };
    let and_sums = if sums > 0 { ", and their sums" } else { "" };
    let mut table = Table::new();
    table.load_preset(ASCII_MARKDOWN);
    table.set_header(["", "", "how known"]);
    table.add_row(["epochs", &results.epochs.to_string(), "counted"]);
    table.add_row([
        "validation accuracy",
        &format!("{:.2} %", results.validation_accuracy * 100.0),
        "measured",
    ]);
    let peak = size(results.peak_bytes);
    match results.peak_reserved_bytes {
        None => {
            table.add_row([
                "peak memory",
                &peak,
                "measured, on the heap, beyond the images",
            ]);
        }
        Some(reserved) => {
            table.add_row(["peak memory", &peak, "measured, on the GPU, in use"]);
            table.add_row([
                "peak memory reserved",
                &size(reserved),
                "measured, on the GPU: taken from it, in use or not",
            ]);
        }
    }
    table.add_row([
        "gradients that plain Burn holds at once",
        &size(sums + all),
        &format!("computed: one for every weight{and_sums}"),
    ]);
    if mode == Mode::Release {
        table.add_row([
            "gradients that gradient release holds at once",
            &size(sums + largest),
            &format!("computed: the largest one, if alone{and_sums}"),
        ]);
        table.add_row([
            "saved by gradient release, up to",
            &size(all - largest),
            "computed: the difference; the benchmarks measure it",
        ]);
    }
    table.to_string()
}

fn size(bytes: u64) -> String {
    format!("{} MiB", mib(bytes, 2))
}

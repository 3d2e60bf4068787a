//! The results as text: a table in Markdown, ratios of times, and what is missing.

use crate::machine::describe;
use crate::results::{Items, LeftOut, Phase, Pool, Results, Run, median};
use crate::subject::{Burn, Checkpointing, Mode, Subject};
use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;

const LEGEND: &str = "\
MiB, all beyond the memory in use before the model was built. P: parameters. O: optimizer state. A: memory
that the forward pass leaves allocated, its batch included. G: memory that the backward pass leaves
allocated, that is, all gradients that exist at once. held: A in the forward pass, G in the optimizer's
step, the larger of both in the backward pass. temporaries: the rest, so that
P + O + held + temporaries = peak; recomputed activations are temporaries. first steps: the peak while the
model is built and in the steps to warm up, which make the optimizer's state. of floor: the peak divided by
P + O + A + the largest gradient, the least that gradient release can need. reserved: memory reserved from
the device. Flex counts every byte on the heap. Burn's GPU backends and PyTorch on CUDA count the bytes of
their allocators, Burn 0.22 those in use as often as the device answers; PyTorch on the CPU adds up the
allocations that its profiler records. ms: median of the measured steps. Bytes are counted in the same
process where that costs no time (Flex, PyTorch on CUDA) and in Burn 0.21 without fusion; otherwise in a
separate one. Losses and weights are comparable within one framework only, with Burn within one version,
and where operations, `flat linear` and `loss chunk` are the same: they add up in another order.";

/// What a run has in a column.
type Value = fn(&Run, &Results) -> String;

const COLUMNS: [(&str, Value); 18] = [
    ("model", |run, _| run.case.title()),
    ("on", |run, _| run.subject.place()),
    ("mode", |run, _| run.subject.name()),
    ("P", |run, _| item(run, |it| mib(it.parameters))),
    ("O", |run, _| item(run, |it| mib(it.optimizer_state))),
    ("A", |run, _| item(run, |it| mib(it.activations))),
    ("G", |run, _| item(run, |it| mib(it.gradients))),
    ("largest gradient", |run, _| {
        item(run, |it| mib(it.largest_gradient))
    }),
    ("peak in", |run, _| item(run, |it| phase(it.peak_in))),
    ("held", |run, _| item(run, |it| mib(it.held))),
    ("temporaries", |run, _| item(run, |it| mib(it.temporaries))),
    ("peak", |run, _| or_dash(peak(run).map(mib))),
    ("first steps", |run, _| {
        let bytes = run.measured.memory;
        or_dash(bytes.map(|bytes| mib(bytes.warm_up_peak_bytes)))
    }),
    ("of floor", |run, _| {
        let items = run.items.filter(|_| run.subject.releases());
        let both = peak(run).zip(items);
        or_dash(both.map(|(peak, items)| format!("{:.3}", peak as f64 / items.floor() as f64)))
    }),
    ("reserved", |run, _| {
        let bytes = run.measured.memory;
        or_dash(bytes.and_then(|bytes| bytes.peak_reserved_bytes).map(mib))
    }),
    ("ms", |run, all| {
        let median = median(&times(&all.runs, run));
        or_dash(median.map(|time| format!("{time:.2}")))
    }),
    ("loss", |run, _| format!("{:.4}", run.measured.final_loss)),
    ("weights", |run, _| {
        run.measured.weights_digest.chars().take(8).collect()
    }),
];

/// The results as text.
pub fn table(results: &Results) -> String {
    let mut text = format!("Machine: {}\n", describe(&results.machine));
    text += &format!("Versions: {}\n", describe(&results.versions));
    text += &format!("Command: `{}`\n", results.command.join(" "));
    let settings = results.settings;
    text += &format!(
        "Adam, for the encoder AdamW, fp32; {} steps to warm up, {} measured, {} times over\n\n",
        settings.warm_up, settings.steps, settings.repeat
    );
    if !results.runs.is_empty() {
        let mut table = Table::new();
        table.load_preset(ASCII_MARKDOWN);
        table.set_header(COLUMNS.map(|(name, _)| name));
        for run in results.runs.iter().filter(|run| run.repetition == 0) {
            table.add_row(COLUMNS.map(|(_, value)| value(run, results)));
        }
        text += &format!("{table}\n\n{LEGEND}\n");
    }
    let pools = pools(&results.runs);
    if !pools.is_empty() {
        text += "\nPools at the peak (pages of so many MiB), MiB in use and reserved:\n";
        text += &pools.join("\n");
        text.push('\n');
    }
    let ratios = ratios(&results.runs);
    if !ratios.is_empty() {
        text += "\nStep times, relative to the run of plain Burn next to it, and the weights after the last step:\n";
        text += &ratios.join("\n");
    }
    text += &list("Left out", &results.left_out);
    text += &list("Failed", &results.failed);
    text
}

fn or_dash(value: Option<String>) -> String {
    value.unwrap_or_else(|| "-".into())
}

fn item(run: &Run, value: impl FnOnce(&Items) -> String) -> String {
    or_dash(run.items.as_ref().map(value))
}

fn peak(run: &Run) -> Option<u64> {
    run.measured.memory.map(|bytes| bytes.peak_bytes)
}

/// Bytes in MiB, without the unit.
fn mib(bytes: impl Into<i128>) -> String {
    format!("{:.1}", bytes.into() as f64 / f64::from(1 << 20))
}

fn phase(phase: Phase) -> String {
    format!("{phase:?}").to_lowercase()
}

/// A line for each run of a GPU: pools of a MiB at least.
fn pools(all: &[Run]) -> Vec<String> {
    let runs = all.iter().filter(|run| run.repetition == 0);
    let runs = runs.filter(|run| !run.measured.pools.is_empty());
    let line = |run: &Run| {
        let pools = run.measured.pools.iter();
        let pools = pools.filter(|it| it.reserved_bytes >= 1 << 20);
        let pools = pools.map(pool).collect::<Vec<_>>();
        format!("- {}: {}", run.case.with(&run.subject), pools.join("; "))
    };
    runs.map(line).collect()
}

fn pool(pool: &Pool) -> String {
    let pages = match pool.page_bytes {
        Some(bytes) => format!(" ({} of {})", pool.pages, mib(bytes)),
        None => String::new(),
    };
    let (in_use, reserved) = (mib(pool.in_use_bytes), mib(pool.reserved_bytes));
    format!("{}{pages} {in_use} of {reserved}", pool.name)
}

/// The step times of all repetitions of a run, in order.
fn times(all: &[Run], like: &Run) -> Vec<f64> {
    all.iter()
        .filter(|run| run.case == like.case && run.subject == like.subject)
        .filter_map(|run| run.step_milliseconds)
        .collect()
}

/// Step times relative to plain Burn's: medians over pairs of runs. The modes ran in turn, so the
/// n-th runs of both are neighbours in time, on a machine under the same load. What is recomputed
/// otherwise than by Burn is also relative to plain Burn that keeps it. Other arithmetic has other
/// weights, so plain Burn's is the same.
fn ratios(all: &[Run]) -> Vec<String> {
    let mut lines = Vec::new();
    for plain in all.iter().filter(|run| run.repetition == 0) {
        let Subject::Burn(burn) = plain.subject else {
            continue;
        };
        if burn.mode != Mode::Plain {
            continue;
        }
        let kept = burn.checkpointing == Checkpointing::None;
        let like_plain = |other: &&Run| {
            let Subject::Burn(run) = other.subject else {
                return false;
            };
            let both = [burn, run].map(|run| Burn {
                mode: Mode::Plain,
                checkpointing: Checkpointing::None,
                ..run
            });
            let is_comparable = match kept {
                true => run.checkpointing != Checkpointing::Balanced,
                false => run.checkpointing == burn.checkpointing,
            };
            let is_other = run != burn && run.mode != Mode::Ideal && other.repetition == 0;
            is_other && other.case == plain.case && both[0] == both[1] && is_comparable
        };
        for other in all.iter().filter(like_plain) {
            let ratios: Vec<f64> = times(all, other)
                .iter()
                .zip(times(all, plain))
                .map(|(this, plain)| this / plain)
                .collect();
            let (Some(ratio), Subject::Burn(run)) = (median(&ratios), &other.subject) else {
                continue;
            };
            let mut both = vec![plain.case.title() + "; " + &plain.subject.place()];
            if !kept {
                both.push(format!("{} checkpointing", burn.checkpointing));
            }
            both.extend(burn.arithmetic());
            let name = match run.checkpointing == burn.checkpointing {
                true => run.mode.to_string(),
                false => format!("{}, {}", run.mode, run.checkpointing),
            };
            let is_same = plain.measured.weights_digest == other.measured.weights_digest;
            let weights = match is_same {
                true => "the same",
                false if run.is_fused_or_tuned() => "other (fused or tuned)",
                false => "OTHER",
            };
            lines.push(format!(
                "- {}: {name} over plain (median of {}): {ratio:.3}; {weights} weights",
                both.join(", "),
                ratios.len(),
            ));
        }
    }
    lines
}

fn list(title: &str, entries: &[LeftOut]) -> String {
    if entries.is_empty() {
        return String::new();
    }
    let mut text = format!("\n\n{title}:");
    for LeftOut { what, why } in entries {
        text += &format!("\n- {what}: {why}");
    }
    text
}

//! The table, in Markdown.

use super::mib;
use crate::results::{
    Checkpointing, Items, LeftOut, Mode, Phase, Results, Run, Subject, Vocabulary, value_name,
};
use crate::stats::median;
use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;

const LEGEND: &str = "\
MiB, all beyond the memory in use before the model was built. P: parameters. O: optimizer state. A: memory
that the forward pass leaves allocated, its batch included. G: memory that the backward pass leaves
allocated, that is, all gradients that exist at once. held: A in the forward pass, G in the optimizer's
step, the larger of both in the backward pass. temporaries: the rest, so that
P + O + held + temporaries = peak; recomputed activations are temporaries. of floor: the peak divided by
P + O + A + the largest gradient, the least that gradient release can need. reserved: memory reserved from
the device; not in use: the part of it beyond the peak. Flex counts every byte on the heap. Burn's GPU
backends and PyTorch on CUDA count the bytes of their allocators; PyTorch on the CPU adds up the
allocations that its profiler records. ms: median of the measured steps. Bytes are counted in the same
process where that costs no time (Flex, PyTorch on CUDA) and in Burn without fusion; otherwise in a
separate one. Losses and weights are comparable within one framework only, with Burn within one version, and
where operations, `flat linear` and `loss chunk` are the same: they add up in another order.";

const TIMELINES: &str = "\
Memory timelines: `timelines/` has one of each run of Burn, two steps recorded in a separate process;
`results.json` names the file of each. `burn-memory html plain.json.gz release.json.gz` makes a page of two
of them, side by side, and `burn-memory summary` summarizes one (crates/burn-0.21/burn-gradient-release-timeline).";

/// The results as text.
pub fn table(results: &Results) -> String {
    let mut text = format!("Machine: {}\n", results.machine.describe());
    text += &format!("Versions: {}\n", results.versions.describe());
    text += &format!("Command: `{}`\n", results.command.join(" "));
    let settings = results.settings;
    text += &format!(
        "Adam, for the encoder AdamW, fp32; {} steps to warm up, {} measured, {} times over\n\n",
        settings.warm_up, settings.steps, settings.repeat
    );
    let first: Vec<&Run> = results
        .runs
        .iter()
        .filter(|run| run.repetition == 0)
        .collect();
    if !first.is_empty() {
        text += &rows(&first, &results.runs);
        text += &format!("\n\n{LEGEND}\n");
    }
    let ratios = ratios(&results.runs);
    if !ratios.is_empty() {
        text += "\nStep times, relative to the run of plain Burn next to it, and the weights after the last step:\n";
        text += &ratios.join("\n");
    }
    if results.runs.iter().any(|run| run.timeline.is_some()) {
        text += &format!("\n\n{TIMELINES}");
    }
    for found in &results.vocabulary {
        text += &format!("\n\n{}", vocabulary(found));
    }
    text += &list("Left out", &results.left_out);
    text += &list("Failed", &results.failed);
    text
}

fn rows(first: &[&Run], all: &[Run]) -> String {
    let mut table = Table::new();
    table.load_preset(ASCII_MARKDOWN).set_header([
        "model",
        "on",
        "mode",
        "P",
        "O",
        "A",
        "G",
        "largest gradient",
        "peak in",
        "held",
        "temporaries",
        "peak",
        "of floor",
        "reserved",
        "not in use",
        "ms",
        "loss",
        "weights",
    ]);
    let dash = || String::from("-");
    for run in first {
        let items = run.items.as_ref();
        let bytes = |value: fn(&Items) -> u64| items.map_or_else(dash, |items| mib(value(items)));
        let memory = run.measured.memory;
        let floor = items.filter(|_| run.subject.releases()).zip(memory);
        table.add_row([
            run.case.title(),
            run.subject.place(),
            run.subject.name(),
            bytes(|items| items.parameters),
            bytes(|items| items.optimizer_state),
            bytes(|items| items.activations),
            bytes(|items| items.gradients),
            bytes(|items| items.largest_gradient),
            items.map_or_else(dash, |items| phase(items.peak_in).into()),
            bytes(|items| items.held),
            items.map_or_else(dash, |items| mib(items.temporaries)),
            memory.map_or_else(dash, |memory| mib(memory.peak_bytes)),
            floor.map_or_else(dash, |(items, memory)| {
                format!("{:.3}", memory.peak_bytes as f64 / items.floor() as f64)
            }),
            memory
                .and_then(|memory| memory.peak_reserved_bytes)
                .map_or_else(dash, mib),
            items
                .and_then(|items| items.fragmentation)
                .map_or_else(dash, mib),
            median(&times(all, run)).map_or_else(dash, |time| format!("{time:.2}")),
            format!("{:.4}", run.measured.final_loss),
            run.measured.weights_digest.chars().take(8).collect(),
        ]);
    }
    table.to_string()
}

fn phase(phase: Phase) -> &'static str {
    match phase {
        Phase::Forward => "forward",
        Phase::Backward => "backward",
        Phase::Step => "step",
    }
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
        let Subject::Burn {
            burn,
            backend,
            fusion,
            mode: Mode::Plain,
            checkpointing,
            arithmetic,
        } = plain.subject
        else {
            continue;
        };
        let others: &[Checkpointing] = match checkpointing {
            Checkpointing::None => &[
                Checkpointing::None,
                Checkpointing::Blocks,
                Checkpointing::Nested,
                Checkpointing::Automatic,
            ],
            _ => &[checkpointing],
        };
        for (recomputed, mode) in others
            .iter()
            .flat_map(|other| {
                [Mode::Plain, Mode::Release, Mode::Unarmed].map(|mode| (*other, mode))
            })
            .filter(|other| *other != (checkpointing, Mode::Plain))
        {
            let subject = Subject::Burn {
                burn,
                backend,
                fusion,
                mode,
                checkpointing: recomputed,
                arithmetic,
            };
            let other = all
                .iter()
                .find(|run| run.case == plain.case && run.subject == subject);
            let Some(other) = other else { continue };
            let ratios: Vec<f64> = times(all, other)
                .iter()
                .zip(times(all, plain))
                .map(|(this, plain)| this / plain)
                .collect();
            if let Some(ratio) = median(&ratios) {
                let mut both = match checkpointing {
                    Checkpointing::None => Vec::new(),
                    other => vec![format!("{other} checkpointing")],
                };
                both.extend(arithmetic.words());
                let both: String = both.iter().map(|word| format!(", {word}")).collect();
                let name = match checkpointing == recomputed {
                    true => value_name(mode),
                    false => format!("{}, {recomputed}", value_name(mode)),
                };
                let same = plain.measured.weights_digest == other.measured.weights_digest;
                let weights = if same { "the same" } else { "OTHER" };
                lines.push(format!(
                    "- {}; {}{both}: {name} over plain (median of {}): {ratio:.3}; {weights} weights",
                    plain.case.title(),
                    plain.subject.place(),
                    ratios.len()
                ));
            }
        }
    }
    lines
}

fn vocabulary(found: &Vocabulary) -> String {
    let mut place = vec![found.place.clone()];
    place.extend(found.arithmetic.words());
    format!(
        "{} ({}): plain trains a vocabulary of {} in a peak of {} MiB, gradient release the same one \
         in {} MiB; in plain's peak it trains a vocabulary of {} ({} MiB), {:.2} times as large.",
        found.model,
        place.join(", "),
        found.vocabulary,
        mib(found.plain_peak_bytes),
        mib(found.release_peak_bytes),
        found.release_vocabulary,
        mib(found.release_vocabulary_peak_bytes),
        found.release_vocabulary as f64 / found.vocabulary as f64
    )
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

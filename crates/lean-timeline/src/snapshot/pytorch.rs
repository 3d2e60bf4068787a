//! Writes PyTorch's memory snapshot as JSON, which pytorch.org/memory_viz opens.
//!
//! A holder is an `alloc` and a `free_completed`. Its frame names the parameter as the function and
//! the operation as the file; `user_metadata` is the phase. What PyTorch has no place for (shapes,
//! ticks, samples) is under the key `burn`, which its tools ignore.

use std::cmp::Reverse;
use std::io::{Result, Write};

use super::event::{Block, Event, Frame, IN_USE, Segment};
use super::layout::Layout;
use super::phases::PhaseNames;
use super::{Category, Holder, Snapshot};
use crate::analysis::{Totals, moments};

/// Workspaces of less than this share of the peak are not drawn, but for that of the peak itself.
const DRAWN: u64 = 64;

pub(super) fn write(snapshot: &Snapshot, mut to: impl Write) -> Result<()> {
    write!(to, "{{\"burn\":")?;
    serde_json::to_writer(&mut to, snapshot)?;
    write!(to, ",\n\"device_traces\":[[\n")?;
    // Without an event of this category the page fails when it lists the categories.
    let first = Event {
        action: "snapshot".into(),
        category: Some(Category::Other.names().1.into()),
        ..Event::default()
    };
    serde_json::to_writer(&mut to, &first)?;
    let segment = events(snapshot, |event| {
        to.write_all(b",\n")?;
        Ok(serde_json::to_writer(&mut to, event)?)
    })?;
    write!(to, "\n]],\n\"segments\":")?;
    serde_json::to_writer(&mut to, &Vec::from_iter(segment))?;
    writeln!(to, "}}")
}

/// Calls `write` with all events in order. Returns the segment of what is held at the end.
fn events<'a>(
    snapshot: &'a Snapshot,
    mut write: impl FnMut(&Event<'_>) -> Result<()>,
) -> Result<Option<Segment<'a>>> {
    let holders = &snapshot.holders;
    let is_held = |index: &usize| holders[*index].from < holders[*index].until;
    let mut ends: Vec<usize> = (0..holders.len()).filter(is_held).collect();
    let mut begins = ends.clone().into_iter().peekable();
    ends.sort_by_key(|index| holders[*index].until);
    let mut ends = ends.into_iter().peekable();
    let mut workspaces = workspaces(snapshot).into_iter().peekable();
    let (mut layout, mut addresses) = (Layout::default(), vec![0; holders.len()]);
    // Workspaces lie above all else.
    let mut most = 0;
    let phases = PhaseNames::of(snapshot);
    for (tick, &time_us) in snapshot.times.iter().enumerate() {
        let event = |action: &'static str, addr, size| Event {
            action: action.into(),
            addr,
            size,
            time_us,
            tick: Some(tick),
            ..Event::default()
        };
        while let Some(index) = ends.next_if(|index| holders[*index].until == tick) {
            let (address, bytes) = (addresses[index], holders[index].bytes);
            layout.release(address, bytes);
            write(&event("free_requested", address, bytes))?;
            write(&event("free_completed", address, bytes))?;
        }
        while let Some(index) = begins.next_if(|index| holders[*index].from == tick) {
            let held = &holders[index];
            addresses[index] = layout.place(held.bytes);
            write(&Event {
                frames: vec![frame(snapshot, held)],
                category: Some(held.category.names().1.into()),
                user_metadata: Some(phases.at(tick).into()),
                ..event("alloc", addresses[index], held.bytes)
            })?;
        }
        while let Some((_, bytes, operation)) = workspaces.next_if(|next| next.0 == tick) {
            most = most.max(layout.bytes + bytes);
            let made = Event {
                frames: vec![frame_of("workspace", operation)],
                category: Some(Category::Temporaries.names().1.into()),
                user_metadata: Some(phases.at(tick).into()),
                is_workspace: true,
                ..event("alloc", layout.end(), bytes)
            };
            write(&made)?;
            for action in ["free_requested", "free_completed"] {
                let is_workspace = true;
                let free = event(action, layout.end(), bytes);
                write(&Event {
                    is_workspace,
                    ..free
                })?;
            }
        }
    }
    let held = ends.map(|index| (addresses[index], &holders[index]));
    Ok(segment(snapshot, held.collect(), most.max(layout.bytes)))
}

/// Bytes of samples that are in no holder, with tick and operation: those that a picture shows.
fn workspaces(snapshot: &Snapshot) -> Vec<(usize, u64, &str)> {
    let totals = Totals::of(snapshot);
    let mut moments: Vec<_> = moments(snapshot, &totals).collect();
    let peak = |moment: &crate::analysis::Moment| (moment.sample.peak, Reverse(moment.tick));
    let peak = moments.iter().map(peak).max().unwrap_or_default();
    moments.retain(|moment| {
        let is_peak = (moment.sample.peak, Reverse(moment.tick)) == peak;
        moment.workspace > 0 && (is_peak || moment.workspace * DRAWN >= peak.0)
    });
    moments.sort_by_key(|moment| moment.tick);
    let workspace = |moment: crate::analysis::Moment| {
        let operation = moment.sample.operation;
        let operation = operation.map_or("between samples", |of| &snapshot.operations[of]);
        (moment.tick, moment.workspace, operation)
    };
    moments.into_iter().map(workspace).collect()
}

fn frame<'a>(snapshot: &'a Snapshot, held: &Holder) -> Frame<'a> {
    let parameter = held
        .parameter
        .map(|of| snapshot.parameters[of].path.as_str());
    frame_of(
        parameter.unwrap_or("-"),
        &snapshot.operations[held.operation],
    )
}

fn frame_of<'a>(name: &'a str, filename: &'a str) -> Frame<'a> {
    Frame {
        name: name.into(),
        filename: filename.into(),
        line: 0,
    }
}

/// The segment of so many bytes, with the blocks in use and the gaps between them.
fn segment<'a>(
    snapshot: &'a Snapshot,
    mut held: Vec<(u64, &Holder)>,
    bytes: u64,
) -> Option<Segment<'a>> {
    held.sort_by_key(|(address, _)| *address);
    let in_use: u64 = held.iter().map(|(_, held)| held.bytes).sum();
    let mut blocks = Vec::new();
    let mut at = Layout::BASE;
    let gap = |from: u64, to: u64| {
        (from < to).then(|| Block {
            address: Some(from),
            size: to - from,
            state: "inactive".into(),
            ..Block::default()
        })
    };
    for (address, held) in held {
        blocks.extend(gap(at, address));
        blocks.push(Block {
            address: Some(address),
            size: held.bytes,
            requested_size: held.bytes,
            state: IN_USE.into(),
            frames: vec![frame(snapshot, held)],
        });
        at = address + held.bytes;
    }
    blocks.extend(gap(at, Layout::BASE + bytes));
    (bytes > 0).then(|| Segment {
        address: Layout::BASE,
        total_size: bytes,
        allocated_size: in_use,
        active_size: in_use,
        requested_size: in_use,
        segment_type: "large",
        blocks,
        ..Segment::default()
    })
}

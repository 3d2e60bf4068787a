//! Writes PyTorch's memory snapshot as JSON, which pytorch.org/memory_viz opens.
//!
//! A holder is an `alloc` and a `free_completed`. Its frame names the parameter as the function and
//! the operation as the file; `user_metadata` is the phase. What PyTorch has no place for (shapes,
//! ticks, samples) is under the key `burn`, which its tools ignore.

use std::collections::HashMap;
use std::io::{Result, Write};

use serde_json::{Value, json};

use super::event::{Event, Frame, IN_USE};
use super::phases::PhaseNames;
use super::{Category, Snapshot};
use crate::analysis::{Peak, Totals};

/// Bytes of no holder are an allocation at the peak, and from this share of the peak on.
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
    let slots = events(snapshot, |event| {
        to.write_all(b",\n")?;
        Ok(serde_json::to_writer(&mut to, &event)?)
    })?;
    write!(to, "\n]],\n\"segments\":")?;
    serde_json::to_writer(&mut to, &[slots.segment(snapshot)])?;
    writeln!(to, "}}")
}

/// Calls `write` with all events in order. Returns what is held at the end.
fn events(snapshot: &Snapshot, mut write: impl FnMut(Event<'_>) -> Result<()>) -> Result<Slots> {
    let (totals, phases) = (Totals::of(snapshot), PhaseNames::of(snapshot));
    let peak = Peak::of(snapshot, &totals).map_or((0, 0), |peak| (peak.bytes, peak.tick));
    let holders = &snapshot.holders;
    let is_held = |index: &usize| {
        let held = &holders[*index];
        held.from < held.until && held.bytes > 0
    };
    let begins: Vec<usize> = (0..holders.len()).filter(is_held).collect();
    let mut ends = begins.clone();
    ends.sort_by_key(|index| holders[*index].until);
    let mut begins = begins.into_iter().peekable();
    let mut ends = ends.into_iter().peekable();
    let (mut slots, mut places, mut last) = (Slots::default(), vec![0; holders.len()], None);
    for (tick, &time_us) in snapshot.times.iter().enumerate() {
        let event = |action: &'static str, slot: &Slot, is_workspace| Event {
            action: action.into(),
            addr: slot.address,
            size: slot.bytes,
            time_us,
            tick: Some(tick),
            is_workspace,
            ..Event::default()
        };
        let made = |frame, category: Category, alloc| Event {
            frames: vec![frame],
            category: Some(category.names().1.into()),
            user_metadata: Some(phases.at(tick).into()),
            ..alloc
        };
        while let Some(index) = ends.next_if(|index| holders[*index].until == tick) {
            let slot = slots.release(places[index]);
            write(event("free_requested", slot, false))?;
            write(event("free_completed", slot, false))?;
        }
        while let Some(index) = begins.next_if(|index| holders[*index].from == tick) {
            places[index] = slots.take(holders[index].bytes, Some(index));
            let alloc = event("alloc", &slots.all[places[index]], false);
            write(made(frame(snapshot, index), holders[index].category, alloc))?;
            last = Some(index);
        }
        let workspace = totals.peaks()[tick] - totals.known()[tick];
        if workspace > 0 && (tick == peak.1 || workspace * DRAWN >= peak.0) {
            let place = slots.take(workspace, None);
            let slot = slots.release(place);
            let mut frame = last.map_or_else(Frame::default, |index| frame(snapshot, index));
            frame.name = "workspace".into();
            write(made(
                frame,
                Category::Temporaries,
                event("alloc", slot, true),
            ))?;
            write(event("free_requested", slot, true))?;
            write(event("free_completed", slot, true))?;
        }
    }
    Ok(slots)
}

/// Names the parameter and the operation of a holder.
fn frame(snapshot: &Snapshot, index: usize) -> Frame<'_> {
    let held = &snapshot.holders[index];
    let parameter = held.parameter.map(|of| &*snapshot.parameters[of].path);
    Frame {
        name: parameter.unwrap_or("-").into(),
        filename: (&*snapshot.operations[held.operation]).into(),
        line: 0,
    }
}

/// Addresses, which holders do not have: as of an allocator that takes what was released only for
/// allocations of the same size.
#[derive(Default)]
struct Slots {
    /// Side by side.
    all: Vec<Slot>,
    free: HashMap<u64, Vec<usize>>,
}

struct Slot {
    address: u64,
    bytes: u64,
    holder: Option<usize>,
}

impl Slots {
    /// The first address; 0 is none.
    const BASE: u64 = 1 << 32;

    fn end(&self) -> u64 {
        let last = self.all.last();
        last.map_or(Self::BASE, |slot| slot.address + slot.bytes)
    }

    fn take(&mut self, bytes: u64, holder: Option<usize>) -> usize {
        let free = self.free.get_mut(&bytes).and_then(Vec::pop);
        let place = free.unwrap_or(self.all.len());
        let address = self.end();
        if free.is_none() {
            self.all.push(Slot {
                address,
                bytes,
                holder,
            });
        }
        self.all[place].holder = holder;
        place
    }

    fn release(&mut self, place: usize) -> &Slot {
        let slot = &mut self.all[place];
        slot.holder = None;
        self.free.entry(slot.bytes).or_default().push(place);
        slot
    }

    fn segment(&self, snapshot: &Snapshot) -> Value {
        let blocks = self.all.iter().map(|slot| {
            let frames = Vec::from_iter(slot.holder.map(|index| frame(snapshot, index)));
            let state = if frames.is_empty() {
                "inactive"
            } else {
                IN_USE
            };
            json!({"address": slot.address, "size": slot.bytes, "requested_size": slot.bytes,
                "state": state, "frames": frames})
        });
        let in_use = self.all.iter().filter(|slot| slot.holder.is_some());
        let in_use: u64 = in_use.map(|slot| slot.bytes).sum();
        let (blocks, bytes) = (Vec::from_iter(blocks), self.end() - Self::BASE);
        json!({"device": 0, "address": Self::BASE, "total_size": bytes, "stream": 0,
            "allocated_size": in_use, "active_size": in_use, "requested_size": in_use,
            "segment_type": "large", "blocks": blocks})
    }
}

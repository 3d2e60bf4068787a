//! Reads what [`pytorch`](super::pytorch) writes, and what PyTorch itself writes.

use std::collections::HashMap;
use std::fmt::{self, Formatter};
use std::io::Read;

use serde::Deserialize;
use serde::de::{Deserializer, SeqAccess, Visitor};

use super::event::{Event, Frame, IN_USE, Segment};
use super::{Category, Holder, Snapshot};
use crate::analysis::Totals;

#[derive(Deserialize)]
struct Contents<'a> {
    burn: Option<Snapshot>,
    device_traces: Vec<Trace>,
    #[serde(default)]
    segments: Vec<Segment<'a>>,
}

/// The holders of a device. They are made event by event: there may be millions.
#[derive(Default)]
struct Trace {
    /// `operation` is an index into `frames`.
    holders: Vec<Holder>,
    /// Pairs of parameter and operation, each with its index.
    frames: HashMap<[String; 2], usize>,
    /// The holder at an address now.
    live: HashMap<u64, usize>,
    /// Times of events without a tick, which are all events of PyTorch's files.
    times: Vec<u64>,
}

pub(super) fn read(from: impl Read) -> serde_json::Result<Snapshot> {
    let mut contents: Contents<'_> = serde_json::from_reader(from)?;
    if let Some(recorded) = contents.burn {
        let trace = contents.device_traces.pop().unwrap_or_default();
        return Ok(trace.into_recorded(recorded));
    }
    let traces = contents.device_traces.into_iter().enumerate();
    let devices = traces.map(|(device, trace)| {
        let segments = contents.segments.iter();
        trace.into_foreign(device, segments.filter(|of| of.device == device))
    });
    let peak = |of: &Snapshot| {
        of.check().ok()?;
        Totals::of(of).known().iter().max().copied()
    };
    let fullest = devices.max_by_key(peak);
    Ok(fullest.unwrap_or_default())
}

impl Trace {
    fn add(&mut self, event: Event<'_>) {
        if event.is_workspace || !matches!(&*event.action, "alloc" | "free_completed") {
            return;
        }
        let tick = event.tick.unwrap_or_else(|| {
            self.times.push(event.time_us);
            // Before the first event, at tick 0, is what is older.
            self.times.len()
        });
        let live = self.live.remove(&event.addr);
        if let Some(live) = live {
            self.holders[live].until = tick;
        }
        let is_older = event.action != "alloc";
        if is_older && live.is_some() {
            return;
        }
        let frame = match (event.tick, event.frames.first()) {
            (Some(_), Some(of)) => [of.name.to_string(), of.filename.to_string()],
            _ => [String::new(), operation(&event)],
        };
        let category = event.category.as_deref().unwrap_or_default();
        let from = if is_older { 0 } else { tick };
        let index = self.hold(event.size, Category::of_pytorch(category), frame, from);
        match is_older {
            true => self.holders[index].until = tick,
            false => drop(self.live.insert(event.addr, index)),
        }
    }

    fn hold(&mut self, bytes: u64, category: Category, frame: [String; 2], from: usize) -> usize {
        let next = self.frames.len();
        self.holders.push(Holder {
            bytes,
            category,
            parameter: None,
            operation: *self.frames.entry(frame).or_insert(next),
            from,
            until: usize::MAX,
        });
        self.holders.len() - 1
    }

    /// Parameters and operations of all frames, by their index, and the holders.
    fn into_parts(self, ticks: usize) -> (Vec<[String; 2]>, Vec<Holder>) {
        let mut frames = Vec::from_iter(self.frames);
        frames.sort_by_key(|(_, index)| *index);
        let mut holders = self.holders;
        holders
            .iter_mut()
            .for_each(|held| held.until = held.until.min(ticks));
        (
            frames.into_iter().map(|(frame, _)| frame).collect(),
            holders,
        )
    }

    /// The snapshot of our recorder: `recorded` is all but its holders.
    fn into_recorded(self, mut recorded: Snapshot) -> Snapshot {
        let (frames, mut holders) = self.into_parts(recorded.times.len());
        let indices = frames.iter().map(|[parameter, operation]| {
            let mut operations = recorded.operations.iter();
            let parameter = recorded
                .parameters
                .iter()
                .position(|of| of.path == *parameter);
            (
                parameter,
                operations
                    .position(|name| name == operation)
                    .unwrap_or(usize::MAX),
            )
        });
        let indices: Vec<_> = indices.collect();
        for held in &mut holders {
            (held.parameter, held.operation) = indices[held.operation];
        }
        recorded.holders = holders;
        recorded
    }

    /// The snapshot of a device that PyTorch wrote, with the segments of that device.
    fn into_foreign<'a>(
        mut self,
        device: usize,
        segments: impl Iterator<Item = &'a Segment<'a>>,
    ) -> Snapshot {
        for segment in segments {
            let mut address = segment.address;
            for block in &segment.blocks {
                if block.state == IN_USE && !self.live.contains_key(&address) {
                    let requested = Some(block.requested_size).filter(|bytes| *bytes > 0);
                    let frame = [String::new(), place(&block.frames)];
                    self.hold(requested.unwrap_or(block.size), Category::Other, frame, 0);
                }
                address = address.saturating_add(block.size);
            }
        }
        let start = self.times.first().copied().unwrap_or_default();
        let mut times = vec![0];
        for time in std::mem::take(&mut self.times) {
            times.push(time.saturating_sub(start).max(times[times.len() - 1]));
        }
        let (frames, mut holders) = self.into_parts(times.len());
        holders.sort_by_key(|held| held.from);
        Snapshot {
            title: format!("device {device}"),
            backend: "PyTorch".into(),
            operations: frames.into_iter().map(|[_, operation]| operation).collect(),
            times,
            holders,
            ..Snapshot::default()
        }
    }
}

/// The place in a program that an event of PyTorch comes from, and what the user said of it.
fn operation(event: &Event<'_>) -> String {
    let place = place(&event.frames);
    match event.user_metadata.as_deref() {
        None | Some("") => place,
        Some(said) => format!("{place} ({said})"),
    }
}

/// `linear.py:125 forward`: the innermost frame in Python; else the innermost that is not PyTorch's
/// own look at the stack.
fn place(frames: &[Frame<'_>]) -> String {
    let python = frames.iter().find(|frame| frame.filename.ends_with(".py"));
    let own = [
        "unwind::unwind",
        "CapturedTraceback",
        "gather_with_cpp",
        "CachingAllocator",
    ];
    let is_own = |frame: &&Frame<'_>| own.iter().any(|own| frame.name.contains(own));
    if let Some(Frame {
        filename,
        line,
        name,
    }) = python
    {
        let file = filename.rsplit('/').next().unwrap_or_default();
        return format!("{file}:{line} {name}");
    }
    let other = frames.iter().find(|frame| !is_own(frame));
    other.map_or_else(|| "unknown".into(), |frame| frame.name.to_string())
}

impl<'de> Deserialize<'de> for Trace {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Events;
        impl<'de> Visitor<'de> for Events {
            type Value = Trace;

            fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
                f.write_str("a list of events")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut events: A) -> Result<Trace, A::Error> {
                let mut trace = Trace::default();
                while let Some(event) = events.next_element()? {
                    trace.add(event);
                }
                Ok(trace)
            }
        }
        from.deserialize_seq(Events)
    }
}

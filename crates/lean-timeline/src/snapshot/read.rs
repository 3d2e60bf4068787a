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
    /// Parameter and operation, each pair once.
    frames: Vec<[String; 2]>,
    indices: HashMap<[String; 2], usize>,
    /// The holder at an address now.
    live: HashMap<u64, usize>,
    /// Times of events without a tick, which are all events of PyTorch's files.
    times: Vec<u64>,
}

pub(super) fn read(from: impl Read) -> serde_json::Result<Snapshot> {
    let Contents {
        burn,
        device_traces,
        segments,
    } = serde_json::from_reader(from)?;
    let mut traces = device_traces.into_iter().enumerate();
    if let Some(recorded) = burn {
        let (_, trace) = traces.next().unwrap_or_default();
        return Ok(trace.into_recorded(recorded));
    }
    let of_device = |(device, trace): (usize, Trace)| {
        let segments = segments.iter().filter(|of| of.device == device);
        let snapshot = trace.into_foreign(device, segments);
        let peak = Totals::of(&snapshot).known().iter().max().copied();
        (peak, snapshot)
    };
    let fullest = traces.map(of_device).max_by_key(|(peak, _)| *peak);
    Ok(fullest.map(|(_, snapshot)| snapshot).unwrap_or_default())
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
        let Self {
            frames, indices, ..
        } = self;
        let operation = *indices.entry(frame).or_insert_with_key(|frame| {
            frames.push(frame.clone());
            frames.len() - 1
        });
        self.holders.push(Holder {
            bytes,
            category,
            parameter: None,
            operation,
            from,
            until: usize::MAX,
        });
        self.holders.len() - 1
    }

    /// The snapshot of our recorder: `recorded` is all but its holders.
    fn into_recorded(self, recorded: Snapshot) -> Snapshot {
        let mut snapshot = recorded;
        let parameters = snapshot.parameters.iter().enumerate();
        let parameters: HashMap<_, _> = parameters.map(|(of, it)| (it.path.as_str(), of)).collect();
        let names = snapshot.operations.iter().enumerate();
        let names: HashMap<_, _> = names.map(|(of, name)| (name.as_str(), of)).collect();
        let unknown = names.len();
        let frames: Vec<_> = self
            .frames
            .iter()
            .map(|[parameter, operation]| {
                let operation = names.get(operation.as_str()).copied().unwrap_or(unknown);
                (parameters.get(parameter.as_str()).copied(), operation)
            })
            .collect();
        let ticks = snapshot.times.len();
        snapshot.holders = self.holders;
        for held in &mut snapshot.holders {
            (held.parameter, held.operation) = frames[held.operation];
            held.until = held.until.min(ticks);
        }
        snapshot
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
                    let bytes = match block.requested_size {
                        0 => block.size,
                        bytes => bytes,
                    };
                    let frame = [String::new(), place(&block.frames)];
                    self.hold(bytes, Category::Other, frame, 0);
                }
                address = address.saturating_add(block.size);
            }
        }
        let start = self.times.first().copied().unwrap_or_default();
        let times = self.times.iter().map(|time| time.saturating_sub(start));
        let times: Vec<u64> = [0].into_iter().chain(times).collect();
        for held in &mut self.holders {
            held.until = held.until.min(times.len());
        }
        self.holders.sort_by_key(|held| held.from);
        Snapshot {
            title: format!("device {device}"),
            backend: "PyTorch".into(),
            operations: self
                .frames
                .into_iter()
                .map(|[_, operation]| operation)
                .collect(),
            times,
            holders: self.holders,
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
    let own = ["unwind::unwind", "CapturedTraceback", "gather_with_cpp"];
    let is_own = |frame: &&Frame<'_>| own.iter().any(|own| frame.name.contains(own));
    match (python, frames.iter().find(|frame| !is_own(frame))) {
        (Some(frame), _) => {
            let file = frame.filename.rsplit('/').next().unwrap_or_default();
            format!("{file}:{} {}", frame.line, frame.name)
        }
        (None, Some(frame)) => frame.name.to_string(),
        (None, None) => "unknown".into(),
    }
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

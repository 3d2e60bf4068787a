//! What is read ahead, and what is let go.
//!
//! Weights and states are used in the same order in each step. So what comes next is what came next the
//! last time, after the two places that were used last. A thread follows this chain: it asks the system
//! to read what comes next, and lets go of what was not used for the longest time and does not come next.
//! All of it are hints. In another order, a step is right, and slower.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, RwLock, Weak};

use super::file::ScratchFile;
use super::space::Place;

#[derive(Debug)]
pub(super) struct Pager {
    pub(super) file: Arc<ScratchFile>,
    limit: usize,
    uses: Sender<Use>,
}

/// A place is about to be used, or was changed.
#[derive(Clone, Copy, Debug)]
pub(super) enum Use {
    Begins(Place),
    Changed(Place),
}

/// The pagers that live. Burn gives back of a tensor only its bytes, and not who has allocated them: so a
/// scope finds by their address in which file its weights are.
static PAGERS: RwLock<Vec<Weak<Pager>>> = RwLock::new(Vec::new());

/// The pagers that live.
pub(super) fn pagers() -> Vec<Arc<Pager>> {
    let pagers = PAGERS.read().unwrap_or_else(|it| it.into_inner());
    pagers.iter().filter_map(Weak::upgrade).collect()
}

impl Pager {
    /// Keeps at most about `limit` bytes of a file in memory.
    pub(super) fn start(file: Arc<ScratchFile>, limit: usize) -> std::io::Result<Arc<Self>> {
        let (uses, coming) = channel();
        let mut memory = Memory::new(limit);
        let paged = Arc::clone(&file);
        let thread = std::thread::Builder::new().name("burn-lean scratch".into());
        thread.spawn(move || memory.follow(&coming, &paged))?;
        let pager = Arc::new(Self { file, limit, uses });
        let mut pagers = PAGERS.write().unwrap_or_else(|it| it.into_inner());
        pagers.retain(|pager| pager.strong_count() > 0);
        pagers.push(Arc::downgrade(&pager));
        Ok(pager)
    }

    pub(super) fn tell(&self, uses: impl IntoIterator<Item = Use>) {
        for used in uses {
            // The thread ends with the pager, or with a panic: then nothing is read ahead.
            let _ = self.uses.send(used);
        }
    }

    /// What a scope is about to use. One that uses much of the memory has scopes in it, which tell the
    /// order.
    pub(super) fn tell_of_scope(&self, places: Vec<Place>) {
        if places.iter().map(|place| place.len).sum::<usize>() <= self.limit / 4 {
            self.tell(places.into_iter().map(Use::Begins));
        }
    }
}

/// How many uses ahead the thread looks: a chain may go round in a circle.
const FARTHEST: usize = 256;

/// What the thread knows of the memory.
struct Memory {
    limit: usize,
    /// What was used last, and before.
    last: [Option<Place>; 2],
    /// What came after two places.
    next: HashMap<[Option<Place>; 2], Place>,
    held: HashMap<Place, Held>,
    held_bytes: usize,
    clock: u64,
}

/// A place that is in memory, or on its way.
#[derive(Clone, Copy)]
struct Held {
    used: u64,
    /// It was changed, and is written behind when something else is used.
    is_changed: bool,
}

/// What the thread asks of the system.
#[derive(Debug, Default, PartialEq, Eq)]
struct Wishes {
    read_ahead: Vec<Place>,
    /// What was changed is written, and is forgotten the second time.
    let_go: Vec<Place>,
}

impl Memory {
    fn new(limit: usize) -> Self {
        Self {
            limit,
            last: [None; 2],
            next: HashMap::new(),
            held: HashMap::new(),
            held_bytes: 0,
            clock: 0,
        }
    }

    fn follow(&mut self, coming: &Receiver<Use>, file: &ScratchFile) {
        while let Ok(used) = coming.recv() {
            self.note(used);
            // Only the last place tells where the step is.
            while let Ok(used) = coming.try_recv() {
                self.note(used);
            }
            let Wishes { read_ahead, let_go } = self.wishes();
            file.let_go(&let_go);
            read_ahead
                .into_iter()
                .for_each(|place| file.read_ahead(place));
        }
    }

    fn note(&mut self, used: Use) {
        self.clock += 1;
        match used {
            Use::Begins(place) => {
                if self.last[0] != Some(place) {
                    self.next.insert(self.last, place);
                    self.last = [Some(place), self.last[0]];
                }
                self.hold(place, false);
            }
            Use::Changed(place) => self.hold(place, true),
        }
    }

    fn hold(&mut self, place: Place, is_changed: bool) {
        let used = self.clock;
        let is_new = !self.held.contains_key(&place);
        self.held_bytes += if is_new { place.len } else { 0 };
        let held = self.held.entry(place).or_insert(Held { used, is_changed });
        held.used = used;
        held.is_changed |= is_changed;
    }

    /// What comes next, as far as half of the memory has room for it.
    fn upcoming(&self) -> Vec<Place> {
        let mut last = self.last;
        let mut upcoming: Vec<Place> = Vec::new();
        let mut bytes = 0;
        for _ in 0..FARTHEST {
            let Some(&place) = self.next.get(&last) else {
                break;
            };
            last = [Some(place), last[0]];
            if upcoming.contains(&place) {
                continue;
            }
            bytes += place.len;
            if bytes > self.limit / 2 {
                break;
            }
            upcoming.push(place);
        }
        upcoming
    }

    fn wishes(&mut self) -> Wishes {
        let upcoming = self.upcoming();
        let mut let_go = Vec::new();
        let now = self.clock;
        for (place, held) in &mut self.held {
            if held.is_changed && held.used < now {
                held.is_changed = false;
                let_go.push(*place);
            }
        }
        let is_read = |place: &&Place| !self.held.contains_key(place);
        let to_read: Vec<Place> = upcoming.iter().filter(is_read).copied().collect();
        let coming_bytes: usize = to_read.iter().map(|place| place.len).sum();
        let mut oldest: Vec<(u64, Place)> = self
            .held
            .iter()
            .filter(|(place, held)| held.used < now && !upcoming.contains(place))
            .map(|(place, held)| (held.used, *place))
            .collect();
        oldest.sort_unstable();
        for (_, place) in oldest {
            if self.held_bytes + coming_bytes <= self.limit {
                break;
            }
            self.held.remove(&place);
            self.held_bytes -= place.len;
            let_go.push(place);
        }
        for place in &to_read {
            self.hold(*place, false);
        }
        Wishes {
            read_ahead: to_read,
            let_go,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WEIGHT: usize = 4096;

    fn weight(number: usize) -> Place {
        Place {
            segment: 0,
            offset: number * WEIGHT,
            len: WEIGHT,
        }
    }

    /// The layers of a step: forward, then backward, where each is changed.
    fn step(memory: &mut Memory, layers: usize, mut wishes: impl FnMut(&Memory, usize, Wishes)) {
        for layer in (0..layers).chain((0..layers).rev()) {
            memory.note(Use::Begins(weight(layer)));
            let asked = memory.wishes();
            wishes(memory, layer, asked);
        }
    }

    #[test]
    fn what_comes_next_is_read_ahead_and_what_is_far_is_let_go() {
        let mut memory = Memory::new(4 * WEIGHT);
        step(&mut memory, 8, |_, _, wishes| {
            // On the way back as well, an order is not known before it was seen.
            assert_eq!(wishes.read_ahead, []);
        });
        let mut is_held = Vec::new();
        step(&mut memory, 8, |memory, layer, _| {
            assert!(memory.held_bytes <= 4 * WEIGHT);
            assert!(memory.held.contains_key(&weight(layer)));
            is_held.push([1, 2].map(|ahead| memory.held.contains_key(&weight(layer + ahead))));
        });
        // In the forward pass, the next two of eight layers are there or on their way.
        assert_eq!(is_held[1..6], [[true; 2]; 5]);
    }

    #[test]
    fn what_was_changed_is_written_when_something_else_is_used() {
        let mut memory = Memory::new(4 * WEIGHT);
        memory.note(Use::Begins(weight(0)));
        memory.note(Use::Changed(weight(0)));
        assert_eq!(memory.wishes().let_go, []);
        memory.note(Use::Begins(weight(1)));
        assert_eq!(memory.wishes().let_go, [weight(0)]);
        memory.note(Use::Begins(weight(2)));
        assert_eq!(memory.wishes().let_go, []);
    }

    #[test]
    fn another_order_is_followed_from_its_first_repetition_on() {
        let mut memory = Memory::new(4 * WEIGHT);
        for place in [0, 1, 2, 3, 4, 5, 0, 1] {
            memory.note(Use::Begins(weight(place)));
            memory.wishes();
        }
        assert_eq!(memory.upcoming(), [weight(2), weight(3)]);
        memory.note(Use::Begins(weight(5)));
        assert_eq!(memory.upcoming(), []);
        for place in [0, 1, 5] {
            memory.note(Use::Begins(weight(place)));
        }
        assert_eq!(memory.upcoming(), [weight(0), weight(1)]);
    }
}

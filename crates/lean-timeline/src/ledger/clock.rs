//! The ticks of a recording.

use std::time::Instant;

#[derive(Debug)]
pub(super) struct Clock {
    start: Instant,
    /// Microseconds since `start`, one for each tick.
    pub(super) times: Vec<u64>,
}

impl Clock {
    /// A clock at tick 0, to which everything belongs that exists before the recording.
    pub(super) fn start() -> Self {
        let mut clock = Self {
            start: Instant::now(),
            times: Vec::new(),
        };
        clock.tick();
        clock
    }

    pub(super) fn tick(&mut self) -> usize {
        self.times.push(self.start.elapsed().as_micros() as u64);
        self.now()
    }

    pub(super) fn now(&self) -> usize {
        self.times.len() - 1
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.times.capacity() * size_of::<u64>()
    }
}

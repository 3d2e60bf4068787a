//! A recording, from its start to its end.

use crate::ledger::{BlockId, Ledger, Operand, Storage};
use crate::recording::{Plan, RecordError};
use crate::snapshot::{PhaseKind, Snapshot};

/// The work of memory that no pass has taken.
const OUTSIDE: &str = "outside of a pass";

pub(super) struct Session {
    plan: Plan,
    backend: &'static str,
    /// Forward passes begun.
    passes: usize,
    /// It begins with the recording, and not with its first step: the purpose of memory that an
    /// earlier step has taken is known from there.
    pub(super) ledger: Ledger,
    /// The parameter that was read last, in a forward pass.
    read: Option<BlockId>,
    /// Present once the steps are over.
    outcome: Option<Result<Snapshot, RecordError>>,
}

impl Session {
    pub(super) fn new(plan: Plan, live: impl Iterator<Item = (usize, u64)>, in_use: u64) -> Self {
        let mut ledger = Ledger::start();
        for (id, bytes) in live {
            ledger.register_existing(Storage { id, bytes });
        }
        ledger.sample(in_use, in_use);
        Self {
            plan,
            backend: "",
            passes: 0,
            ledger,
            read: None,
            outcome: None,
        }
    }

    /// Whether events are recorded.
    pub(super) fn is_open(&self) -> bool {
        self.outcome.is_none()
    }

    /// `work` is that of the thread; `None` on a thread that no pass has begun on.
    pub(super) fn allocated(&mut self, id: usize, bytes: u64, work: Option<&'static str>) {
        let storage = Storage { id, bytes };
        let read = self.read.map(|block| Operand {
            block,
            is_consumed: false,
        });
        match work {
            Some(work) => self.ledger.register_output(work, storage, read.as_slice()),
            None => self.ledger.register_elsewhere(OUTSIDE, storage),
        };
    }

    /// `work` as in [`allocated`](Self::allocated).
    pub(super) fn released(&mut self, address: usize, work: Option<&'static str>) {
        match (self.ledger.at(address), work) {
            (Some(block), Some(_)) => self.ledger.release_unwatched(block),
            (Some(block), None) => self.ledger.release(block),
            (None, _) => {}
        }
    }

    pub(super) fn count_forward(&mut self, backend: &'static str) {
        if self.passes == self.plan.steps.end {
            self.end();
        }
        self.backend = backend;
        self.read = None;
        self.ledger.end_activations();
        if self.passes <= self.plan.steps.start {
            self.ledger.forget_the_past();
        }
        self.ledger.begin_pass(PhaseKind::Forward);
        self.passes += 1;
    }

    /// Notes which parameter was read last.
    pub(super) fn set_read(&mut self, address: Option<usize>) {
        self.read = address.and_then(|address| self.ledger.at(address));
    }

    /// Ends the recording, if it has not ended with its last step.
    pub(super) fn finish(mut self) -> Result<Snapshot, RecordError> {
        if self.is_open() {
            self.end();
        }
        self.outcome.expect("it has ended")
    }

    fn end(&mut self) {
        let ledger = std::mem::replace(&mut self.ledger, Ledger::start());
        let plan = &self.plan;
        self.outcome = Some(if self.passes <= plan.steps.start {
            Err(plan.too_short(self.passes))
        } else if !ledger.has_parameters() {
            Err(RecordError::NoParameters)
        } else {
            plan.save(ledger.into_snapshot(plan.title.clone(), self.backend.into()))
        });
    }
}

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
    /// Present until the steps are over. It begins with the recording, and not with its first step:
    /// the purpose of memory that an earlier step has taken is known from there.
    ledger: Option<Ledger>,
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
            ledger: Some(ledger),
            read: None,
            outcome: None,
        }
    }

    /// Whether events are recorded.
    pub(super) fn is_open(&self) -> bool {
        self.ledger.is_some()
    }

    pub(super) fn ledger(&mut self) -> Option<&mut Ledger> {
        self.ledger.as_mut()
    }

    pub(super) fn sample(&mut self, in_use: u64, peak: u64) {
        if let Some(ledger) = &mut self.ledger {
            ledger.sample(in_use, peak);
        }
    }

    /// `work` is that of the thread; `None` on a thread that no pass has begun on.
    pub(super) fn allocated(&mut self, id: usize, bytes: u64, work: Option<&'static str>) {
        let Some(ledger) = &mut self.ledger else {
            return;
        };
        let read = self.read.map(|block| Operand {
            block,
            is_consumed: false,
        });
        let storage = Storage { id, bytes };
        match work {
            Some(work) => ledger.register_output(work, storage, read.as_slice()),
            None => ledger.register_elsewhere(OUTSIDE, storage),
        };
    }

    /// `work` as in [`allocated`](Self::allocated).
    pub(super) fn released(&mut self, address: usize, work: Option<&'static str>) {
        let Some(ledger) = &mut self.ledger else {
            return;
        };
        match (ledger.at(address), work) {
            (Some(block), Some(_)) => ledger.release_unwatched(block),
            (Some(block), None) => ledger.release(block),
            (None, _) => {}
        }
    }

    pub(super) fn count_forward(&mut self, backend: &'static str) {
        if self.passes == self.plan.steps.end {
            self.end();
        }
        self.backend = backend;
        self.read = None;
        if let Some(ledger) = &mut self.ledger {
            ledger.end_activations();
            if self.passes <= self.plan.steps.start {
                ledger.forget_the_past();
            }
            ledger.begin_pass(PhaseKind::Forward);
        }
        self.passes += 1;
    }

    /// Notes which parameter was read last.
    pub(super) fn set_read(&mut self, address: Option<usize>) {
        if let Some(ledger) = &mut self.ledger {
            self.read = address.and_then(|address| ledger.at(address));
        }
    }

    /// Ends the recording, if it has not ended with its last step.
    pub(super) fn finish(mut self) -> Result<Snapshot, RecordError> {
        self.end();
        let too_short = || Err(self.plan.too_short(self.passes));
        self.outcome.unwrap_or_else(too_short)
    }

    fn end(&mut self) {
        let Some(ledger) = self.ledger.take() else {
            return;
        };
        if self.passes <= self.plan.steps.start {
            return;
        }
        self.outcome = Some(match ledger.has_parameters() {
            false => Err(RecordError::NoParameters),
            true => {
                let title = self.plan.title.clone();
                self.plan
                    .save(ledger.into_snapshot(title, self.backend.into()))
            }
        });
    }
}

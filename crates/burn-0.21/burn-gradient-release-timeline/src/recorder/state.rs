//! The recording of this process, behind one lock.

use std::sync::{
    Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU8, AtomicU32, Ordering},
};

use super::{
    counter::Sampling,
    entry::{Entry, EntryCell},
    plan::Plan,
};
use crate::snapshot::{Parameter, PhaseKind, Snapshot};
use lean_timeline::{
    ledger::{BlockId, Ledger, Operand, Storage},
    recording::RecordError,
};

/// No recording is started.
const OFF: u8 = 0;
/// Forward passes are counted: the steps to record are still to come, or over.
const COUNTING: u8 = 1;
/// Operations are recorded.
const ON: u8 = 2;

/// The stage of [`SESSION`], which operations read without its lock.
static STAGE: AtomicU8 = AtomicU8::new(OFF);
static SESSION: Mutex<Option<Session>> = Mutex::new(None);
static RECORDINGS: AtomicU32 = AtomicU32::new(0);

/// A recording, from its start to its end.
struct Session {
    plan: Plan,
    /// Number of the recording in this process.
    number: u32,
    /// Forward passes begun.
    passes: usize,
    backend: String,
    /// Present while operations are recorded.
    ledger: Option<Ledger>,
    /// Present once the steps are over.
    outcome: Option<Result<Snapshot, RecordError>>,
}

impl Session {
    fn end(&mut self) {
        STAGE.store(COUNTING, Ordering::Release);
        let Some(ledger) = self.ledger.take() else {
            return;
        };
        let plan = &self.plan.recording;
        self.outcome = Some(match ledger.has_parameters() {
            true => plan.save(ledger.into_snapshot(plan.title.clone(), self.backend.clone())),
            false => Err(RecordError::NotRecorded),
        });
    }
}

/// A session whose operations are recorded.
struct Active<'a> {
    number: u32,
    ledger: &'a mut Ledger,
    plan: &'a mut Plan,
}

impl Active<'_> {
    /// The block of an entry of this recording; entries of earlier ones have none.
    fn block(&self, entry: Entry) -> Option<BlockId> {
        (entry.recording == self.number).then_some(entry.block)
    }

    fn block_of(&self, cell: &EntryCell) -> Option<BlockId> {
        cell.get().and_then(|entry| self.block(entry))
    }

    fn entry(&self, block: BlockId) -> Entry {
        Entry {
            recording: self.number,
            block,
        }
    }

    /// Begins or ends a phase, and samples in any case.
    fn mark(&mut self, work: impl FnOnce(&mut Ledger)) {
        work(self.ledger);
        self.sample();
    }

    /// Samples after an operation or a release, if every event is to be sampled.
    fn sample_event(&mut self) {
        let Some(counter) = &self.plan.counter else {
            return;
        };
        // Reading the heap's counter takes no time. Reading a device's waits for the device.
        let usual = match counter.counts_heap() {
            true => Sampling::EveryEvent,
            false => Sampling::EveryPhase,
        };
        if self.plan.sampling.unwrap_or(usual) == Sampling::EveryEvent {
            self.sample();
        }
    }

    fn sample(&mut self) {
        let Some(counter) = &mut self.plan.counter else {
            return;
        };
        let own = match counter.counts_heap() {
            true => self.ledger.heap_bytes(),
            false => 0,
        };
        let peak = counter.take_peak().saturating_sub(own);
        let in_use = counter.in_use().saturating_sub(own);
        self.ledger.sample(in_use, peak.max(in_use));
    }
}

/// Ignores poisoning: a panic ends the training, and what was recorded until then is sound.
fn session() -> MutexGuard<'static, Option<Session>> {
    SESSION.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `work` if operations are recorded.
fn with_active<T>(work: impl FnOnce(Active<'_>) -> T) -> Option<T> {
    let mut session = session();
    let Session {
        number,
        ledger,
        plan,
        ..
    } = session.as_mut()?;
    Some(work(Active {
        number: *number,
        ledger: ledger.as_mut()?,
        plan,
    }))
}

pub(super) fn start(plan: Plan) -> Result<(), RecordError> {
    let mut session = session();
    if session.is_some() {
        return Err(RecordError::UnderWay);
    }
    *session = Some(Session {
        plan,
        number: RECORDINGS.fetch_add(1, Ordering::Relaxed),
        passes: 0,
        backend: String::new(),
        ledger: None,
        outcome: None,
    });
    STAGE.store(COUNTING, Ordering::Release);
    Ok(())
}

/// Ends the recording, also before its last step.
pub(super) fn finish() -> Result<Snapshot, RecordError> {
    let mut session = session();
    let mut ended = session.take().expect("a recording finishes once");
    ended.end();
    STAGE.store(OFF, Ordering::Release);
    let too_short = || Err(ended.plan.recording.too_short(ended.passes));
    ended.outcome.unwrap_or_else(too_short)
}

/// Ends the recording without what it has recorded.
pub(super) fn discard() {
    let mut session = session();
    let discarded = session.take();
    STAGE.store(OFF, Ordering::Release);
    drop(session);
    // The counter is the user's code: it is dropped without the lock.
    drop(discarded);
}

pub(super) fn is_recording() -> bool {
    STAGE.load(Ordering::Acquire) == ON
}

/// Whether a recording is started, so that forward passes are to be counted.
pub(super) fn is_started() -> bool {
    STAGE.load(Ordering::Acquire) != OFF
}

/// Counts a forward pass.
///
/// Returns whether it is the first to be recorded. Its caller
/// [registers the parameters](register_parameters).
pub(super) fn count_forward(backend: impl FnOnce() -> String) -> bool {
    let mut session = session();
    let Some(session) = session.as_mut() else {
        return false;
    };
    let pass = session.passes;
    session.passes += 1;
    if pass == session.plan.recording.steps.end {
        session.end();
    }
    if pass != session.plan.recording.steps.start {
        return false;
    }
    session.backend = backend();
    session.ledger = Some(Ledger::start());
    if let Some(counter) = &mut session.plan.counter {
        // Discards the peak of the time before the recording.
        counter.take_peak();
    }
    STAGE.store(ON, Ordering::Release);
    true
}

/// Registers the parameters of the model, each with the entry of its tensor.
pub(super) fn register_parameters(parameters: Vec<(Parameter, Option<Entry>)>) {
    with_active(|active| {
        for (index, (parameter, entry)) in parameters.into_iter().enumerate() {
            if let Some(block) = entry.and_then(|entry| active.block(entry)) {
                active.ledger.set_parameter(index, parameter, block);
            }
        }
    });
}

/// Registers a tensor that exists since before the recording, unless it is registered already.
pub(super) fn register_existing(cell: &EntryCell, storage: impl FnOnce() -> Storage) {
    let is_new = with_active(|active| active.block_of(cell).is_none());
    if is_new != Some(true) {
        return;
    }
    // Asked without the lock: this is the code of a backend.
    let storage = storage();
    with_active(|active| {
        // Another thread may have registered it since.
        if storage.bytes > 0 && active.block_of(cell).is_none() {
            let block = active.ledger.register_existing(storage);
            cell.set(active.entry(block));
        }
    });
}

#[derive(Clone, Copy, Debug)]
pub(super) struct OperandEntry {
    pub(super) entry: Entry,
    /// Whether the operation holds the only copy of this tensor.
    pub(super) is_consumed: bool,
}

/// Registers the output of an operation; `None` for a tensor without bytes.
pub(super) fn register_output(
    operation: &'static str,
    storage: Storage,
    operands: &[OperandEntry],
) -> Option<Entry> {
    if storage.bytes == 0 {
        return None;
    }
    with_active(|active| {
        let operands: Vec<Operand> = operands
            .iter()
            .filter_map(|operand| {
                Some(Operand {
                    block: active.block(operand.entry)?,
                    is_consumed: operand.is_consumed,
                })
            })
            .collect();
        let block = active.ledger.register_output(operation, storage, &operands);
        active.entry(block)
    })
}

/// Ends an operation, which held the last copies of the tensors `released`.
pub(super) fn end_operation(released: &[Entry]) {
    with_active(|mut active| {
        for entry in released {
            if let Some(block) = active.block(*entry) {
                active.ledger.release(block);
            }
        }
        active.sample_event();
    });
}

/// Removes a tensor whose last copy was dropped.
pub(super) fn release(entry: Entry) {
    if !is_recording() {
        return;
    }
    with_active(|mut active| {
        if let Some(block) = active.block(entry) {
            active.ledger.release(block);
            active.sample_event();
        }
    });
}

pub(super) fn begin_pass(kind: PhaseKind) {
    with_active(|mut active| active.mark(|ledger| ledger.begin_pass(kind)));
}

pub(super) fn end_pass() {
    with_active(|mut active| active.mark(Ledger::end_pass));
}

pub(super) fn begin_step(parameter: &EntryCell, gradient: &EntryCell) {
    with_active(|mut active| {
        if let (Some(parameter), Some(gradient)) =
            (active.block_of(parameter), active.block_of(gradient))
        {
            active.mark(|ledger| ledger.begin_step(parameter, gradient));
        }
    });
}

pub(super) fn end_step(parameter: &EntryCell) {
    with_active(|mut active| {
        if let Some(parameter) = active.block_of(parameter) {
            active.mark(|ledger| ledger.end_step(parameter));
        }
    });
}

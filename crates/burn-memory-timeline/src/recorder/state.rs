//! The recording of this process, if there is one.

use std::{
    fmt,
    ops::Range,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU8, AtomicU32, Ordering},
    },
};

use super::{
    counter::{MemoryCounter, Sampling},
    error::RecordError,
    held::{Entry, Held},
    ledger::{BlockId, Ledger, Operand},
    parameters::Found,
};
use crate::{
    backend::HasStorage,
    snapshot::{PhaseKind, Snapshot},
};

/// Nobody wants to record.
const OFF: u8 = 0;
/// Forward passes are counted: the steps to be recorded are to come, or over.
const COUNTING: u8 = 1;
/// Operations are recorded.
const ON: u8 = 2;

/// The stage of [`SESSION`], to be seen without its lock.
static STAGE: AtomicU8 = AtomicU8::new(OFF);
static SESSION: Mutex<Option<Session>> = Mutex::new(None);
static RECORDINGS: AtomicU32 = AtomicU32::new(0);

/// What is to be recorded.
pub(super) struct Plan {
    pub(super) title: String,
    /// Which steps: forward passes, counted from 0.
    pub(super) steps: Range<usize>,
    pub(super) counter: Option<Box<dyn MemoryCounter>>,
    /// How often the counter is asked; without it, as its kind suggests.
    pub(super) sampling: Option<Sampling>,
    pub(super) file: Option<PathBuf>,
}

impl fmt::Debug for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plan")
            .field("title", &self.title)
            .field("steps", &self.steps)
            .field("file", &self.file)
            .finish_non_exhaustive()
    }
}

struct Session {
    plan: Plan,
    number: u32,
    /// Forward passes begun.
    passes: usize,
    backend: String,
    /// Open while something is recorded.
    ledger: Option<Ledger>,
    /// What came of it.
    outcome: Option<Result<Snapshot, RecordError>>,
}

impl Session {
    fn end(&mut self) {
        STAGE.store(COUNTING, Ordering::Release);
        let Some(ledger) = self.ledger.take() else {
            return;
        };
        self.outcome = Some(if ledger.has_parameters() {
            let snapshot =
                ledger.into_snapshot(self.plan.title.clone(), std::mem::take(&mut self.backend));
            match &self.plan.file {
                Some(file) => snapshot.save(file).map(|()| snapshot).map_err(Into::into),
                None => Ok(snapshot),
            }
        } else {
            Err(RecordError::NotRecorded)
        });
    }
}

/// A session that records.
struct Open<'a> {
    number: u32,
    ledger: &'a mut Ledger,
    plan: &'a mut Plan,
}

impl Open<'_> {
    /// The block of a tensor that is in this recording.
    fn block_of(&self, held: &Held) -> Option<BlockId> {
        held.entry().and_then(|entry| self.block(entry))
    }

    fn block(&self, entry: Entry) -> Option<BlockId> {
        (entry.recording == self.number).then_some(entry.block)
    }

    /// Begins or ends something, which is always worth a sample.
    fn mark(&mut self, work: impl FnOnce(&mut Ledger)) {
        work(self.ledger);
        self.sample(None);
    }

    /// After an operation, or when memory was let go of.
    fn sample_event(&mut self, operation: Option<&'static str>) {
        let Some(counter) = &self.plan.counter else {
            return;
        };
        // The heap answers at once; a device is waited for.
        let usual = match counter.counts_heap() {
            true => Sampling::EveryEvent,
            false => Sampling::EveryPhase,
        };
        if self.plan.sampling.unwrap_or(usual) == Sampling::EveryEvent {
            self.sample(operation);
        }
    }

    fn sample(&mut self, operation: Option<&'static str>) {
        let Some(counter) = &mut self.plan.counter else {
            return;
        };
        let own = match counter.counts_heap() {
            true => self.ledger.own_bytes(),
            false => 0,
        };
        let peak = counter.take_peak().saturating_sub(own);
        let in_use = counter.in_use().saturating_sub(own);
        self.ledger.sample(in_use, peak.max(in_use), operation);
    }
}

fn session() -> MutexGuard<'static, Option<Session>> {
    SESSION.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Does something with the session, if it records.
fn with_open<T>(work: impl FnOnce(Open<'_>) -> T) -> Option<T> {
    let mut session = session();
    let Session {
        number,
        ledger,
        plan,
        ..
    } = session.as_mut()?;
    Some(work(Open {
        number: *number,
        ledger: ledger.as_mut()?,
        plan,
    }))
}

pub(super) fn open(plan: Plan) -> Result<(), RecordError> {
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

/// Ends the recording, whatever is missing of it.
pub(super) fn close() -> Result<Snapshot, RecordError> {
    let mut session = session();
    let mut ended = session.take().expect("a recording that is closed once");
    ended.end();
    STAGE.store(OFF, Ordering::Release);
    ended.outcome.unwrap_or(Err(RecordError::TooShort {
        made: ended.passes,
        first: ended.plan.steps.start,
    }))
}

/// Whether operations are recorded.
pub(super) fn is_on() -> bool {
    STAGE.load(Ordering::Acquire) == ON
}

/// Whether somebody wants to record something, sooner or later.
pub(super) fn is_awaited() -> bool {
    STAGE.load(Ordering::Acquire) != OFF
}

/// Counts a forward pass.
///
/// Returns whether it is the first that is recorded, of which the model is to be [entered](enter).
pub(super) fn count_forward(backend: impl FnOnce() -> String) -> bool {
    let mut session = session();
    let Some(session) = session.as_mut() else {
        return false;
    };
    let pass = session.passes;
    session.passes += 1;
    if pass == session.plan.steps.end {
        session.end();
    }
    if pass != session.plan.steps.start {
        return false;
    }
    session.backend = backend();
    session.ledger = Some(Ledger::new());
    if let Some(counter) = &mut session.plan.counter {
        // The peak of before is not of the recording.
        counter.take_peak();
    }
    STAGE.store(ON, Ordering::Release);
    true
}

/// Enters the parameters of the model.
pub(super) fn enter(found: &[Found]) {
    with_open(|open| {
        for Found { parameter, held } in found {
            if let Some(block) = open.block_of(held) {
                open.ledger.parameter(parameter.clone(), block);
            }
        }
    });
}

/// Has the recording know a tensor that was there before it.
pub(super) fn know<P: HasStorage>(held: &Held, tensor: &P) {
    with_open(|open| {
        if open.block_of(held).is_some() {
            return;
        }
        let storage = tensor.storage();
        if storage.bytes > 0 {
            held.enter(Entry {
                recording: open.number,
                block: open.ledger.adopt(storage),
            });
        }
    });
}

/// Enters the output of an operation.
pub(super) fn made<P: HasStorage>(
    operation: &'static str,
    tensor: &P,
    operands: &[Arc<Held>],
) -> Held {
    let storage = tensor.storage();
    let entry = with_open(|open| {
        let operands: Vec<Operand> = operands
            .iter()
            .filter_map(|held| {
                Some(Operand {
                    block: open.block_of(held)?,
                    is_consumed: Arc::strong_count(held) == 1,
                })
            })
            .collect();
        (storage.bytes > 0).then(|| Entry {
            recording: open.number,
            block: open.ledger.made(operation, storage, &operands),
        })
    });
    entry.flatten().map_or_else(Held::unknown, Held::of)
}

/// An operation is done, and these of its operands are gone with it.
pub(super) fn done(operation: &'static str, gone: &[Entry]) {
    with_open(|mut open| {
        for entry in gone {
            if let Some(block) = open.block(*entry) {
                open.ledger.let_go(block);
            }
        }
        open.sample_event(Some(operation));
    });
}

/// A tensor is gone.
pub(super) fn let_go(entry: Entry) {
    if !is_on() {
        return;
    }
    with_open(|mut open| {
        if let Some(block) = open.block(entry) {
            open.ledger.let_go(block);
            open.sample_event(None);
        }
    });
}

pub(super) fn begin_pass(kind: PhaseKind) {
    with_open(|mut open| open.mark(|ledger| ledger.begin_pass(kind)));
}

pub(super) fn end_pass() {
    with_open(|mut open| open.mark(Ledger::end_pass));
}

pub(super) fn begin_step(parameter: &Held, gradient: &Held) {
    with_open(|mut open| {
        if let (Some(parameter), Some(gradient)) =
            (open.block_of(parameter), open.block_of(gradient))
        {
            open.mark(|ledger| ledger.begin_step(parameter, gradient));
        }
    });
}

pub(super) fn end_step(parameter: &Held) {
    with_open(|mut open| {
        if let Some(parameter) = open.block_of(parameter) {
            open.mark(|ledger| ledger.end_step(parameter));
        }
    });
}

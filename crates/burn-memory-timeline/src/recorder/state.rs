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
    pub(super) counter: Option<(Box<dyn MemoryCounter>, Sampling)>,
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

    fn sample(&mut self, operation: Option<&'static str>, is_mark: bool) {
        if let (Some(ledger), Some((counter, sampling))) =
            (&mut self.ledger, &mut self.plan.counter)
            && (is_mark || *sampling == Sampling::EveryEvent)
        {
            let own = if counter.counts_heap() {
                ledger.own_bytes()
            } else {
                0
            };
            let peak = counter.take_peak().saturating_sub(own);
            let in_use = counter.in_use().saturating_sub(own);
            ledger.sample(in_use, peak.max(in_use), operation);
        }
    }
}

fn session() -> MutexGuard<'static, Option<Session>> {
    SESSION.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Does something with the open ledger.
fn with_ledger<T>(work: impl FnOnce(&mut Ledger, u32) -> T) -> Option<T> {
    let mut session = session();
    let session = session.as_mut()?;
    Some(work(session.ledger.as_mut()?, session.number))
}

/// As [`with_ledger`], followed by a sample.
fn mark(work: impl FnOnce(&mut Ledger)) {
    let mut session = session();
    if let Some(session) = session.as_mut()
        && let Some(ledger) = &mut session.ledger
    {
        work(ledger);
        session.sample(None, true);
    }
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
    if let Some((counter, _)) = &mut session.plan.counter {
        // The peak of before is not of the recording.
        counter.take_peak();
    }
    STAGE.store(ON, Ordering::Release);
    true
}

/// Enters the parameters of the model.
pub(super) fn enter(found: &[Found]) {
    with_ledger(|ledger, number| {
        for Found { parameter, held } in found {
            if let Some(block) = block_of(held, number) {
                ledger.parameter(parameter.clone(), block);
            }
        }
    });
}

fn block_of(held: &Held, number: u32) -> Option<BlockId> {
    let entry = held.entry()?;
    (entry.recording == number).then_some(entry.block)
}

/// Has the recording know a tensor that was there before it.
pub(super) fn know<P: HasStorage>(held: &Held, tensor: &P) {
    with_ledger(|ledger, number| {
        let storage = tensor.storage();
        if block_of(held, number).is_none() && storage.bytes > 0 {
            held.enter(Entry {
                recording: number,
                block: ledger.adopt(storage),
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
    let entry = with_ledger(|ledger, number| {
        let operands: Vec<Operand> = operands
            .iter()
            .filter_map(|held| {
                Some(Operand {
                    block: block_of(held, number)?,
                    is_consumed: Arc::strong_count(held) == 1,
                })
            })
            .collect();
        (storage.bytes > 0).then(|| Entry {
            recording: number,
            block: ledger.made(operation, storage, &operands),
        })
    });
    entry.flatten().map_or_else(Held::unknown, Held::of)
}

/// An operation is done, and these of its operands are gone with it.
pub(super) fn done(operation: &'static str, gone: &[Entry]) {
    let mut session = session();
    if let Some(session) = session.as_mut()
        && let Some(ledger) = &mut session.ledger
    {
        for entry in gone {
            if entry.recording == session.number {
                ledger.let_go(entry.block);
            }
        }
        session.sample(Some(operation), false);
    }
}

/// A tensor is gone.
pub(super) fn let_go(entry: Entry) {
    if !is_on() {
        return;
    }
    let mut session = session();
    if let Some(session) = session.as_mut()
        && let Some(ledger) = &mut session.ledger
        && entry.recording == session.number
    {
        ledger.let_go(entry.block);
        session.sample(None, false);
    }
}

pub(super) fn begin_pass(kind: PhaseKind) {
    mark(|ledger| ledger.begin_pass(kind));
}

pub(super) fn end_pass() {
    mark(Ledger::end_pass);
}

pub(super) fn begin_step(parameter: &Held, gradient: &Held) {
    let number = session().as_ref().map(|session| session.number);
    let Some(number) = number else { return };
    if let (Some(parameter), Some(gradient)) =
        (block_of(parameter, number), block_of(gradient, number))
    {
        mark(|ledger| ledger.begin_step(parameter, gradient));
    }
}

pub(super) fn end_step(parameter: &Held) {
    let number = session().as_ref().map(|session| session.number);
    let Some(number) = number else { return };
    if let Some(parameter) = block_of(parameter, number) {
        mark(|ledger| ledger.end_step(parameter));
    }
}

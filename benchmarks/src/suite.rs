//! Executes the plan of a suite, each run in a separate process.

use crate::available;
use crate::machine;
use crate::plan::{Plan, Request, Task, counts_for_free};
use crate::process;
use crate::pytorch::PyTorch;
use crate::results::{Case, LeftOut, Measured, Measurements, Results, Run, SCHEMA, Subject};
use crate::spec::{CHILD, Purpose, Spec, TorchSpec};
use crate::timeline::TimelineSpec;
use crate::vocabulary;
use anyhow::{Context, Error, Result, anyhow};
use std::env;
use std::process::Command;
use std::result;
use std::time::{Duration, Instant};
use vit_0_21::terminal::note;

/// Measures what was requested, and calls `progress` with the results so far after each run.
///
/// # Errors
///
/// The request names a backend that this build or this machine does not have. A run that fails is
/// no error: the results list it.
pub fn run(request: &Request, mut progress: impl FnMut(&Results)) -> Result<Results> {
    let (available, pytorch) = available::find(request)?;
    let Plan { tasks, left_out } = Plan::new(request, &available);
    let mut suite = Suite {
        request,
        started: Instant::now(),
        results: Results {
            schema: SCHEMA,
            command: request.command.clone(),
            machine: machine::this(),
            versions: machine::versions(available.pytorch.as_ref().ok()),
            settings: request.settings,
            runs: Vec::new(),
            vocabulary: Vec::new(),
            left_out,
            failed: Vec::new(),
        },
        pytorch,
    };
    for task in &tasks {
        suite.execute(task);
        progress(&suite.results);
    }
    Ok(suite.results)
}

/// A suite that is being executed.
struct Suite<'a> {
    request: &'a Request,
    pytorch: Option<PyTorch>,
    started: Instant,
    results: Results,
}

/// Why a run has no result.
enum Missing {
    /// There was no time for it.
    LeftOut(String),
    /// It went wrong.
    Failed(Error),
}

impl From<Error> for Missing {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl Suite<'_> {
    fn execute(&mut self, task: &Task) {
        match task {
            Task::Measure {
                case,
                subject,
                repetition,
            } => self.measure(case, subject, *repetition),
            Task::Record {
                case,
                subject,
                timeline,
            } => self.record(case, subject, timeline),
            Task::SearchVocabulary {
                model,
                preset,
                backend,
                arithmetic,
            } => {
                let peak = |case: &Case, subject: &Subject| {
                    let measured = self.attempt(case, subject, false)?;
                    Some(measured.memory.memory?.peak_bytes)
                };
                let found = vocabulary::search(model, preset, *backend, *arithmetic, peak);
                self.results.vocabulary.extend(found);
            }
        }
    }

    fn measure(&mut self, case: &Case, subject: &Subject, repetition: usize) {
        let timed_apart = !counts_for_free(subject);
        let Some(measurements) = self.attempt(case, subject, timed_apart) else {
            return;
        };
        let run = Run::new(case, subject, repetition, measurements);
        let mut others = self.results.runs.iter();
        if let Some(other) = others.find(|other| other.case == *case && !other.is_like(&run)) {
            let what = format!("{}: {}", case.title(), subject.place());
            let why = format!(
                "not the same model: {} parameters, and {} in {}",
                run.measured.parameters,
                other.measured.parameters,
                other.subject.place()
            );
            self.results.failed.push(LeftOut { what, why });
        }
        self.results.runs.push(run);
    }

    /// Records the timeline of a run, if the run itself has a result.
    fn record(&mut self, case: &Case, subject: &Subject, timeline: &TimelineSpec) {
        let mut runs = self.results.runs.iter();
        let Some(index) = runs
            .position(|run| run.repetition == 0 && run.case == *case && run.subject == *subject)
        else {
            return;
        };
        let weights = self.results.runs[index].measured.weights_digest.clone();
        let what = format!("{}, memory timeline", case.with(subject));
        self.results.runs[index].timeline = self.run_and_log(what, |suite| {
            let measured = suite.process(case, subject, Purpose::Timeline(timeline.clone()))?;
            if measured.weights_digest != weights {
                return Err(anyhow!("recording changed the weights").into());
            }
            Ok(timeline.result(&measured))
        });
    }

    fn attempt(
        &mut self,
        case: &Case,
        subject: &Subject,
        timed_apart: bool,
    ) -> Option<Measurements> {
        self.run_and_log(case.with(subject), |suite| {
            suite.processes(case, subject, timed_apart)
        })
    }

    /// Runs `work` and logs the outcome. An error is added to the results, and the suite goes on.
    fn run_and_log<T>(
        &mut self,
        what: String,
        work: impl FnOnce(&Self) -> result::Result<T, Missing>,
    ) -> Option<T> {
        let begun = Instant::now();
        let outcome = work(self);
        let seconds = begun.elapsed().as_secs_f64();
        match outcome {
            Ok(output) => {
                note(&format!("{what}: measured in {seconds:.1} s"));
                Some(output)
            }
            Err(Missing::LeftOut(why)) => {
                note(&format!("{what}: left out: {why}"));
                self.results.left_out.push(LeftOut { what, why });
                None
            }
            Err(Missing::Failed(error)) => {
                let why = format!("{error:#}");
                note(&format!("{what}: failed: {why}"));
                self.results.failed.push(LeftOut { what, why });
                None
            }
        }
    }

    /// Runs the process that counts bytes and, with `timed_apart`, another one that measures the
    /// time.
    fn processes(
        &self,
        case: &Case,
        subject: &Subject,
        timed_apart: bool,
    ) -> result::Result<Measurements, Missing> {
        let memory = self.process(case, subject, Purpose::Memory)?;
        let time = match timed_apart {
            true => Some(self.process(case, subject, Purpose::Time)?),
            false => None,
        };
        if let Some(time) = &time
            && matches!(subject, Subject::Burn { .. })
            && time.weights_digest != memory.weights_digest
        {
            return Err(anyhow!("counting bytes changed the weights").into());
        }
        Ok(Measurements { memory, time })
    }

    /// Runs a process within the time that is left.
    fn process(
        &self,
        case: &Case,
        subject: &Subject,
        purpose: Purpose,
    ) -> result::Result<Measured, Missing> {
        let limit = match self.time_left() {
            Some(left) if left.is_zero() => {
                return Err(Missing::LeftOut("the time of --within was over".into()));
            }
            Some(left) => left.min(self.request.time_limit),
            None => self.request.time_limit,
        };
        let measured = self.child(case, subject, purpose, limit)?;
        measured.ok_or_else(|| {
            Missing::LeftOut(format!("took longer than {:.0} s", limit.as_secs_f64()))
        })
    }

    /// Runs a process; `None` if it took longer than `limit`.
    fn child(
        &self,
        case: &Case,
        subject: &Subject,
        measure: Purpose,
        limit: Duration,
    ) -> Result<Option<Measured>> {
        let settings = self.request.settings;
        let model = case.model.clone();
        let batch_size = case.batch_size;
        match subject {
            Subject::Burn {
                burn: version,
                backend,
                fusion,
                mode,
                checkpointing,
                arithmetic,
            } => burn(
                &Spec {
                    model,
                    burn: *version,
                    backend: *backend,
                    fusion: *fusion,
                    mode: *mode,
                    checkpointing: *checkpointing,
                    arithmetic: *arithmetic,
                    measure,
                    batch_size,
                    settings,
                },
                limit,
            ),
            Subject::PyTorch { device, mode } => {
                let pytorch = self.pytorch.as_ref().context("there is no PyTorch")?;
                let spec = TorchSpec {
                    optimizer: model.optimizer(),
                    model,
                    device: device.clone(),
                    mode: *mode,
                    measure,
                    batch_size,
                    settings,
                };
                pytorch.measure(&spec, limit)
            }
        }
    }

    fn time_left(&self) -> Option<Duration> {
        let within = self.request.within?;
        Some(within.saturating_sub(self.started.elapsed()))
    }
}

/// Runs this program as a measuring process; `None` if it took longer than `limit`.
fn burn(spec: &Spec, limit: Duration) -> Result<Option<Measured>> {
    let program = env::current_exe().context("cannot find this program")?;
    let mut command = Command::new(program);
    command.arg(CHILD).arg(serde_json::to_string(spec)?);
    let Some(output) = process::run(&mut command, limit)? else {
        return Ok(None);
    };
    let measured = serde_json::from_str(&output);
    Ok(Some(
        measured.context("the measuring process wrote no result")?,
    ))
}

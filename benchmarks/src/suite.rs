//! Executes the plan of a suite, each run in a separate process.

use crate::available;
use crate::cli::MEASURE;
use crate::machine::{machine, versions};
use crate::measure::{Purpose, Spec};
use crate::options::Options;
use crate::plan::{Plan, Task};
use crate::process;
use crate::pytorch::PyTorch;
use crate::results::{LeftOut, Measured, Results, Run, SCHEMA};
use crate::subject::Subject;
use anyhow::{Context, Error, Result, anyhow};
use lean_run_folder::note;
use std::env;
use std::path::Path;
use std::process::Command;
use std::result;
use std::time::{Duration, Instant};
use vit_inputs::mib;

/// Measures what was asked for, and calls `progress` with the results so far after each run.
///
/// # Errors
///
/// The options name a backend that this build or this machine does not have. A run that fails is
/// no error: the results list it.
pub fn run(options: &Options, mut progress: impl FnMut(&Results)) -> Result<Results> {
    let (available, pytorch) = available::find(options)?;
    let Plan { tasks, left_out } = Plan::new(options, &available);
    let mut suite = Suite {
        options,
        started: Instant::now(),
        results: Results {
            schema: SCHEMA,
            command: command(),
            machine: machine(),
            versions: versions(available.pytorch.as_ref().ok()),
            settings: options.settings,
            runs: Vec::new(),
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

/// The command line, without the folder of the program.
fn command() -> Vec<String> {
    let mut command: Vec<String> = env::args().collect();
    if let Some(program) = command.first_mut() {
        let name = Path::new(program.as_str()).file_name();
        *program = name.map_or_else(String::new, |name| name.to_string_lossy().into());
    }
    command
}

/// A suite that is being executed.
struct Suite<'a> {
    options: &'a Options,
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
    /// Measures a run. An error is added to the results, and the suite goes on.
    fn execute(&mut self, task: &Task) {
        let what = task.case.with(&task.subject);
        let begun = Instant::now();
        let run = match self.measure(task) {
            Ok(run) => run,
            Err(Missing::LeftOut(why)) => {
                note(&format!("{what}: left out: {why}"));
                return self.results.left_out.push(LeftOut { what, why });
            }
            Err(Missing::Failed(error)) => return self.failed(what, format!("{error:#}")),
        };
        let seconds = begun.elapsed().as_secs_f64();
        let step = run.step_milliseconds;
        let step = step.map_or_else(String::new, |ms| format!("{ms:.2} ms a step, "));
        note(&format!("{what}: {step}measured in {seconds:.1} s"));
        let others = self.results.runs.iter();
        let others = others.filter(|other| other.case == run.case && other.size() != run.size());
        let different = others.map(|other| {
            let (one, place) = (other.measured.parameters, other.subject.place());
            let this = run.measured.parameters;
            format!("not the same model: {this} parameters, and {one} in {place}")
        });
        if let Some(why) = { different }.next() {
            self.failed(what, why);
        }
        self.results.runs.push(run);
    }

    fn failed(&mut self, what: String, why: String) {
        note(&format!("{what}: failed: {why}"));
        self.results.failed.push(LeftOut { what, why });
    }

    /// Runs the process that counts bytes and, where counting takes time, another one that measures
    /// the time.
    fn measure(&self, task: &Task) -> result::Result<Run, Missing> {
        let Task {
            case,
            subject,
            repetition,
        } = task;
        let memory = self.process(task, Purpose::Memory)?;
        if let Some(bytes) = memory.memory {
            let reserved = bytes.peak_reserved_bytes;
            let reserved =
                reserved.map_or_else(String::new, |it| format!(", {} reserved", mib(it)));
            // The time of another process may take minutes more, or all that is left.
            note(&format!(
                "{}: {}{reserved}",
                case.with(subject),
                mib(bytes.peak_bytes)
            ));
        }
        let time = match subject.counts_for_free() {
            true => None,
            false => Some(self.process(task, Purpose::Time)?),
        };
        if let (Some(time), Subject::Burn(run)) = (&time, subject)
            && time.weights_digest != memory.weights_digest
        {
            if !run.is_fused_or_tuned() {
                return Err(anyhow!("counting bytes changed the weights").into());
            }
            let what = case.with(subject);
            note(&format!(
                "{what}: other weights where bytes are counted, as of other kernels"
            ));
        }
        Ok(Run::new(case, subject, *repetition, memory, time))
    }

    /// Runs a process within the time that is left.
    fn process(&self, task: &Task, measure: Purpose) -> result::Result<Measured, Missing> {
        let within = self.options.within.unwrap_or(Duration::MAX);
        let left = within.saturating_sub(self.started.elapsed());
        if left.is_zero() {
            return Err(Missing::LeftOut("the time of --within was over".into()));
        }
        let limit = left.min(self.options.time_limit);
        let spec = serde_json::to_string(&Spec {
            case: task.case.clone(),
            subject: task.subject.clone(),
            measure,
            settings: self.options.settings,
        })
        .map_err(Error::from)?;
        let mut command = match &task.subject {
            Subject::Burn(_) => {
                let this = env::current_exe().context("cannot find this program")?;
                let mut command = Command::new(this);
                command.arg(MEASURE);
                command
            }
            Subject::PyTorch { .. } => {
                let pytorch = self.pytorch.as_ref().context("there is no PyTorch")?;
                pytorch.command()
            }
        };
        match process::run(command.arg(spec), limit)? {
            Some(output) => {
                let measured = serde_json::from_str(&output);
                Ok(measured.context("the measuring process wrote no result")?)
            }
            None => {
                let seconds = limit.as_secs_f64();
                Err(Missing::LeftOut(format!("took longer than {seconds:.0} s")))
            }
        }
    }
}

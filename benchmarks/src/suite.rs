//! What is measured on this machine, and in which order.

use crate::machine::{Machine, Versions};
use crate::measure::{Measured, Mode, Purpose, Spec, counts_with_time};
use crate::process;
use crate::pytorch::{PyTorch, TorchMode, TorchSpec};
use crate::results::{Both, Case, LeftOut, Results, Run, SCHEMA, Settings, Subject};
use crate::shape::{Kind, Shape};
use crate::timeline::{Plan, Timeline};
use crate::vocabulary;
use anyhow::{Context, Error, Result, bail};
use std::env;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};
use vit::backend;
use vit::config::{self, BackendKind, Checkpointing, Engine, OptimizerKind, Preset};

/// The hidden subcommand behind which a measuring process works.
pub const CHILD: &str = "measure";

/// What was asked for.
#[derive(Clone, Debug)]
pub struct Request {
    /// The command as it was called.
    pub command: Vec<String>,
    /// Models to train.
    pub kinds: Vec<Kind>,
    /// Whether to look for the vocabulary that the saving buys.
    pub vocabulary: bool,
    /// Size of the models; without it, what suits the machine.
    pub preset: Option<Preset>,
    /// Width and height of an image, instead of the preset's.
    pub image_size: Option<usize>,
    /// Images or sequences in a step; without it, 1 and, for images, 8.
    pub batch_sizes: Vec<usize>,
    /// Backends; without any, those that suit the machine.
    pub backends: Vec<BackendKind>,
    /// Fusion on, off or both, on a GPU.
    pub fusion: Vec<bool>,
    /// Modes of Burn.
    pub modes: Vec<Mode>,
    /// What forward passes keep, in Burn.
    pub checkpointing: Vec<Checkpointing>,
    /// A Python that may have PyTorch; without it, PyTorch is not wanted.
    pub python: Option<PathBuf>,
    /// Modes of PyTorch.
    pub torch_modes: Vec<TorchMode>,
    /// The folder of memory timelines, if they are wanted.
    pub timelines: Option<PathBuf>,
    /// How all runs are made.
    pub settings: Settings,
    /// The longest that a process may take.
    pub time_limit: Duration,
    /// After this long, nothing more is begun.
    pub within: Option<Duration>,
}

/// The backends that are worth it on this machine, and why the others are not.
fn backends(request: &Request, left_out: &mut Vec<LeftOut>) -> Result<Vec<BackendKind>> {
    if !request.backends.is_empty() {
        for backend in &request.backends {
            backend::require(*backend).map_err(in_this_package)?;
        }
        return Ok(request.backends.clone());
    }
    let mut found = Vec::new();
    for backend in [BackendKind::Cuda, BackendKind::Wgpu] {
        match backend::require(backend).map_err(in_this_package) {
            Ok(()) if backend == BackendKind::Wgpu && !has_gpu_adapter() => left_out
                .push(LeftOut {
                what: backend.to_string(),
                why:
                    "its only adapter computes on the CPU; --backend wgpu measures it all the same"
                        .into(),
            }),
            Ok(()) => found.push(backend),
            Err(error) => left_out.push(LeftOut {
                what: backend.to_string(),
                why: error.to_string(),
            }),
        }
    }
    if found.is_empty() {
        found.push(BackendKind::first());
    }
    Ok(found)
}

/// The way out that another program names, put in terms of this one.
fn in_this_package(error: Error) -> Error {
    Error::msg(format!("{error:#}").replace("-p vit", "-p benchmarks"))
}

/// One line for a backend that cannot be recorded, with this program's way out.
fn can_record(backend: BackendKind, fusion: bool) -> Result<()> {
    let engine = Engine {
        backend,
        fusion,
        mode: config::Mode::Plain,
        checkpointing: Checkpointing::None,
        optimizer: OptimizerKind::Adam,
    };
    backend::can_record(&engine).map_err(|error| {
        Error::msg(format!("{error:#}").replace("add --no-fusion", "choose --fusion off"))
    })
}

#[cfg(feature = "wgpu")]
fn has_gpu_adapter() -> bool {
    let mut adapters = vit::device::adapters().into_iter();
    adapters.any(|adapter| !adapter.is_software)
}

#[cfg(not(feature = "wgpu"))]
fn has_gpu_adapter() -> bool {
    false
}

/// Measures what was asked for.
pub fn run(request: &Request) -> Result<Results> {
    let mut left_out = Vec::new();
    let backends = backends(request, &mut left_out)?;
    let on_gpu = backends.iter().any(|backend| !backend.is_on_heap());
    let preset = request.preset.unwrap_or_else(|| {
        if on_gpu {
            return Preset::Large;
        }
        left_out.push(LeftOut {
            what: "the large models (ViT-L/16, GPT large)".into(),
            why: "no GPU is measured; --preset large measures them on the CPU".into(),
        });
        Preset::Small
    });
    let pytorch = find_pytorch(request, &mut left_out);
    let mut suite = Suite {
        request,
        preset,
        started: Instant::now(),
        results: Results {
            schema: SCHEMA,
            command: request.command.clone(),
            machine: Machine::this(),
            versions: Versions::of(pytorch.as_ref().map(|pytorch| &pytorch.versions)),
            settings: request.settings,
            runs: Vec::new(),
            vocabulary: Vec::new(),
            left_out,
            failed: Vec::new(),
        },
        pytorch,
    };
    suite.run(&backends);
    Ok(suite.results)
}

fn find_pytorch(request: &Request, left_out: &mut Vec<LeftOut>) -> Option<PyTorch> {
    let missing = |what: &str, why: String| LeftOut {
        what: what.into(),
        why,
    };
    let Some(python) = &request.python else {
        left_out.push(missing("PyTorch and optimi", "--no-pytorch".into()));
        return None;
    };
    match PyTorch::find(python) {
        Ok(pytorch) => {
            if pytorch.versions.optimi.is_none() && request.torch_modes.contains(&TorchMode::Optimi)
            {
                let why = "this Python does not have it: `pip install torch-optimi`";
                left_out.push(missing("optimi", why.into()));
            }
            Some(pytorch)
        }
        Err(error) => {
            let why = format!(
                "{} cannot run it ({error:#}); --python names one that has PyTorch",
                python.display()
            );
            left_out.push(missing("PyTorch and optimi", why));
            None
        }
    }
}

/// A suite under way.
pub(crate) struct Suite<'a> {
    pub(crate) request: &'a Request,
    pub(crate) preset: Preset,
    pytorch: Option<PyTorch>,
    started: Instant,
    pub(crate) results: Results,
}

impl Suite<'_> {
    /// The most telling first: time may run out.
    fn run(&mut self, backends: &[BackendKind]) {
        let fused = self.request.fusion.contains(&true);
        let unfused = self.request.fusion.contains(&false);
        for (place, backend) in backends.iter().enumerate() {
            let on_heap = backend.is_on_heap();
            if fused || on_heap {
                for case in self.cases() {
                    self.burn(&case, *backend, true);
                    // One series is enough, whatever computes beside it.
                    if place == 0 {
                        self.pytorch(&case, on_heap);
                    }
                }
                if place == 0 && self.request.vocabulary {
                    self.vocabulary(*backend);
                }
            }
            if unfused && !on_heap {
                for case in self.cases() {
                    self.burn(&case, *backend, false);
                }
                if place == 0 && !fused {
                    for case in self.cases() {
                        self.pytorch(&case, on_heap);
                    }
                }
            }
        }
    }

    fn cases(&self) -> Vec<Case> {
        let given = &self.request.batch_sizes;
        let mut cases = Vec::new();
        // Batch by batch: every model has had its turn before the larger batches come.
        for index in 0..given.len().max(2) {
            for kind in &self.request.kinds {
                let defaults: &[usize] = match kind {
                    Kind::Vit => &[1, 8],
                    Kind::Gpt => &[1],
                };
                let sizes = if given.is_empty() { defaults } else { given };
                cases.extend(sizes.get(index).map(|batch_size| Case {
                    name: self.name(*kind),
                    model: kind.shape(self.preset, self.request.image_size),
                    batch_size: *batch_size,
                }));
            }
        }
        cases
    }

    fn name(&self, kind: Kind) -> String {
        let name = kind.name(self.preset);
        match (kind, self.request.image_size) {
            (Kind::Vit, Some(size)) => format!("{name} at {size}x{size}"),
            _ => name,
        }
    }

    fn burn(&mut self, case: &Case, backend: BackendKind, fusion: bool) {
        for repetition in 0..self.request.settings.repeat {
            for checkpointing in &self.request.checkpointing {
                for mode in &self.request.modes {
                    let subject = Subject::Burn {
                        backend,
                        fusion,
                        mode: *mode,
                        checkpointing: *checkpointing,
                    };
                    self.measure(case, &subject, repetition);
                }
            }
        }
        self.timelines(case, backend, fusion);
    }

    /// Records one of each run; after them, since those are compared with each other.
    fn timelines(&mut self, case: &Case, on: BackendKind, with: bool) {
        let Some(folder) = &self.request.timelines else {
            return;
        };
        for index in 0..self.results.runs.len() {
            let run = &self.results.runs[index];
            let is_here = matches!(run.subject, Subject::Burn { backend, fusion, .. }
                if backend == on && fusion == with);
            if !is_here || run.case != *case || run.repetition > 0 {
                continue;
            }
            let subject = run.subject.clone();
            let Some(plan) = Plan::of(case, &subject, folder) else {
                continue;
            };
            if let Err(error) = can_record(on, with) {
                let missing = LeftOut {
                    what: format!("memory timelines: {}", subject.place()),
                    why: error.to_string(),
                };
                if !self.results.left_out.contains(&missing) {
                    self.results.left_out.push(missing);
                }
                return;
            }
            let what = format!(
                "{}: {}, {}, memory timeline",
                case.title(),
                subject.place(),
                subject.name()
            );
            let weights = run.measured.weights_digest.clone();
            self.results.runs[index].timeline = self.told(what, |suite| {
                let measured = suite.process(case, &subject, Purpose::Timeline(plan.clone()))?;
                Ok(match measured {
                    Ok(measured) if measured.weights_digest != weights => {
                        bail!("recording changed the weights")
                    }
                    Ok(measured) => Ok(Timeline::new(&plan, &measured)),
                    Err(why) => Err(why),
                })
            });
        }
    }

    fn pytorch(&mut self, case: &Case, on_cpu: bool) {
        let Some(versions) = self.pytorch.as_ref().map(|pytorch| &pytorch.versions) else {
            return;
        };
        let device = if on_cpu || versions.cuda.is_none() {
            "cpu"
        } else {
            "cuda"
        };
        let without_optimi = versions.optimi.is_none();
        for repetition in 0..self.request.settings.repeat {
            for mode in &self.request.torch_modes {
                if *mode == TorchMode::Optimi && without_optimi {
                    continue;
                }
                let subject = Subject::PyTorch {
                    device: device.into(),
                    mode: *mode,
                };
                self.measure(case, &subject, repetition);
            }
        }
    }

    fn measure(&mut self, case: &Case, subject: &Subject, repetition: usize) {
        let Some(both) = self.attempt(case, subject, true) else {
            return;
        };
        let run = Run::new(case, subject, repetition, both);
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

    /// Runs the process that counts bytes and, if the run is to be timed and takes another for that, the
    /// one that takes the time.
    pub(crate) fn attempt(&mut self, case: &Case, subject: &Subject, timed: bool) -> Option<Both> {
        let what = format!("{}: {}, {}", case.title(), subject.place(), subject.name());
        self.told(what, |suite| suite.processes(case, subject, timed))
    }

    /// Does some of the work; what goes wrong is noted, and the suite goes on.
    fn told<T>(
        &mut self,
        what: String,
        work: impl FnOnce(&Self) -> Result<std::result::Result<T, String>>,
    ) -> Option<T> {
        let begun = Instant::now();
        let outcome = work(self);
        let seconds = begun.elapsed().as_secs_f64();
        match outcome {
            Ok(Ok(output)) => {
                eprintln!("{what}: measured in {seconds:.1} s");
                Some(output)
            }
            Ok(Err(why)) => {
                eprintln!("{what}: left out: {why}");
                self.results.left_out.push(LeftOut { what, why });
                None
            }
            Err(error) => {
                let why = format!("{error:#}");
                eprintln!("{what}: failed: {why}");
                self.results.failed.push(LeftOut { what, why });
                None
            }
        }
    }

    /// What the processes of a run say, or why there was no time for them.
    fn processes(
        &self,
        case: &Case,
        subject: &Subject,
        timed: bool,
    ) -> Result<std::result::Result<Both, String>> {
        let memory = match self.process(case, subject, Purpose::Memory)? {
            Ok(memory) => memory,
            Err(why) => return Ok(Err(why)),
        };
        let apart = timed && !counts_for_free(subject);
        let time = match apart.then(|| self.process(case, subject, Purpose::Time)) {
            None => None,
            Some(time) => match time? {
                Ok(time) => Some(time),
                Err(why) => return Ok(Err(why)),
            },
        };
        if let Some(time) = &time
            && matches!(subject, Subject::Burn { .. })
            && time.weights_digest != memory.weights_digest
        {
            bail!("counting bytes changed the weights");
        }
        Ok(Ok(Both { memory, time }))
    }

    /// What a process says, or why there was no time for it.
    fn process(
        &self,
        case: &Case,
        subject: &Subject,
        purpose: Purpose,
    ) -> Result<std::result::Result<Measured, String>> {
        let limit = match self.time_left() {
            Some(left) if left.is_zero() => {
                return Ok(Err("the time of --within was over".into()));
            }
            Some(left) => left.min(self.request.time_limit),
            None => self.request.time_limit,
        };
        let measured = self.child(case, subject, purpose, limit)?;
        let too_long = || format!("took longer than {:.0} s", limit.as_secs_f64());
        Ok(measured.ok_or_else(too_long))
    }

    fn child(
        &self,
        case: &Case,
        subject: &Subject,
        measure: Purpose,
        limit: Duration,
    ) -> Result<Option<Measured>> {
        let settings = self.request.settings;
        let model: Shape = case.model.clone();
        let batch_size = case.batch_size;
        match subject {
            Subject::Burn {
                backend,
                fusion,
                mode,
                checkpointing,
            } => {
                let spec = Spec {
                    model,
                    backend: *backend,
                    fusion: *fusion,
                    mode: *mode,
                    checkpointing: *checkpointing,
                    measure,
                    batch_size,
                    settings,
                };
                let program = env::current_exe().context("cannot find this program")?;
                let mut command = Command::new(program);
                command.arg(CHILD).arg(serde_json::to_string(&spec)?);
                let Some(output) = process::run(&mut command, limit)? else {
                    return Ok(None);
                };
                let measured = serde_json::from_str(&output);
                Ok(Some(
                    measured.context("the measuring process wrote no result")?,
                ))
            }
            Subject::PyTorch { device, mode } => {
                let pytorch = self.pytorch.as_ref().context("there is no PyTorch")?;
                let spec = TorchSpec {
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

    fn vocabulary(&mut self, backend: BackendKind) {
        if let Some(found) = vocabulary::search(self, backend) {
            self.results.vocabulary.push(found);
        }
    }
}

/// Whether the process that counts bytes also takes the time as if nobody counted.
fn counts_for_free(subject: &Subject) -> bool {
    match subject {
        // The floor has no time.
        Subject::Burn {
            mode: Mode::Ideal, ..
        } => true,
        Subject::Burn {
            backend, fusion, ..
        } => counts_with_time(*backend, *fusion),
        // On CUDA PyTorch always counts; on the CPU its profiler does.
        Subject::PyTorch { device, .. } => device == "cuda",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_recorded_has_a_way_out() {
        can_record(BackendKind::Flex, true).unwrap();
        can_record(BackendKind::Cuda, false).unwrap();
        let error = can_record(BackendKind::Cuda, true).unwrap_err().to_string();
        assert!(error.ends_with("choose --fusion off"), "{error}");
    }
}

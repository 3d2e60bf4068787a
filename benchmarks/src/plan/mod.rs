//! The plan of a suite: which runs, in which order, and what is left out.
//!
//! A plan is data. It depends on the [`Request`] and on what is [`Available`], on nothing else.

mod request;
#[cfg(test)]
mod tests;

pub use request::{Available, Request};

use crate::gpt::GptConfig;
use crate::optimizer::MEASURED;
use crate::results::{
    Arithmetic, BurnVersion, Case, Checkpointing, LeftOut, LinearGradient, LossChunk, Mode,
    Operations, Subject, TorchMode, TorchVersions, value_name,
};
use crate::shape::{Kind, Shape, Sizes};
use crate::timeline::TimelineSpec;
use std::path::Path;
use vit_0_21::backend;
use vit_0_21::config::{self, BackendKind, Engine, OptimizerKind, Preset};

/// The plan of a suite.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Tasks in the order of importance, as the time may not suffice for all.
    pub tasks: Vec<Task>,
    /// What is left out, and why.
    pub left_out: Vec<LeftOut>,
}

/// One task of a plan.
#[derive(Clone, Debug, PartialEq)]
pub enum Task {
    /// Measures a run.
    Measure {
        /// Model and batch size.
        case: Case,
        /// Framework and mode.
        subject: Subject,
        /// Repetition index, from 0.
        repetition: usize,
    },
    /// Records the memory timeline of a run that was measured before.
    Record {
        /// Model and batch size.
        case: Case,
        /// Framework and mode.
        subject: Subject,
        /// The recording.
        timeline: TimelineSpec,
    },
    /// Searches the vocabulary that gradient release can train in plain Burn's memory.
    SearchVocabulary {
        /// Name of the decoder.
        model: String,
        /// The decoder, with the vocabulary that plain Burn trains.
        preset: GptConfig,
        /// The backend.
        backend: BackendKind,
        /// How the training computes.
        arithmetic: Arithmetic,
    },
}

impl Plan {
    /// Plans the suite of a request.
    pub fn new(request: &Request, available: &Available) -> Self {
        let mut left_out = available.missing.clone();
        let on_gpu = |backend: &BackendKind| !backend.is_on_heap();
        let preset = request.preset.unwrap_or_else(|| {
            if available.backends.iter().any(on_gpu) {
                return Preset::Large;
            }
            left_out.push(LeftOut::new(
                "the large models (ViT-L/16, GPT large)",
                "no GPU is measured; --preset large measures them on the CPU",
            ));
            Preset::Small
        });
        match &available.pytorch {
            Err(why) => left_out.push(LeftOut::new("PyTorch and optimi", why)),
            Ok(versions) => {
                for mode in &request.torch_modes {
                    if let Some(package) = mode.lacks(versions) {
                        left_out.push(LeftOut::new(
                            value_name(*mode),
                            format!("this Python does not have it: `pip install {package}`"),
                        ));
                    }
                }
            }
        }
        let mut planner = Planner {
            request,
            preset,
            versions: available.pytorch.as_ref().ok(),
            plan: Self {
                tasks: Vec::new(),
                left_out,
            },
        };
        planner.suite(&available.backends);
        planner.plan
    }
}

struct Planner<'a> {
    request: &'a Request,
    preset: Preset,
    versions: Option<&'a TorchVersions>,
    plan: Plan,
}

impl Planner<'_> {
    fn suite(&mut self, backends: &[BackendKind]) {
        let fused = self.request.fusion.contains(&true);
        let unfused = self.request.fusion.contains(&false);
        let cases = self.cases();
        for (place, backend) in backends.iter().enumerate() {
            let on_heap = backend.is_on_heap();
            // PyTorch and the vocabulary are measured beside the first backend only.
            let is_first = place == 0;
            if fused || on_heap {
                for case in &cases {
                    self.burn(case, *backend, true);
                    if is_first {
                        self.pytorch(case, on_heap);
                    }
                }
                if is_first && self.request.vocabulary {
                    self.vocabulary(*backend);
                }
            }
            if unfused && !on_heap {
                for case in &cases {
                    self.burn(case, *backend, false);
                }
                if is_first && !fused {
                    for case in &cases {
                        self.pytorch(case, on_heap);
                    }
                }
            }
        }
    }

    /// Every model at its first batch size, then every model at its second, and so on.
    fn cases(&self) -> Vec<Case> {
        let given = &self.request.batch_sizes;
        let mut cases = Vec::new();
        for index in 0..given.len().max(2) {
            for kind in &self.request.kinds {
                let defaults: &[usize] = match kind {
                    Kind::Vit => &[1, 8],
                    Kind::Gpt => &[1],
                    Kind::Encoder => &[6],
                };
                let sizes = if given.is_empty() { defaults } else { given };
                cases.extend(sizes.get(index).map(|batch_size| Case {
                    name: kind.name(self.preset, &self.request.sizes),
                    model: kind.shape(self.preset, &self.request.sizes),
                    batch_size: *batch_size,
                }));
            }
        }
        cases
    }

    /// All modes in turn, those of one version of Burn beside each other, as often as repeated,
    /// every second time in reverse: neighbours in time are compared with each other. Then the
    /// memory timelines, one for each mode.
    fn burn(&mut self, case: &Case, backend: BackendKind, fusion: bool) {
        let request = self.request;
        let mut subjects = Vec::new();
        for burn in request.burns.iter().copied() {
            for arithmetic in self.arithmetic(burn, &case.model, &case.name, backend) {
                for checkpointing in request.checkpointing.iter().copied() {
                    for mode in request.modes.iter().copied() {
                        match impossible(burn, &case.model, mode, checkpointing) {
                            Some(missing) => self.leave_out(missing),
                            None => subjects.push(Subject::Burn {
                                burn,
                                backend,
                                fusion,
                                mode,
                                checkpointing,
                                arithmetic,
                            }),
                        }
                    }
                }
            }
        }
        self.measure(case, &subjects);
        if let Some(folder) = &request.timelines {
            for subject in &subjects {
                self.record(case, subject, folder);
            }
        }
    }

    fn pytorch(&mut self, case: &Case, on_cpu: bool) {
        let Some(versions) = self.versions else {
            return;
        };
        let device = if on_cpu || versions.cuda.is_none() {
            "cpu"
        } else {
            "cuda"
        };
        let modes = self.request.torch_modes.iter();
        let is_there = |mode: &&TorchMode| mode.lacks(versions).is_none();
        let subjects: Vec<Subject> = modes
            .filter(is_there)
            .map(|mode| Subject::PyTorch {
                device: device.into(),
                mode: *mode,
            })
            .collect();
        self.measure(case, &subjects);
    }

    fn measure(&mut self, case: &Case, subjects: &[Subject]) {
        for repetition in 0..self.request.settings.repeat {
            let mut turn: Vec<_> = subjects.iter().collect();
            // What runs first has a cooler machine: repeated in one order, the others look slower.
            if repetition % 2 == 1 {
                turn.reverse();
            }
            let tasks = turn.into_iter().map(|subject| Task::Measure {
                case: case.clone(),
                subject: subject.clone(),
                repetition,
            });
            self.plan.tasks.extend(tasks);
        }
    }

    fn record(&mut self, case: &Case, subject: &Subject, folder: &Path) {
        if let Err(missing) = can_record(subject) {
            self.leave_out(missing);
        } else if let Some(timeline) = TimelineSpec::of(case, subject, folder) {
            self.plan.tasks.push(Task::Record {
                case: case.clone(),
                subject: subject.clone(),
                timeline,
            });
        }
    }

    /// Every requested way to compute that there is for a model on a backend of a version of Burn.
    fn arithmetic(
        &mut self,
        burn: BurnVersion,
        model: &Shape,
        name: &str,
        backend: BackendKind,
    ) -> Vec<Arithmetic> {
        let mut found = Vec::new();
        if let Some(missing) = unmeasured(burn, backend) {
            self.leave_out(missing);
            return found;
        }
        for operations in self.operations(burn) {
            for linear in self.linear(burn, backend) {
                for loss_chunk in self.loss_chunks(operations, model, name) {
                    for optimizer in self.optimizers(burn, backend) {
                        found.push(Arithmetic {
                            operations,
                            linear,
                            loss_chunk,
                            optimizer,
                        });
                    }
                }
            }
        }
        found
    }

    fn operations(&mut self, burn: BurnVersion) -> Vec<Operations> {
        let mut found = self.request.operations.clone();
        if burn == BurnVersion::V0_21 && found.contains(&Operations::Lean) {
            found.retain(|operations| *operations != Operations::Lean);
            let what = format!("Burn {burn}: lean operations");
            self.leave_out(LeftOut::new(what, "burn-lean has them for Burn 0.22"));
        }
        found
    }

    fn linear(&mut self, burn: BurnVersion, backend: BackendKind) -> Vec<LinearGradient> {
        let mut found = self.request.linear.clone();
        let missing = match burn {
            BurnVersion::V0_22 => Some("the backend that computes it is for Burn 0.21"),
            BurnVersion::V0_21 if backend != BackendKind::Flex => {
                Some("it is measured on flex only")
            }
            BurnVersion::V0_21 => None,
        };
        if let Some(why) = missing
            && found.contains(&LinearGradient::Flat)
        {
            found.retain(|linear| *linear != LinearGradient::Flat);
            let what = format!("Burn {burn}, {backend}: flat linear");
            self.leave_out(LeftOut::new(what, why));
        }
        found
    }

    fn loss_chunks(&mut self, operations: Operations, model: &Shape, name: &str) -> Vec<LossChunk> {
        let mut found = Vec::new();
        for loss_chunk in self.request.loss_chunks.iter().copied() {
            let why = match (loss_chunk, model, operations) {
                (LossChunk::WHOLE, ..) => None,
                (_, Shape::Vit(_), _) => {
                    Some("it scores one token of an image, not all: its loss has nothing to divide")
                }
                (.., Operations::Lean) => {
                    Some("lean operations have a loss that divides the tokens by itself")
                }
                (.., Operations::Default) => None,
            };
            match why {
                None => found.push(loss_chunk),
                Some(why) => {
                    let of = match operations {
                        Operations::Lean => ", lean operations",
                        Operations::Default => "",
                    };
                    let what = format!("{name}{of}: loss chunk {loss_chunk}");
                    self.leave_out(LeftOut::new(what, why));
                }
            }
        }
        found
    }

    fn optimizers(
        &mut self,
        burn: BurnVersion,
        backend: BackendKind,
    ) -> Vec<Option<OptimizerKind>> {
        if self.request.optimizers.is_empty() {
            return vec![None];
        }
        let mut found = Vec::new();
        for optimizer in self.request.optimizers.iter().copied() {
            let reason = match burn {
                BurnVersion::V0_21 if !MEASURED.contains(&optimizer) => {
                    "not compiled into the benchmarks; `vit-0-21 train` has it"
                }
                BurnVersion::V0_21 if optimizer.is_8_bit() && !backend.has_8_bit_moments() => {
                    "this backend has no kernels for moments in 8 bits"
                }
                _ => {
                    found.push(Some(optimizer));
                    continue;
                }
            };
            let what = format!("Burn {burn}, {backend}: {optimizer}");
            self.leave_out(LeftOut::new(what, reason));
        }
        found
    }

    /// Lists what is missing, once.
    fn leave_out(&mut self, missing: LeftOut) {
        if !self.plan.left_out.contains(&missing) {
            self.plan.left_out.push(missing);
        }
    }

    fn vocabulary(&mut self, backend: BackendKind) {
        let sizes = &self.request.sizes;
        let shape = Kind::Gpt.shape(self.preset, sizes);
        // The search names each vocabulary itself.
        let model = Kind::Gpt.name(
            self.preset,
            &Sizes {
                vocabulary: None,
                ..*sizes
            },
        );
        if !self.request.burns.contains(&BurnVersion::V0_21) {
            self.leave_out(LeftOut::new(
                format!("vocabulary of {model}"),
                "it is searched on Burn 0.21 only",
            ));
            return;
        }
        for arithmetic in self.arithmetic(BurnVersion::V0_21, &shape, &model, backend) {
            if let Shape::Gpt(preset) = &shape {
                self.plan.tasks.push(Task::SearchVocabulary {
                    model: model.clone(),
                    preset: preset.clone(),
                    backend,
                    arithmetic,
                });
            }
        }
    }
}

/// What is missing if a backend of a version of Burn is not measured.
fn unmeasured(burn: BurnVersion, backend: BackendKind) -> Option<LeftOut> {
    match burn {
        BurnVersion::V0_22 if backend != BackendKind::Flex => Some(LeftOut::new(
            format!("Burn {burn}, {backend}"),
            "Burn 0.22 is measured on flex only",
        )),
        BurnVersion::V0_21 | BurnVersion::V0_22 => None,
    }
}

/// What is missing if a mode of Burn cannot train with this checkpointing.
fn impossible(
    burn: BurnVersion,
    model: &Shape,
    mode: Mode,
    checkpointing: Checkpointing,
) -> Option<LeftOut> {
    use BurnVersion::{V0_21, V0_22};
    let why = match (burn, checkpointing, mode) {
        (V0_21, Checkpointing::Blocks | Checkpointing::Automatic, Mode::Plain) => {
            "this needs the backend of gradient release; plain Burn has balanced checkpointing"
        }
        (V0_21, Checkpointing::Nested, _) => "a scope in a scope is part of the outer one there",
        (V0_22, Checkpointing::Nested, _) if !matches!(model, Shape::Vit(_)) => {
            "only the vision transformer has scopes inside its blocks"
        }
        (V0_21, Checkpointing::Automatic, Mode::Unarmed) => {
            "the armed optimizer makes the cuts, and here nothing is armed"
        }
        (V0_22, _, Mode::Unarmed) => {
            "gradient release is no backend there: with nothing armed, it is plain Burn"
        }
        (V0_22, _, Mode::Ideal) => "the optimizer that drops gradients is written for Burn 0.21",
        (V0_22, Checkpointing::Automatic, _) => {
            "burn-lean recomputes what is in a `checkpoint`, and makes no cuts by itself"
        }
        _ => return None,
    };
    let what = format!("Burn {burn}: {}, {checkpointing}", value_name(mode));
    Some(LeftOut::new(what, why))
}

/// What is missing if a run of Burn cannot be recorded.
fn can_record(subject: &Subject) -> Result<(), LeftOut> {
    let what = format!("memory timelines: {}", subject.place());
    let Subject::Burn {
        burn: BurnVersion::V0_21,
        backend,
        fusion,
        ..
    } = subject
    else {
        return Err(LeftOut::new(what, "the recorder is a backend of Burn 0.21"));
    };
    let engine = Engine {
        backend: *backend,
        fusion: *fusion,
        mode: config::Mode::Plain,
        checkpointing: config::Checkpointing::None,
        activation_budget: None,
        optimizer: OptimizerKind::Adam,
    };
    backend::can_record(&engine).map_err(|error| {
        // The error names an option of `vit-0-21`; this is the one of this program.
        let why = format!("{error:#}").replace("add --no-fusion", "choose --fusion off");
        LeftOut::new(what, why)
    })
}

/// Whether the process that counts bytes also measures the time, as counting them costs nothing
/// there.
pub fn counts_for_free(subject: &Subject) -> bool {
    match subject {
        // The floor has no time.
        Subject::Burn {
            mode: Mode::Ideal, ..
        } => true,
        // `measure` counts bytes wherever it does not fuse.
        Subject::Burn {
            backend, fusion, ..
        } => backend.is_on_heap() || !fusion,
        // On CUDA PyTorch always counts; on the CPU its profiler does.
        Subject::PyTorch { device, .. } => device == "cuda",
    }
}

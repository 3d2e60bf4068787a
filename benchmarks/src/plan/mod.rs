//! The plan of a suite: which runs, in which order, and what is left out.
//!
//! A plan is data. It depends on the [`Options`] and on what is [`Available`], on nothing else.

#[cfg(test)]
mod tests;

use crate::machine::TorchVersions;
use crate::options::{Fusion, Options};
use crate::results::LeftOut;
use crate::shape::{Kind, Shape};
use crate::subject::{
    Burn, BurnVersion, Case, Checkpointing, LinearGradient, LossChunk, Mode, Operations,
    OptimizerKind, Pools, Subject, TorchMode,
};
use std::num::NonZeroUsize;
use vit_inputs::{BackendKind, Preset};

/// What this machine has of what was asked for.
#[derive(Clone, Debug)]
pub struct Available {
    /// Backends to measure, the most important first.
    pub backends: Vec<BackendKind>,
    /// Backends that are missing.
    pub missing: Vec<LeftOut>,
    /// Whether Burn 0.22 fuses operations on a GPU in this build.
    pub fuses: bool,
    /// The versions of PyTorch, or why it is not measured.
    pub pytorch: Result<TorchVersions, String>,
}

/// The plan of a suite.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Runs in the order of importance, as the time may not suffice for all.
    pub tasks: Vec<Task>,
    /// What is left out, and why.
    pub left_out: Vec<LeftOut>,
}

/// A run to measure.
#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    /// Model and batch size.
    pub case: Case,
    /// Framework and mode.
    pub subject: Subject,
    /// Repetition index, from 0.
    pub repetition: usize,
}

impl Plan {
    /// Plans a suite. PyTorch is measured beside the first backend only.
    pub fn new(options: &Options, available: &Available) -> Self {
        let mut plan = Self {
            tasks: Vec::new(),
            left_out: available.missing.clone(),
        };
        let backends = &available.backends;
        let preset = options.preset.unwrap_or_else(|| {
            if backends.iter().any(|backend| !backend.is_on_heap()) {
                return Preset::Large;
            }
            plan.leave_out(LeftOut::new(
                "the large models (ViT-L/16, GPT large)",
                "no GPU is measured; --preset large measures them on the CPU",
            ));
            Preset::Small
        });
        let torch_modes = plan.torch_modes(options, available);
        let has_cuda = matches!(&available.pytorch, Ok(versions) if versions.cuda.is_some());
        let cases = cases(options, preset);
        for (place, backend) in backends.iter().enumerate() {
            let fusion = match backend.is_on_heap() {
                true => &[Fusion::On][..],
                false => &options.fusion,
            };
            for (nth, fusion) in fusion.iter().enumerate() {
                for case in &cases {
                    let is_fused = *fusion == Fusion::On;
                    let subjects = plan.burn_subjects(options, available, case, *backend, is_fused);
                    plan.measure(options, case, &subjects);
                    if (place, nth) == (0, 0) {
                        let on_cuda = has_cuda && !backend.is_on_heap();
                        let subject = |mode: &TorchMode| Subject::PyTorch {
                            device: if on_cuda { "cuda" } else { "cpu" }.into(),
                            mode: *mode,
                            optimizer: case.model.optimizer(),
                        };
                        let subjects: Vec<_> = torch_modes.iter().map(subject).collect();
                        plan.measure(options, case, &subjects);
                    }
                }
            }
        }
        plan
    }

    /// All subjects in turn, as often as repeated, every second time in reverse: neighbours in time
    /// are compared with each other.
    fn measure(&mut self, options: &Options, case: &Case, subjects: &[Subject]) {
        for repetition in 0..options.settings.repeat.get() {
            let mut turn: Vec<_> = subjects.iter().collect();
            // What runs first has a cooler machine: repeated in one order, the others look slower.
            if repetition % 2 == 1 {
                turn.reverse();
            }
            self.tasks.extend(turn.into_iter().map(|subject| Task {
                case: case.clone(),
                subject: subject.clone(),
                repetition,
            }));
        }
    }

    /// Each mode of PyTorch that there is.
    fn torch_modes(&mut self, options: &Options, available: &Available) -> Vec<TorchMode> {
        let mut found = Vec::new();
        match &available.pytorch {
            Err(why) => self.leave_out(LeftOut::new("PyTorch and optimi", why)),
            Ok(versions) => {
                for mode in options.pytorch.iter().copied() {
                    match mode.why_not(versions) {
                        None => found.push(mode),
                        Some(why) => self.leave_out(LeftOut::new(mode.to_string(), why)),
                    }
                }
            }
        }
        found
    }

    /// Every combination that there is, those of one version of Burn beside each other, and of these
    /// the modes.
    fn burn_subjects(
        &mut self,
        options: &Options,
        available: &Available,
        case: &Case,
        backend: BackendKind,
        fusion: bool,
    ) -> Vec<Subject> {
        let optimizers: Vec<_> = match options.optimizer.is_empty() {
            true => vec![None],
            false => options.optimizer.iter().copied().map(Some).collect(),
        };
        let mut runs = vec![Burn {
            burn: BurnVersion::V0_21,
            backend,
            fusion,
            mode: Mode::Plain,
            checkpointing: Checkpointing::None,
            operations: Operations::Default,
            linear: LinearGradient::Default,
            loss_chunk: LossChunk::WHOLE,
            pools: Pools::Default,
            optimizer: None,
        }];
        // The outermost choice first.
        runs = each(runs, &options.burn, |run, it| run.burn = it);
        runs = each(runs, &options.operations, |run, it| run.operations = it);
        runs = each(runs, &options.linear, |run, it| run.linear = it);
        runs = each(runs, &options.loss_chunk, |run, it| run.loss_chunk = it);
        runs = each(runs, &optimizers, |run, it| run.optimizer = it);
        runs = each(runs, &options.checkpointing, |run, it| {
            run.checkpointing = it
        });
        runs = each(runs, &options.pools, |run, it| run.pools = it);
        runs = each(runs, &options.mode, |run, it| run.mode = it);
        runs.retain(|run| match missing(available, case, run) {
            None => true,
            Some(missing) => {
                self.leave_out(missing);
                false
            }
        });
        runs.into_iter().map(Subject::Burn).collect()
    }

    /// Lists what is missing, once.
    fn leave_out(&mut self, missing: LeftOut) {
        if !self.left_out.contains(&missing) {
            self.left_out.push(missing);
        }
    }
}

/// Each run with each of the values.
fn each<T: Copy>(runs: Vec<Burn>, values: &[T], set: fn(&mut Burn, T)) -> Vec<Burn> {
    let with = |run: Burn| {
        values.iter().map(move |value| {
            let mut run = run;
            set(&mut run, *value);
            run
        })
    };
    runs.into_iter().flat_map(with).collect()
}

/// Every model at its first batch size, then every model at its second, and so on.
fn cases(options: &Options, preset: Preset) -> Vec<Case> {
    let given: Vec<_> = options.batch_size.iter().map(|size| size.get()).collect();
    let context = options.context.map(NonZeroUsize::get);
    let vocabularies = options.vocabulary.iter().map(|size| Some(size.get()));
    let vocabularies: Vec<_> = match options.vocabulary.is_empty() {
        true => vec![None],
        false => vocabularies.collect(),
    };
    let mut cases = Vec::new();
    for index in 0..given.len().max(2) {
        for kind in &options.part {
            let (defaults, vocabularies) = match kind {
                Kind::Vit => (&[1, 8][..], &[None][..]),
                Kind::Gpt => (&[1][..], &vocabularies[..]),
                Kind::Encoder => (&[6][..], &[None][..]),
            };
            let sizes = if given.is_empty() { defaults } else { &given };
            let Some(size) = sizes.get(index) else {
                continue;
            };
            let case =
                |vocabulary: &Option<usize>| kind.case(preset, [*vocabulary, context], *size);
            cases.extend(vocabularies.iter().map(case));
        }
    }
    cases
}

/// What is missing if a run of Burn cannot be measured: the first of these rules that applies.
fn missing(available: &Available, case: &Case, run: &Burn) -> Option<LeftOut> {
    use BurnVersion::{V0_21, V0_22};
    use Checkpointing::{Automatic, Blocks, Nested};
    use OptimizerKind::{AdamWFiveBytes, Lamb, Sgd};
    let Burn {
        burn,
        backend,
        mode,
        checkpointing,
        linear,
        loss_chunk,
        optimizer,
        ..
    } = *run;
    let lean = run.operations == Operations::Lean;
    let flat = linear == LinearGradient::Flat;
    let in_chunks = loss_chunk != LossChunk::WHOLE;
    let is_vit = matches!(case.model, Shape::Vit(_));

    let of_mode = format!("{mode}, {checkpointing}");
    let chunk = format!("{}, loss chunk {loss_chunk}", case.name);
    let rules = [
        (
            burn == V0_22 && !backend.is_on_heap() && run.fusion && !available.fuses,
            format!("{backend} with fusion"),
            "a build of it fuses everywhere or nowhere: build with the feature fusion",
        ),
        (
            burn == V0_22 && !backend.is_on_heap() && !run.fusion && available.fuses,
            format!("{backend} without fusion"),
            "a build of it fuses everywhere or nowhere: build without the feature fusion",
        ),
        (
            run.pools != Pools::Default && (burn == V0_21 || backend.is_on_heap()),
            format!("{backend}, pools {}", run.pools),
            "this is a setting of Burn 0.22 on a GPU",
        ),
        (
            burn == V0_21 && lean,
            "lean operations".into(),
            "burn-lean has them for Burn 0.22",
        ),
        (
            burn == V0_22 && flat,
            "flat linear".into(),
            "the backend that computes it is for Burn 0.21",
        ),
        (
            flat && backend != BackendKind::Flex,
            format!("{backend}, flat linear"),
            "it is measured on flex only",
        ),
        (
            in_chunks && is_vit,
            chunk.clone(),
            "it scores one token of an image, not all: its loss has nothing to divide",
        ),
        (
            in_chunks && lean,
            format!("{chunk}, lean operations"),
            "lean operations have a loss that divides the tokens by itself",
        ),
        (
            burn == V0_21 && matches!(optimizer, Some(Lamb | Sgd)),
            optimizer.map_or_else(String::new, |kind| kind.to_string()),
            "not compiled into the benchmarks",
        ),
        (
            optimizer == Some(AdamWFiveBytes) && !(burn == V0_22 && lean),
            "adamw-five-bytes".into(),
            "a model in bf16 with norms in f32 needs Burn 0.22 and lean operations",
        ),
        (
            burn == V0_21 && checkpointing == Nested,
            "nested".into(),
            "a scope in a scope is part of the outer one there",
        ),
        (
            burn == V0_21 && mode == Mode::Plain && matches!(checkpointing, Blocks | Automatic),
            of_mode.clone(),
            "this needs the backend of gradient release; plain Burn has balanced checkpointing",
        ),
        (
            burn == V0_21 && mode == Mode::Unarmed && checkpointing == Automatic,
            of_mode,
            "the armed optimizer makes the cuts, and here nothing is armed",
        ),
        (
            burn == V0_22 && mode == Mode::Unarmed,
            "unarmed".into(),
            "gradient release is no backend there: with nothing armed, it is plain Burn",
        ),
        (
            burn == V0_22 && mode == Mode::Ideal,
            "ideal".into(),
            "the optimizer that drops gradients is written for Burn 0.21",
        ),
        (
            burn == V0_22 && checkpointing == Automatic,
            "automatic".into(),
            "burn-lean recomputes what is in a `checkpoint`, and makes no cuts by itself",
        ),
        (
            burn == V0_22 && checkpointing == Nested && !is_vit,
            format!("{}, nested", case.name),
            "only the vision transformer has scopes inside its blocks",
        ),
    ];
    let (_, what, why) = rules.into_iter().find(|(applies, ..)| *applies)?;
    Some(LeftOut::new(format!("Burn {burn}: {what}"), why))
}

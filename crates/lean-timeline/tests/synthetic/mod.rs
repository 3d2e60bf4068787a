//! Synthetic snapshots, like those of a small transformer that is trained with Adam.
//!
//! By construction, the bytes in use at each sample are the total of the holders and
//! [`UNATTRIBUTED`] more.

#![allow(dead_code, reason = "no test uses all of it")]

use lean_timeline::Snapshot;
use lean_timeline::snapshot::{Category, Holder, Parameter, Phase, PhaseKind, Sample};
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use std::collections::HashMap;

/// Bytes in use that no holder has.
pub(crate) const UNATTRIBUTED: u64 = 1024;

/// The ticks with a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sampled {
    /// All ticks, as on a CPU.
    Everywhere,
    /// The beginning and end of each phase, as on a GPU.
    AtMarks,
    /// None.
    Nowhere,
}

/// A training that is never run.
#[derive(Clone, Debug)]
pub(crate) struct Training {
    pub(crate) title: String,
    pub(crate) seed: u64,
    /// Number of parameters of the model; at least 18.
    pub(crate) parameters: usize,
    /// Width of the model.
    pub(crate) width: u64,
    /// Tokens in a batch.
    pub(crate) tokens: u64,
    /// Steps of the training.
    pub(crate) iterations: usize,
    /// More steps follow until the snapshot has this many ticks.
    pub(crate) ticks: usize,
    pub(crate) with_release: bool,
    /// Whether the loop keeps the old model until the optimizer has made the new one, as Burn's
    /// Learner does; with gradient release it cannot.
    pub(crate) keeps_old_model: bool,
    pub(crate) sampled: Sampled,
}

impl Training {
    /// Two steps of a model with 54 parameters, the first of which makes the optimizer's state.
    pub(crate) fn plain() -> Self {
        Self {
            title: "Transformer of 4 blocks, plain".into(),
            seed: 42,
            parameters: 54,
            width: 256,
            tokens: 49,
            iterations: 2,
            ticks: 0,
            with_release: false,
            keeps_old_model: false,
            sampled: Sampled::Everywhere,
        }
    }

    /// The same training with gradient release.
    pub(crate) fn release() -> Self {
        Self {
            title: "Transformer of 4 blocks, gradient release".into(),
            with_release: true,
            ..Self::plain()
        }
    }

    /// 5,000 parameters and a million ticks.
    pub(crate) fn vast() -> Self {
        Self {
            title: "Transformer of 5,000 parameters, plain".into(),
            parameters: 5_000,
            width: 64,
            ticks: 1_000_000,
            ..Self::plain()
        }
    }

    pub(crate) fn sampled(self, sampled: Sampled) -> Self {
        Self { sampled, ..self }
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let mut tape = Tape::new(self);
        tape.before();
        let mut iteration = 0;
        while iteration < self.iterations || tape.snapshot.times.len() < self.ticks {
            tape.iteration(iteration);
            iteration += 1;
        }
        tape.finish()
    }

    fn model(&self) -> Vec<Parameter> {
        let width = self.width as usize;
        let parameter = |path: String, shape: &[usize]| Parameter {
            path,
            shape: shape.into(),
            bytes: 4 * shape.iter().product::<usize>() as u64,
            is_embedding: false,
        };
        let mut model = vec![
            parameter("embed.patch.weight".into(), &[width, 3, 16, 16]),
            parameter("embed.patch.bias".into(), &[width]),
            parameter("embed.position".into(), &[self.tokens as usize, width]),
        ];
        let tail = [
            parameter("norm.gamma".into(), &[width]),
            parameter("norm.beta".into(), &[width]),
            parameter("head.weight".into(), &[width, 1000]),
        ];
        let mut block = 0;
        while model.len() + tail.len() < self.parameters {
            let of =
                |name: &str, shape: &[usize]| parameter(format!("blocks.{block}.{name}"), shape);
            model.extend([
                of("norm1.gamma", &[width]),
                of("norm1.beta", &[width]),
                of("attention.query_key_value.weight", &[width, 3 * width]),
                of("attention.query_key_value.bias", &[3 * width]),
                of("attention.output.weight", &[width, width]),
                of("attention.output.bias", &[width]),
                of("norm2.gamma", &[width]),
                of("norm2.beta", &[width]),
                of("mlp.fc1.weight", &[width, 4 * width]),
                of("mlp.fc1.bias", &[4 * width]),
                of("mlp.fc2.weight", &[4 * width, width]),
                of("mlp.fc2.bias", &[width]),
            ]);
            block += 1;
        }
        model.truncate(self.parameters.max(18) - tail.len());
        model.extend(tail);
        model
    }
}

/// Index of a holder.
type Held = usize;

struct Tape<'a> {
    training: &'a Training,
    snapshot: Snapshot,
    operations: HashMap<&'static str, usize>,
    /// Bytes of one.
    activation: u64,
    random: SplitMix64,
    known: u64,
    /// The largest total since the last sample.
    most: u64,
    weights: Vec<Held>,
    old_weights: Vec<Held>,
    moments: Vec<Option<[Held; 2]>>,
}

impl<'a> Tape<'a> {
    fn new(training: &'a Training) -> Self {
        let parameters = training.model();
        Self {
            training,
            moments: vec![None; parameters.len()],
            snapshot: Snapshot {
                title: training.title.clone(),
                backend: match training.with_release {
                    true => "gradient-release<autodiff<flex>>".into(),
                    false => "autodiff<flex>".into(),
                },
                parameters,
                ..Snapshot::default()
            },
            operations: HashMap::new(),
            activation: 4 * training.tokens * training.width,
            random: SplitMix64::seed_from_u64(training.seed),
            known: 0,
            most: 0,
            weights: Vec::new(),
            old_weights: Vec::new(),
        }
    }

    fn operation(&mut self, name: &'static str) -> usize {
        let names = &mut self.snapshot.operations;
        *self.operations.entry(name).or_insert_with(|| {
            names.push(name.into());
            names.len() - 1
        })
    }

    fn now(&self) -> usize {
        self.snapshot.times.len()
    }

    /// Ends a tick.
    fn tick(&mut self, operation: Option<usize>, workspace: u64, is_mark: bool) {
        let tick = self.now();
        let since = 1 + self.random.next_u64() % 40 + workspace / 4096;
        let last = self.snapshot.times.last().copied().unwrap_or(0);
        self.snapshot.times.push(last + since);
        let is_sampled = match self.training.sampled {
            Sampled::Everywhere => true,
            Sampled::AtMarks => is_mark,
            Sampled::Nowhere => false,
        };
        self.most = self.most.max(self.known) + workspace;
        if is_sampled {
            self.snapshot.samples.push(Sample {
                tick,
                in_use: self.known + UNATTRIBUTED,
                peak: self.most + UNATTRIBUTED,
                operation,
            });
        }
        if is_sampled || self.training.sampled == Sampled::Nowhere {
            self.most = self.known;
        }
    }

    fn mark(&mut self) {
        self.tick(None, 0, true);
    }

    fn leave(&mut self, held: Held) {
        let now = self.now();
        let holder = &mut self.snapshot.holders[held];
        holder.until = now;
        self.known -= holder.bytes;
    }

    /// Allocates the output of an operation that has a workspace.
    fn take_with(
        &mut self,
        bytes: u64,
        category: Category,
        parameter: Option<usize>,
        name: &'static str,
        workspace: u64,
    ) -> Held {
        let operation = self.operation(name);
        self.snapshot.holders.push(Holder {
            bytes,
            category,
            parameter,
            operation,
            from: self.now(),
            until: usize::MAX,
        });
        self.known += bytes;
        self.tick(Some(operation), workspace, false);
        self.snapshot.holders.len() - 1
    }

    fn take(
        &mut self,
        bytes: u64,
        category: Category,
        parameter: Option<usize>,
        name: &'static str,
    ) -> Held {
        self.take_with(bytes, category, parameter, name, 0)
    }

    fn release(&mut self, held: Held) {
        self.leave(held);
        self.tick(None, 0, false);
    }

    /// Allocates what exists before the first step.
    fn before(&mut self) {
        for number in 0..self.snapshot.parameters.len() {
            let bytes = self.snapshot.parameters[number].bytes;
            let held = self.take(
                bytes,
                Category::Parameters,
                Some(number),
                "before the recording",
            );
            self.weights.push(held);
        }
    }

    fn phase(&mut self, kind: PhaseKind, iteration: usize) -> usize {
        let from = self.now();
        self.snapshot.phases.push(Phase {
            kind,
            iteration,
            from,
            until: from,
        });
        self.mark();
        self.snapshot.phases.len() - 1
    }

    fn end(&mut self, phase: usize) {
        self.mark();
        self.snapshot.phases[phase].until = self.now();
    }

    fn iteration(&mut self, iteration: usize) {
        let batch = self.take(self.activation, Category::Other, None, "batch");
        let forward = self.phase(PhaseKind::Forward, iteration);
        let parameters = 0..self.snapshot.parameters.len();
        let mut activations: Vec<_> = parameters
            .clone()
            .map(|number| self.layer(number))
            .collect();
        let loss = self.take(4, Category::Activations, None, "cross_entropy");
        self.end(forward);

        let backward = self.phase(PhaseKind::Backward, iteration);
        let mut gradients = Vec::new();
        let mut flowing = self.take(
            self.activation,
            Category::Temporaries,
            None,
            "cross_entropy",
        );
        for number in parameters.rev() {
            let next = self.take(self.activation, Category::Temporaries, None, "matmul");
            let gradient = self.gradient(number);
            if let Some(activation) = activations[number].take() {
                self.release(activation);
            }
            self.release(std::mem::replace(&mut flowing, next));
            if self.training.with_release {
                self.step(number, gradient, iteration);
            } else {
                gradients.push((number, gradient));
            }
        }
        self.release(flowing);
        self.release(loss);
        self.end(backward);

        let optimizer = self.phase(PhaseKind::Optimizer, iteration);
        gradients.reverse();
        for (number, gradient) in gradients {
            self.step(number, gradient, iteration);
        }
        self.end(optimizer);
        for old in std::mem::take(&mut self.old_weights) {
            self.release(old);
        }
        self.release(batch);
    }

    /// Makes the activation that a layer leaves for the backward pass, if it leaves one.
    fn layer(&mut self, number: usize) -> Option<Held> {
        let Parameter {
            path, shape, bytes, ..
        } = &self.snapshot.parameters[number];
        let (is_matrix, bytes) = (shape.len() > 1, *bytes);
        let widening = match path {
            path if path.ends_with("query_key_value.weight") => 3,
            path if path.ends_with("fc1.weight") => 4,
            _ => 1,
        };
        let activation = self.activation * widening;
        let operation = if is_matrix { "matmul" } else { "add" };
        let temporary = self.take(activation / 2, Category::Temporaries, None, "reshape");
        let kept = self.take_with(
            activation,
            Category::Activations,
            None,
            operation,
            if is_matrix { bytes / 4 } else { 0 },
        );
        self.release(temporary);
        if is_matrix || number.is_multiple_of(2) {
            Some(kept)
        } else {
            self.release(kept);
            None
        }
    }

    fn gradient(&mut self, number: usize) -> Held {
        let Parameter { shape, bytes, .. } = &self.snapshot.parameters[number];
        let (is_matrix, bytes) = (shape.len() > 1, *bytes);
        let operation = if is_matrix { "matmul" } else { "sum_dim" };
        let workspace = if is_matrix { bytes / 4 } else { 0 };
        self.take_with(
            bytes,
            Category::Gradients,
            Some(number),
            operation,
            workspace,
        )
    }

    /// Adam for one parameter: two moments, and a weight in the memory of the gradient.
    fn step(&mut self, number: usize, gradient: Held, iteration: usize) {
        let phase = self.phase(PhaseKind::Step(number), iteration);
        let bytes = self.snapshot.parameters[number].bytes;
        let of = Some(number);
        let old = self.moments[number].take();
        let first = self.take(bytes, Category::OptimizerState, of, "mul_scalar");
        let square = self.take(bytes, Category::Temporaries, of, "powi_scalar");
        let second = self.take(bytes, Category::OptimizerState, of, "add");
        if let Some([old_first, old_second]) = old {
            self.release(old_first);
            self.release(old_second);
        }
        self.moments[number] = Some([first, second]);
        let delta = self.take(bytes, Category::Temporaries, of, "div");
        self.release(square);
        self.leave(gradient);
        let weight = self.take(bytes, Category::Parameters, of, "sub");
        self.release(delta);
        let old = std::mem::replace(&mut self.weights[number], weight);
        if self.training.keeps_old_model && !self.training.with_release {
            self.old_weights.push(old);
        } else {
            self.release(old);
        }
        self.end(phase);
    }

    fn finish(mut self) -> Snapshot {
        let ticks = self.now();
        for holder in &mut self.snapshot.holders {
            holder.until = holder.until.min(ticks);
        }
        self.snapshot
    }
}

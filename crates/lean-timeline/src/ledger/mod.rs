//! The ledger of a recording: which memory exists, since when, and for what.
//!
//! The purpose of a block follows from what becomes of it. [`Ledger::end_pass`],
//! [`Ledger::begin_step`] and [`Ledger::end_step`] assign it as soon as it is known.

mod block;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::time::Instant;

use crate::analysis::Totals;
use crate::snapshot::{Category, Holder, Parameter, Phase, PhaseKind, Sample, Snapshot};
use block::{Block, Blocks};
pub use block::{BlockId, Operand, Storage};

/// The operation of tensors that exist before the recording.
const BEFORE: &str = "before the recording";

/// The operation of memory that is in use throughout and belongs to no recorded tensor.
const BESIDE: &str = "beside the tensors";

/// Operations whose result may be a view of their operand, by the end of their name. All others
/// compute: where the result of one of them occupies the storage of its operand, the content is
/// new.
const VIEWS: [&str; 12] = [
    "_cast",
    "_detach",
    "_expand",
    "_flip",
    "_permute",
    "_reshape",
    "_set_require_grad",
    "_slice",
    "_swap_dims",
    "_to_device",
    "_transpose",
    "_unfold",
];

/// The ledger of a recording.
#[derive(Debug)]
pub struct Ledger {
    start: Instant,
    /// Microseconds since `start`, one for each tick.
    times: Vec<u64>,
    /// The names of operations, numbered as they come.
    operations: HashMap<&'static str, usize>,
    blocks: Blocks,
    parameters: Vec<Parameter>,
    phases: Vec<Phase>,
    /// Training steps begun.
    iterations: usize,
    /// The forward or backward pass in progress.
    pass: Option<Pass>,
    /// Index of the phase of the optimizer's call, from its first step to the next pass.
    optimizer: Option<usize>,
    /// The step of a parameter in progress.
    step: Option<Step>,
    /// At most one for each tick.
    samples: Vec<Sample>,
    /// No earlier block is an activation.
    first_activation: BlockId,
    /// Steps of parameters that the recorded model does not have.
    unknown_parameter_steps: usize,
}

#[derive(Clone, Copy, Debug)]
struct Pass {
    /// Index of its phase.
    phase: usize,
    /// Number of blocks made before it.
    blocks_before: usize,
}

#[derive(Clone, Copy, Debug)]
struct Step {
    /// Index of its phase.
    phase: usize,
    parameter: usize,
    old_weight: BlockId,
    gradient: BlockId,
    /// Number of blocks made before it.
    blocks_before: usize,
}

impl Ledger {
    /// An empty ledger, whose time begins now, at tick 0: everything belongs to it that exists before.
    pub fn start() -> Self {
        Self {
            start: Instant::now(),
            times: vec![0],
            operations: HashMap::new(),
            blocks: Blocks::default(),
            parameters: Vec::new(),
            phases: Vec::new(),
            iterations: 0,
            pass: None,
            optimizer: None,
            step: None,
            samples: Vec::new(),
            first_activation: 0,
            unknown_parameter_steps: 0,
        }
    }

    fn tick(&mut self) -> usize {
        self.times.push(self.start.elapsed().as_micros() as u64);
        self.now()
    }

    fn now(&self) -> usize {
        self.times.len() - 1
    }

    fn operation(&mut self, name: &'static str) -> usize {
        let next = self.operations.len();
        *self.operations.entry(name).or_insert(next)
    }

    /// Whether a parameter of the model was registered.
    pub fn has_parameters(&self) -> bool {
        !self.parameters.is_empty()
    }

    /// Registers a tensor that exists since before the recording.
    pub fn register_existing(&mut self, storage: Storage) -> BlockId {
        if let Some(block) = self.blocks.find(storage) {
            self.blocks.add_tensor(block);
            return block;
        }
        let operation = self.operation(BEFORE);
        self.blocks.insert(Block::new(storage, operation, 0))
    }

    /// Registers what an operation made of `operands`.
    pub fn register_output(
        &mut self,
        operation: &'static str,
        storage: Storage,
        operands: &[Operand],
    ) -> BlockId {
        self.mark_optimizer_state(operands);
        let shared = self.blocks.find(storage);
        let shared = operands.iter().find(|of| Some(of.block) == shared);
        if let Some(&Operand { block, is_consumed }) = shared {
            let may_be_view = VIEWS.iter().any(|view| operation.ends_with(view));
            if may_be_view || !is_consumed || self.blocks[block].tensors > 1 {
                self.blocks.add_tensor(block);
                return block;
            }
        }
        let tick = self.tick();
        if let Some(operand) = shared {
            self.blocks.replace(operand.block, tick);
        }
        let mut block = Block::new(storage, self.operation(operation), tick);
        block.nearest_parameter = self.nearest_parameter(operands);
        block.is_of_a_step = self.pass.is_some() || self.step.is_some();
        self.blocks.insert(block)
    }

    /// Registers memory that a thread takes on which no pass and no step has begun. It belongs to no
    /// step, whatever is in progress on another thread.
    pub fn register_elsewhere(&mut self, operation: &'static str, storage: Storage) -> BlockId {
        let (operation, tick) = (self.operation(operation), self.tick());
        self.blocks.insert(Block::new(storage, operation, tick))
    }

    /// The block at the address of a storage now.
    pub fn at(&self, id: usize) -> Option<BlockId> {
        self.blocks.at(id)
    }

    /// The step of a parameter reads the parameter, its gradient, and what it has made itself. What
    /// it reads besides is the optimizer's state.
    fn mark_optimizer_state(&mut self, operands: &[Operand]) {
        let Some(step) = self.step else {
            return;
        };
        for &Operand { block, .. } in operands {
            if block < step.blocks_before && self.blocks[block].purpose().is_none() {
                self.assign(block, Category::OptimizerState, Some(step.parameter));
            }
        }
    }

    /// The parameter that an operation on `operands` works for.
    fn nearest_parameter(&self, operands: &[Operand]) -> Option<usize> {
        if let Some(step) = self.step {
            return Some(step.parameter);
        }
        let operands = || operands.iter().map(|operand| &self.blocks[operand.block]);
        let parameter = |block: &Block| {
            let purpose = block.purpose()?;
            (purpose.category == Category::Parameters).then_some(purpose.parameter?)
        };
        let read = operands().find_map(parameter);
        read.or_else(|| operands().find_map(|block| block.nearest_parameter))
    }

    /// Removes a tensor, and with the last one its block.
    pub fn release(&mut self, block: BlockId) {
        if self.blocks.remove_tensor(block) {
            let tick = self.tick();
            self.blocks.free(block, tick);
        }
    }

    /// Removes a block of one tensor that nobody watches: within a step, that has read it before.
    pub fn release_unwatched(&mut self, block: BlockId) {
        self.mark_optimizer_state(&[Operand {
            block,
            is_consumed: true,
        }]);
        self.release(block);
    }

    /// Ends the activations of earlier passes. What is still held is kept for something else, as a
    /// thread keeps the workspace of its products.
    pub fn end_activations(&mut self) {
        let passed = self.first_activation..self.blocks.len();
        self.first_activation = passed.end;
        for block in passed {
            let held = &self.blocks[block];
            if held.is_live() && held.is(Category::Activations) {
                self.assign(block, Category::Other, None);
            }
        }
    }

    /// Begins anew with the memory that is in use, and what it is for. Between passes, after
    /// [`end_activations`](Self::end_activations).
    pub fn forget_the_past(&mut self) {
        self.blocks.keep_live();
        let in_use = self.samples.last().map(|last| last.in_use);
        *self = Self {
            operations: std::mem::take(&mut self.operations),
            first_activation: self.blocks.len(),
            blocks: std::mem::take(&mut self.blocks),
            parameters: std::mem::take(&mut self.parameters),
            unknown_parameter_steps: self.unknown_parameter_steps,
            ..Self::start()
        };
        if let Some(in_use) = in_use {
            self.sample(in_use, in_use);
        }
    }

    fn assign(&mut self, block: BlockId, category: Category, parameter: Option<usize>) {
        let now = self.now();
        self.blocks.assign(block, category, parameter, now);
    }

    /// Registers a parameter of the model, or the block that it has moved to since; `index` is its
    /// place among those of the model.
    pub fn set_parameter(&mut self, index: usize, parameter: Parameter, block: BlockId) {
        let is_it = |known: &Parameter| known.path == parameter.path;
        let index = match self.parameters.get(index) {
            Some(known) if is_it(known) => Some(index),
            _ => self.parameters.iter().position(is_it),
        };
        let index = index.unwrap_or_else(|| {
            self.parameters.push(parameter);
            self.parameters.len() - 1
        });
        // Several parameters can share a block, which is counted once.
        if !self.blocks[block].is(Category::Parameters) {
            self.assign(block, Category::Parameters, Some(index));
        }
    }

    fn begin(&mut self, kind: PhaseKind) -> usize {
        let from = self.tick();
        self.phases.push(Phase {
            kind,
            iteration: self.iterations.saturating_sub(1),
            from,
            until: from + 1,
        });
        self.phases.len() - 1
    }

    fn end(&mut self, phase: usize) {
        self.phases[phase].until = self.now() + 1;
    }

    /// Begins a forward or a backward pass.
    pub fn begin_pass(&mut self, kind: PhaseKind) {
        self.iterations += usize::from(kind == PhaseKind::Forward);
        self.optimizer = None;
        self.pass = Some(Pass {
            phase: self.begin(kind),
            blocks_before: self.blocks.len(),
        });
    }

    /// Ends the pass in progress. What outlives a forward pass is kept for the backward pass. What
    /// outlives a backward pass is gradients.
    pub fn end_pass(&mut self) {
        let Some(pass) = self.pass.take() else {
            return;
        };
        let category = match self.phases[pass.phase].kind {
            PhaseKind::Forward => Category::Activations,
            _ => Category::Gradients,
        };
        for block in pass.blocks_before..self.blocks.len() {
            let made = &self.blocks[block];
            if made.is_of_a_step && made.is_live() && made.purpose().is_none() {
                self.assign(block, category, None);
            }
        }
        self.tick();
        self.end(pass.phase);
    }

    /// Begins the optimizer's step of a parameter.
    pub fn begin_step(&mut self, parameter: BlockId, gradient: BlockId) {
        let purpose = self.blocks[parameter].purpose();
        let purpose = purpose.filter(|of| of.category == Category::Parameters);
        let Some(index) = purpose.and_then(|of| of.parameter) else {
            self.unknown_parameter_steps += 1;
            return;
        };
        if self.pass.is_none() && self.optimizer.is_none() {
            self.optimizer = Some(self.begin(PhaseKind::Optimizer));
        }
        let phase = self.begin(PhaseKind::Step(index));
        self.assign(gradient, Category::Gradients, Some(index));
        self.step = Some(Step {
            phase,
            parameter: index,
            old_weight: parameter,
            gradient,
            blocks_before: self.blocks.len(),
        });
    }

    /// Ends the step of a parameter. What it leaves besides the new `weight` is the optimizer's
    /// state.
    pub fn end_step(&mut self, weight: BlockId) {
        let Some(step) = self.step else {
            return;
        };
        self.assign(weight, Category::Parameters, Some(step.parameter));
        let made = step.blocks_before..self.blocks.len();
        for block in made.chain([step.gradient]) {
            let is_weight = block == weight || block == step.old_weight;
            let left = &self.blocks[block];
            // Clipping makes the gradient anew, between the backward pass and the step.
            let is_of_a_step = left.is_of_a_step || block == step.gradient;
            if !is_weight && is_of_a_step && left.is_live() {
                self.assign(block, Category::OptimizerState, Some(step.parameter));
            }
        }
        self.abandon_step();
    }

    /// Ends the step of a parameter whose new weight is not known.
    pub fn abandon_step(&mut self) {
        if let Some(step) = self.step.take() {
            self.tick();
            self.end(step.phase);
            if let Some(optimizer) = self.optimizer {
                self.end(optimizer);
            }
        }
    }

    /// Adds what the allocator or the device says now. A sample of the same tick as the last, from an
    /// operation that allocated nothing, is merged with it.
    pub fn sample(&mut self, in_use: u64, peak: u64) {
        let tick = self.now();
        match self.samples.last_mut() {
            Some(last) if last.tick == tick => {
                last.peak = last.peak.max(peak);
                last.in_use = in_use;
            }
            _ => self.samples.push(Sample { tick, in_use, peak }),
        }
    }

    /// Bytes that the ledger takes on the heap, without the names of operations and parameters.
    pub fn heap_bytes(&self) -> u64 {
        let samples = self.samples.capacity() * size_of::<Sample>();
        let times = self.times.capacity() * size_of::<u64>();
        let phases = self.phases.capacity() * size_of::<Phase>();
        (samples + times + phases + self.blocks.heap_bytes()) as u64
    }

    /// Ends the recording.
    pub fn into_snapshot(mut self, title: String, backend: String) -> Snapshot {
        self.end_pass();
        let (end, beside) = (self.times.len(), self.operation(BESIDE));
        let mut operations: Vec<_> = self.operations.iter().collect();
        operations.sort_by_key(|(_, index)| **index);
        let operations = operations.iter().map(|(name, _)| name.to_string());
        let mut snapshot = Snapshot {
            title,
            backend,
            warnings: self.warnings(),
            operations: operations.collect(),
            parameters: self.parameters,
            times: self.times,
            holders: self.blocks.holders(end),
            phases: self.phases,
            samples: self.samples,
        };
        let bytes = bytes_beside_tensors(&snapshot);
        if bytes > 0 {
            let holder = Holder {
                bytes,
                category: Category::Other,
                parameter: None,
                operation: beside,
                from: 0,
                until: end,
            };
            snapshot.holders.insert(0, holder);
        }
        snapshot
    }

    fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        let is_step = |phase: &Phase| matches!(phase.kind, PhaseKind::Step(_));
        if !self.phases.iter().any(is_step) {
            warnings.push(
                "no optimizer step was seen, so that gradients and the optimizer's state cannot be \
                 told from the rest: make the optimizer with `.recorded()`, or on Burn 0.22 step \
                 with `timeline::step`"
                    .to_owned(),
            );
        }
        if self.unknown_parameter_steps > 0 {
            let steps = self.unknown_parameter_steps;
            warnings.push(format!(
                "{steps} steps were of parameters that are not of the recorded model"
            ));
        }
        warnings
    }
}

/// Bytes that are in use throughout and belong to no tensor. Holders never have more than is in use.
fn bytes_beside_tensors(snapshot: &Snapshot) -> u64 {
    let totals = Totals::of(snapshot);
    let samples = snapshot.samples.iter();
    let beside = samples.map(|of| of.in_use.saturating_sub(totals.known()[of.tick]));
    beside.min().unwrap_or(0)
}

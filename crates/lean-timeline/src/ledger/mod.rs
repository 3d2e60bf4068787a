//! The ledger of a recording: which memory exists, since when, and for what.
//!
//! The purpose of a block follows from what becomes of it. [`Ledger::end_pass`],
//! [`Ledger::begin_step`] and [`Ledger::end_step`] assign it as soon as it is known.

mod block;
mod blocks;
mod clock;
mod holders;
mod operations;
mod phases;
#[cfg(test)]
mod tests;

pub use block::{BlockId, Operand, Storage};

use crate::analysis::Totals;
use crate::snapshot::{Category, Holder, Parameter, PhaseKind, Sample, Snapshot};
use block::{Block, Purpose};
use blocks::Blocks;
use clock::Clock;
use operations::{BEFORE, BESIDE, Operations, may_be_view};
use phases::Phases;

/// The ledger of a recording.
#[derive(Debug)]
pub struct Ledger {
    clock: Clock,
    operations: Operations,
    blocks: Blocks,
    parameters: Vec<Parameter>,
    phases: Phases,
    /// At most one for each tick.
    samples: Vec<Sample>,
    /// No earlier block is an activation.
    first_activation: BlockId,
    /// Steps of parameters that the recorded model does not have.
    unknown_parameter_steps: usize,
}

impl Ledger {
    /// An empty ledger, whose time begins now.
    pub fn start() -> Self {
        Self {
            clock: Clock::start(),
            operations: Operations::default(),
            blocks: Blocks::default(),
            parameters: Vec::new(),
            phases: Phases::default(),
            samples: Vec::new(),
            first_activation: 0,
            unknown_parameter_steps: 0,
        }
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
        let operation = self.operations.index(BEFORE);
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
        let shared = self.blocks.find(storage).and_then(|block| {
            let operand = operands.iter().find(|operand| operand.block == block);
            operand.copied()
        });
        if let Some(Operand { block, is_consumed }) = shared
            && (may_be_view(operation) || !is_consumed || self.blocks[block].tensors > 1)
        {
            self.blocks.add_tensor(block);
            return block;
        }
        let tick = self.clock.tick();
        if let Some(Operand { block, .. }) = shared {
            self.blocks.replace(block, tick);
        }
        let operation = self.operations.index(operation);
        let block = Block {
            nearest_parameter: self.nearest_parameter(operands),
            is_of_a_step: self.phases.is_in_progress(),
            ..Block::new(storage, operation, tick)
        };
        self.blocks.insert(block)
    }

    /// Registers memory that a thread takes on which no pass and no step has begun. It belongs to no
    /// step, whatever is in progress on another thread.
    pub fn register_elsewhere(&mut self, operation: &'static str, storage: Storage) -> BlockId {
        let operation = self.operations.index(operation);
        let tick = self.clock.tick();
        self.blocks.insert(Block::new(storage, operation, tick))
    }

    /// The block at the address of a storage now.
    pub fn at(&self, id: usize) -> Option<BlockId> {
        self.blocks.at(id)
    }

    /// The step of a parameter reads the parameter, its gradient, and what it has made itself. What
    /// it reads besides is the optimizer's state.
    fn mark_optimizer_state(&mut self, operands: &[Operand]) {
        let Some(step) = self.phases.step() else {
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
        if let Some(step) = self.phases.step() {
            return Some(step.parameter);
        }
        let operands = || operands.iter().map(|operand| &self.blocks[operand.block]);
        let parameter = |block: &Block| {
            let purpose = block.purpose()?;
            (purpose.category == Category::Parameters).then_some(purpose.parameter?)
        };
        operands()
            .find_map(parameter)
            .or_else(|| operands().find_map(|block| block.nearest_parameter))
    }

    /// Removes a tensor, and with the last one its block.
    pub fn release(&mut self, block: BlockId) {
        if self.blocks.remove_tensor(block) {
            let tick = self.clock.tick();
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
        let in_use = self.samples.last().copied();
        self.clock = Clock::start();
        self.blocks.keep_live();
        self.first_activation = self.blocks.len();
        self.phases = Phases::default();
        self.samples = Vec::new();
        if let Some(Sample { in_use, .. }) = in_use {
            self.sample(in_use, in_use);
        }
    }

    fn assign(&mut self, block: BlockId, category: Category, parameter: Option<usize>) {
        self.blocks
            .assign(block, category, parameter, self.clock.now());
    }

    /// Registers a parameter of the model.
    pub fn register_parameter(&mut self, parameter: Parameter, block: BlockId) {
        self.set_parameter(self.parameters.len(), parameter, block);
    }

    /// Registers a parameter of the model, or the block that it has moved to since; `index` is its
    /// place among those of the model.
    pub fn set_parameter(&mut self, index: usize, parameter: Parameter, block: BlockId) {
        let index = match self.parameters.get(index) {
            Some(known) if known.path == parameter.path => index,
            _ => {
                let known = self.parameters.iter();
                let place = known.clone().position(|known| known.path == parameter.path);
                place.unwrap_or_else(|| {
                    self.parameters.push(parameter);
                    self.parameters.len() - 1
                })
            }
        };
        // Several parameters can share a block, which is counted once.
        if !self.blocks[block].is(Category::Parameters) {
            self.assign(block, Category::Parameters, Some(index));
        }
    }

    /// Begins a forward or a backward pass.
    pub fn begin_pass(&mut self, kind: PhaseKind) {
        let tick = self.clock.tick();
        self.phases.begin_pass(kind, tick, self.blocks.len());
    }

    /// Ends the pass in progress. What outlives a forward pass is kept for the backward pass. What
    /// outlives a backward pass is gradients.
    pub fn end_pass(&mut self) {
        let Some(pass) = self.phases.take_pass() else {
            return;
        };
        let category = match pass.kind {
            PhaseKind::Forward => Category::Activations,
            _ => Category::Gradients,
        };
        for block in pass.blocks_before..self.blocks.len() {
            let made = &self.blocks[block];
            if made.is_of_a_step && made.is_live() && made.purpose().is_none() {
                self.assign(block, category, None);
            }
        }
        self.phases.end_pass(pass, self.clock.tick() + 1);
    }

    /// Begins the optimizer's step of a parameter.
    pub fn begin_step(&mut self, parameter: BlockId, gradient: BlockId) {
        let Some(Purpose {
            category: Category::Parameters,
            parameter: Some(index),
        }) = self.blocks[parameter].purpose()
        else {
            self.unknown_parameter_steps += 1;
            return;
        };
        let tick = self.clock.tick();
        self.assign(gradient, Category::Gradients, Some(index));
        self.phases
            .begin_step(index, parameter, gradient, tick, self.blocks.len());
    }

    /// Ends the step of a parameter. What it leaves besides the new `weight` is the optimizer's
    /// state.
    pub fn end_step(&mut self, weight: BlockId) {
        let Some(step) = self.phases.take_step() else {
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
        self.phases.end_step(step, self.clock.tick() + 1);
    }

    /// Ends the step of a parameter whose new weight is not known.
    pub fn abandon_step(&mut self) {
        if let Some(step) = self.phases.take_step() {
            self.phases.end_step(step, self.clock.tick() + 1);
        }
    }

    /// Adds what the allocator or the device says now. A sample of the same tick as the last, from an
    /// operation that allocated nothing, is merged with it.
    pub fn sample(&mut self, in_use: u64, peak: u64) {
        let tick = self.clock.now();
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
        let others = self.clock.heap_bytes() + self.blocks.heap_bytes() + self.phases.heap_bytes();
        (samples + others) as u64
    }

    /// Ends the recording.
    pub fn into_snapshot(mut self, title: String, backend: String) -> Snapshot {
        self.end_pass();
        let end = self.clock.now() + 1;
        let operation = self.operations.index(BESIDE);
        let mut holders: Vec<Holder> = holders::holders(&self.blocks, end).collect();
        holders.sort_by_key(|holder| holder.from);
        let mut snapshot = Snapshot {
            title,
            backend,
            warnings: self.warnings(),
            parameters: self.parameters,
            operations: self.operations.names,
            times: self.clock.times,
            holders,
            phases: self.phases.phases,
            samples: self.samples,
        };
        let beside = bytes_beside_tensors(&snapshot);
        if beside > 0 {
            let holder = Holder {
                bytes: beside,
                category: Category::Other,
                parameter: None,
                operation,
                from: 0,
                until: end,
            };
            snapshot.holders.insert(0, holder);
        }
        snapshot
    }

    fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if !self.phases.has_steps() {
            warnings.push(
                "no optimizer step was seen, so that gradients and the optimizer's state cannot be \
                 told from the rest: make the optimizer with `.recorded()`, or on Burn 0.22 step \
                 with `timeline::step`"
                    .to_owned(),
            );
        }
        if self.unknown_parameter_steps > 0 {
            warnings.push(format!(
                "{} steps were of parameters that are not of the recorded model",
                self.unknown_parameter_steps
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

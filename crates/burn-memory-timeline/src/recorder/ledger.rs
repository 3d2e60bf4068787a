//! The book that is kept while something is recorded: what lies where, since when, and for what.

use std::{collections::HashMap, time::Instant};

use crate::{
    backend::Storage,
    snapshot::{Category, Holder, Parameter, Phase, PhaseKind, Sample, Snapshot},
};

/// The operation of what was there when the recording began.
const BEFORE: &str = "before the recording";

/// The operation of what was in use then and is no tensor that was ever seen.
const BESIDE: &str = "beside the tensors, before the recording";

/// Operations whose result may be another look at their operand, by the end of their name. All
/// others compute, and where one leaves its result in the place of its operand, that is something
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

/// A piece of memory; an index into [`Ledger::blocks`].
pub(super) type BlockId = usize;

/// What an operation works on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operand {
    pub(super) block: BlockId,
    /// Whether nobody but the operation has this tensor.
    pub(super) is_consumed: bool,
}

#[derive(Debug)]
struct Block {
    storage: Storage,
    operation: usize,
    /// The parameter that was last met on the way to what lies here.
    near: Option<usize>,
    /// Whether it was made in a step of the training.
    is_of_a_step: bool,
    from: usize,
    until: Option<usize>,
    /// How many tensors lie here. Copies of a tensor count as one, views as another.
    tensors: usize,
    /// What it was found to be for, and from which tick on; the first holds from the beginning.
    purposes: Vec<(usize, Purpose)>,
}

/// What memory is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Purpose {
    category: Category,
    parameter: Option<usize>,
}

impl Block {
    fn purpose(&self) -> Option<Purpose> {
        self.purposes.last().map(|(_, purpose)| *purpose)
    }

    fn is(&self, category: Category) -> bool {
        self.purpose()
            .is_some_and(|purpose| purpose.category == category)
    }

    fn lives(&self) -> bool {
        self.until.is_none()
    }
}

/// The step of a parameter under way.
#[derive(Clone, Copy, Debug)]
struct Step {
    parameter: usize,
    old: BlockId,
    gradient: BlockId,
    /// What was there before it.
    blocks_before: usize,
    phase: usize,
}

#[derive(Debug)]
pub(super) struct Ledger {
    start: Instant,
    times: Vec<u64>,
    operations: Vec<String>,
    operation_ids: HashMap<&'static str, usize>,
    blocks: Vec<Block>,
    /// The block that lies in a storage now.
    occupied: HashMap<usize, BlockId>,
    parameters: Vec<Parameter>,
    phases: Vec<Phase>,
    /// The pass under way: an index into `phases`, and how many blocks were there before it.
    pass: Option<(usize, usize)>,
    /// The optimizer's call after the last backward pass: an index into `phases`.
    optimizer: Option<usize>,
    step: Option<Step>,
    steps_of_strangers: usize,
    iterations: usize,
    samples: Vec<Sample>,
    /// What the purposes of all blocks take on the heap.
    bytes_of_purposes: usize,
}

impl Ledger {
    pub(super) fn new() -> Self {
        let mut ledger = Self {
            start: Instant::now(),
            times: Vec::new(),
            operations: Vec::new(),
            operation_ids: HashMap::new(),
            blocks: Vec::new(),
            occupied: HashMap::new(),
            parameters: Vec::new(),
            phases: Vec::new(),
            pass: None,
            optimizer: None,
            step: None,
            steps_of_strangers: 0,
            iterations: 0,
            samples: Vec::new(),
            bytes_of_purposes: 0,
        };
        // What was there before is there from this tick on.
        ledger.tick();
        ledger
    }

    fn tick(&mut self) -> usize {
        self.times.push(self.start.elapsed().as_micros() as u64);
        self.now()
    }

    /// The last tick.
    fn now(&self) -> usize {
        self.times.len() - 1
    }

    fn operation(&mut self, name: &'static str) -> usize {
        let operations = &mut self.operations;
        *self.operation_ids.entry(name).or_insert_with(|| {
            operations.push(name.to_owned());
            operations.len() - 1
        })
    }

    pub(super) fn has_parameters(&self) -> bool {
        !self.parameters.is_empty()
    }

    /// Takes in a tensor that was there when the recording began.
    pub(super) fn adopt(&mut self, storage: Storage) -> BlockId {
        if let Some(block) = self.at(storage) {
            self.blocks[block].tensors += 1;
            return block;
        }
        let operation = self.operation(BEFORE);
        self.enter(Block {
            storage,
            operation,
            near: None,
            is_of_a_step: false,
            from: 0,
            until: None,
            tensors: 1,
            purposes: Vec::new(),
        })
    }

    /// The block that lies in `storage`, unless another has taken its place unseen.
    fn at(&self, storage: Storage) -> Option<BlockId> {
        let block = *self.occupied.get(&storage.id)?;
        (self.blocks[block].storage == storage).then_some(block)
    }

    fn enter(&mut self, block: Block) -> BlockId {
        self.occupied.insert(block.storage.id, self.blocks.len());
        self.blocks.push(block);
        self.blocks.len() - 1
    }

    /// Takes in what an operation made of `operands`.
    pub(super) fn made(
        &mut self,
        operation: &'static str,
        storage: Storage,
        operands: &[Operand],
    ) -> BlockId {
        self.take_for_state(operands);
        let shared = self.at(storage).and_then(|block| {
            let operand = operands.iter().find(|operand| operand.block == block);
            operand.copied()
        });
        if let Some(Operand { block, is_consumed }) = shared {
            let is_view = VIEWS.iter().any(|view| operation.ends_with(view));
            if is_view || !is_consumed || self.blocks[block].tensors > 1 {
                self.blocks[block].tensors += 1;
                return block;
            }
        }
        let tick = self.tick();
        if let Some(Operand { block, .. }) = shared {
            self.blocks[block].until = Some(tick);
        }
        let block = Block {
            storage,
            operation: self.operation(operation),
            near: self.near(operands),
            is_of_a_step: self.pass.is_some() || self.step.is_some(),
            from: tick,
            until: None,
            tensors: 1,
            purposes: Vec::new(),
        };
        self.enter(block)
    }

    /// What a step reads besides the parameter and its gradient, and has not made, is the
    /// optimizer's state.
    fn take_for_state(&mut self, operands: &[Operand]) {
        let Some(step) = self.step else { return };
        for &Operand { block, .. } in operands {
            if block < step.blocks_before && self.blocks[block].purpose().is_none() {
                self.assign(block, Category::OptimizerState, Some(step.parameter));
            }
        }
    }

    fn near(&self, operands: &[Operand]) -> Option<usize> {
        if let Some(step) = self.step {
            return Some(step.parameter);
        }
        let operands = || operands.iter().map(|operand| &self.blocks[operand.block]);
        let parameter = |block: &Block| {
            let purpose = block.purpose()?;
            (purpose.category == Category::Parameters).then_some(purpose.parameter?)
        };
        operands()
            .find_map(parameter)
            .or_else(|| operands().find_map(|block| block.near))
    }

    /// A tensor is gone.
    pub(super) fn let_go(&mut self, block: BlockId) {
        self.blocks[block].tensors -= 1;
        // Its place may have been given to the result of an operation before.
        if self.blocks[block].tensors > 0 || !self.blocks[block].lives() {
            return;
        }
        let tick = self.tick();
        let gone = &mut self.blocks[block];
        gone.until = Some(tick);
        if self.occupied.get(&gone.storage.id) == Some(&block) {
            self.occupied.remove(&gone.storage.id);
        }
    }

    /// Says what a block is for: from its beginning, if nobody has said so before, else from now
    /// on.
    fn assign(&mut self, block: BlockId, category: Category, parameter: Option<usize>) {
        let now = self.now();
        let purpose = Purpose {
            category,
            parameter,
        };
        let block = &mut self.blocks[block];
        let capacity = block.purposes.capacity();
        match block.purposes.last_mut() {
            None => block.purposes.push((block.from, purpose)),
            // The same, known better.
            Some((_, last)) if last.category == category => {
                last.parameter = parameter.or(last.parameter);
            }
            Some(_) => block.purposes.push((now, purpose)),
        }
        self.bytes_of_purposes +=
            (block.purposes.capacity() - capacity) * size_of::<(usize, Purpose)>();
    }

    /// A parameter of the model.
    pub(super) fn parameter(&mut self, parameter: Parameter, block: BlockId) {
        self.parameters.push(parameter);
        let index = self.parameters.len() - 1;
        // Several parameters can lie in one block; it is counted once.
        if !self.blocks[block].is(Category::Parameters) {
            self.assign(block, Category::Parameters, Some(index));
        }
    }

    pub(super) fn begin_pass(&mut self, kind: PhaseKind) {
        if kind == PhaseKind::Forward {
            self.iterations += 1;
        }
        self.optimizer = None;
        let tick = self.tick();
        let phase = self.enter_phase(kind, tick);
        self.pass = Some((phase, self.blocks.len()));
    }

    /// What outlives the forward pass is kept for the backward pass, and what outlives that is the
    /// gradients.
    pub(super) fn end_pass(&mut self) {
        let Some((phase, blocks_before)) = self.pass.take() else {
            return;
        };
        let kept_as = match self.phases[phase].kind {
            PhaseKind::Forward => Category::Activations,
            _ => Category::Gradients,
        };
        for block in blocks_before..self.blocks.len() {
            if self.blocks[block].lives() && self.blocks[block].purpose().is_none() {
                self.assign(block, kept_as, None);
            }
        }
        self.phases[phase].until = self.tick() + 1;
    }

    fn enter_phase(&mut self, kind: PhaseKind, from: usize) -> usize {
        self.phases.push(Phase {
            kind,
            iteration: self.iterations.saturating_sub(1),
            from,
            until: from + 1,
        });
        self.phases.len() - 1
    }

    /// The optimizer begins with a parameter.
    pub(super) fn begin_step(&mut self, parameter: BlockId, gradient: BlockId) {
        let index = match self.blocks[parameter].purpose() {
            Some(Purpose {
                category: Category::Parameters,
                parameter: Some(index),
            }) => index,
            _ => {
                self.steps_of_strangers += 1;
                return;
            }
        };
        let tick = self.tick();
        if self.pass.is_none() && self.optimizer.is_none() {
            self.optimizer = Some(self.enter_phase(PhaseKind::Optimizer, tick));
        }
        self.assign(gradient, Category::Gradients, Some(index));
        self.step = Some(Step {
            parameter: index,
            old: parameter,
            gradient,
            blocks_before: self.blocks.len(),
            phase: self.enter_phase(PhaseKind::Step(index), tick),
        });
    }

    /// The optimizer is done with it: what it leaves besides the parameter is its state.
    pub(super) fn end_step(&mut self, parameter: BlockId) {
        let Some(step) = self.step.take() else { return };
        self.assign(parameter, Category::Parameters, Some(step.parameter));
        let left = (step.blocks_before..self.blocks.len()).chain([step.gradient]);
        for block in left {
            let it = &self.blocks[block];
            if block != parameter && block != step.old && it.lives() {
                self.assign(block, Category::OptimizerState, Some(step.parameter));
            }
        }
        let until = self.tick() + 1;
        self.phases[step.phase].until = until;
        if let Some(optimizer) = self.optimizer {
            self.phases[optimizer].until = until;
        }
    }

    /// What the allocator or the device says now.
    pub(super) fn sample(&mut self, in_use: u64, peak: u64, operation: Option<&'static str>) {
        let sample = Sample {
            tick: self.now(),
            in_use,
            peak,
            operation: operation.map(|name| self.operation(name)),
        };
        match self.samples.last_mut() {
            // Of an operation that made nothing new.
            Some(last) if last.tick == sample.tick => {
                if sample.peak > last.peak {
                    last.operation = sample.operation;
                }
                last.peak = last.peak.max(sample.peak);
                last.in_use = sample.in_use;
            }
            _ => self.samples.push(sample),
        }
    }

    /// What the book itself takes on the heap, but for its few names.
    pub(super) fn own_bytes(&self) -> u64 {
        // A hash table of the standard library has a byte of its own for each place, and is filled
        // to seven eighths.
        let places = self.occupied.capacity() * 8 / 7;
        let bytes = self.times.capacity() * size_of::<u64>()
            + self.blocks.capacity() * size_of::<Block>()
            + self.samples.capacity() * size_of::<Sample>()
            + self.phases.capacity() * size_of::<Phase>()
            + places * (size_of::<(usize, BlockId)>() + 1)
            + self.bytes_of_purposes;
        bytes as u64
    }

    /// What was in use when the recording began, and no tensor seen since then had.
    fn beside_the_tensors(&self) -> u64 {
        let Some(first) = self.samples.first() else {
            return 0;
        };
        let lives = |block: &&Block| {
            block.from <= first.tick && block.until.is_none_or(|until| first.tick < until)
        };
        let tensors = self.blocks.iter().filter(lives);
        let tensors: u64 = tensors.map(|block| block.storage.bytes).sum();
        first.in_use.saturating_sub(tensors)
    }

    /// Closes the book.
    pub(super) fn into_snapshot(mut self, title: String, backend: String) -> Snapshot {
        self.end_pass();
        let end = self.times.len();
        let mut holders: Vec<Holder> = Vec::with_capacity(self.blocks.len() + 1);
        let beside = self.beside_the_tensors();
        if beside > 0 {
            holders.push(Holder {
                bytes: beside,
                category: Category::Other,
                parameter: None,
                operation: self.operation(BESIDE),
                from: 0,
                until: end,
            });
        }
        for block in &self.blocks {
            let until = block.until.unwrap_or(end);
            let unsaid = [(
                block.from,
                Purpose {
                    category: match block.is_of_a_step {
                        true => Category::Temporaries,
                        false => Category::Other,
                    },
                    parameter: None,
                },
            )];
            let purposes = match block.purposes.as_slice() {
                [] => &unsaid,
                purposes => purposes,
            };
            for (index, (from, purpose)) in purposes.iter().enumerate() {
                let until = match purposes.get(index + 1) {
                    Some((next, _)) => *next,
                    None => until,
                };
                if *from < until {
                    holders.push(Holder {
                        bytes: block.storage.bytes,
                        category: purpose.category,
                        parameter: purpose.parameter.or(block.near),
                        operation: block.operation,
                        from: *from,
                        until,
                    });
                }
            }
        }
        holders.sort_by_key(|holder| holder.from);
        Snapshot {
            title,
            backend,
            warnings: self.warnings(),
            parameters: self.parameters,
            operations: self.operations,
            times: self.times,
            holders,
            phases: self.phases,
            samples: self.samples,
        }
    }

    fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        let is_step = |phase: &Phase| matches!(phase.kind, PhaseKind::Step(_));
        if !self.phases.iter().any(is_step) {
            warnings.push(
                "no optimizer step was seen, so that gradients and the optimizer's state are not \
                 told from the rest: make the optimizer with `.recorded()`"
                    .to_owned(),
            );
        }
        if self.steps_of_strangers > 0 {
            warnings.push(format!(
                "{} steps were of parameters that are not of the recorded model",
                self.steps_of_strangers
            ));
        }
        warnings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(id: usize, bytes: u64) -> Storage {
        Storage { id, bytes }
    }

    fn closed(ledger: Ledger) -> Snapshot {
        let snapshot = ledger.into_snapshot("a test".into(), "none".into());
        let mut file = Vec::new();
        snapshot.write(&mut file).expect("a sound snapshot");
        snapshot
    }

    fn categories(snapshot: &Snapshot) -> Vec<(u64, Category)> {
        let holders = snapshot.holders.iter();
        holders.map(|it| (it.bytes, it.category)).collect()
    }

    /// A ledger with one parameter.
    fn with_parameter() -> (Ledger, BlockId) {
        let mut ledger = Ledger::new();
        let block = ledger.adopt(at(1, 100));
        let parameter = Parameter {
            path: "weight".into(),
            shape: vec![25],
            bytes: 100,
        };
        ledger.parameter(parameter, block);
        (ledger, block)
    }

    fn kept(block: BlockId) -> Operand {
        Operand {
            block,
            is_consumed: false,
        }
    }

    fn consumed(block: BlockId) -> Operand {
        Operand {
            block,
            is_consumed: true,
        }
    }

    #[test]
    fn a_view_is_no_new_memory() {
        let mut ledger = Ledger::new();
        let tensor = ledger.made("float_ones", at(1, 10), &[]);
        let view = ledger.made("float_transpose", at(1, 10), &[consumed(tensor)]);
        assert_eq!(view, tensor);
        // Whatever it is, it cannot have changed what somebody else has.
        assert_eq!(ledger.made("other", at(1, 10), &[kept(tensor)]), tensor);
        ledger.let_go(tensor);
        ledger.let_go(tensor);
        assert!(ledger.blocks[tensor].lives(), "one of three still shows it");
        ledger.let_go(tensor);
        assert!(!ledger.blocks[tensor].lives());
    }

    /// As the gradient of a weight that is computed into the activation that it was computed from.
    #[test]
    fn a_result_in_the_place_of_its_operand_is_something_new() {
        let mut ledger = Ledger::new();
        ledger.begin_pass(PhaseKind::Forward);
        let activation = ledger.made("float_exp", at(1, 10), &[]);
        ledger.end_pass();
        ledger.begin_pass(PhaseKind::Backward);
        let gradient = ledger.made("linear_weight_backward", at(1, 10), &[consumed(activation)]);
        ledger.let_go(activation);
        ledger.end_pass();
        let snapshot = closed(ledger);
        assert_eq!(
            categories(&snapshot),
            [(10, Category::Activations), (10, Category::Gradients)]
        );
        let [before, after] = snapshot.holders.as_slice() else {
            unreachable!("as asserted");
        };
        assert_eq!(before.until, after.from);
        assert_eq!(
            snapshot.operations[after.operation],
            "linear_weight_backward"
        );
        assert_ne!(activation, gradient);
    }

    #[test]
    fn a_place_can_be_taken_by_another() {
        let mut ledger = Ledger::new();
        let first = ledger.made("float_ones", at(1, 10), &[]);
        // Freed within an operation, and its place given to something larger.
        let larger = ledger.made("float_cat", at(1, 20), &[consumed(first)]);
        assert_ne!(first, larger);
        // Freed unseen: no operand, so that it cannot be the same.
        let other = ledger.made("float_zeros", at(1, 20), &[]);
        assert_ne!(larger, other);
        ledger.let_go(larger);
        let view = ledger.made("float_transpose", at(1, 20), &[consumed(other)]);
        assert_eq!(view, other);
        assert_ne!(
            ledger.adopt(at(1, 30)),
            other,
            "freed unseen, and found anew"
        );
    }

    #[test]
    fn what_a_pass_leaves_says_what_it_was_for() {
        let (mut ledger, weight) = with_parameter();
        ledger.begin_pass(PhaseKind::Forward);
        let left = ledger.made("linear", at(2, 7), &[kept(weight)]);
        let passing = ledger.made("float_exp", at(3, 8), &[kept(left)]);
        ledger.let_go(passing);
        ledger.end_pass();
        ledger.begin_pass(PhaseKind::Backward);
        ledger.made("float_matmul", at(4, 100), &[kept(left)]);
        ledger.let_go(left);
        ledger.end_pass();
        ledger.made("float_sum", at(5, 1), &[]);
        let snapshot = closed(ledger);
        assert_eq!(
            categories(&snapshot),
            [
                (100, Category::Parameters),
                (7, Category::Activations),
                (8, Category::Temporaries),
                (100, Category::Gradients),
                (1, Category::Other),
            ]
        );
        // What comes after the parameter, until the next one.
        assert_eq!(snapshot.holders[2].parameter, Some(0));
    }

    #[test]
    fn a_step_in_place_moves_memory_from_one_purpose_to_the_next() {
        let (mut ledger, weight) = with_parameter();
        let moment = ledger.adopt(at(2, 100));
        ledger.begin_pass(PhaseKind::Backward);
        let gradient = ledger.made("float_matmul", at(3, 100), &[kept(weight)]);
        ledger.begin_step(weight, gradient);
        // A new moment in the place of the old one, a new weight in that of the gradient.
        ledger.made("float_mul", at(2, 100), &[consumed(moment), kept(gradient)]);
        ledger.let_go(moment);
        let new = ledger.made("float_sub", at(3, 100), &[consumed(gradient), kept(weight)]);
        ledger.let_go(gradient);
        ledger.let_go(weight);
        ledger.end_step(new);
        ledger.end_pass();
        let snapshot = closed(ledger);
        assert_eq!(
            categories(&snapshot),
            [
                (100, Category::Parameters),
                (100, Category::OptimizerState),
                (100, Category::Gradients),
                (100, Category::OptimizerState),
                (100, Category::Parameters),
            ]
        );
        let [weight, moment, gradient, new_moment, new_weight] = snapshot.holders[..] else {
            unreachable!("as asserted");
        };
        assert_eq!(moment.until, new_moment.from);
        assert_eq!(gradient.until, new_weight.from);
        assert_eq!(new_weight.until, snapshot.times.len());
        assert!(
            weight.until > new_weight.from,
            "the old one is let go of after"
        );
        assert!(snapshot.holders.iter().all(|it| it.parameter == Some(0)));
    }

    #[test]
    fn what_is_no_tensor_is_there_from_the_beginning() {
        let (mut ledger, _) = with_parameter();
        ledger.begin_pass(PhaseKind::Forward);
        ledger.sample(150, 150, None);
        // Known since it was read, and there all the time.
        ledger.adopt(at(2, 20));
        let snapshot = closed(ledger);
        let beside = snapshot.holders.iter().find(|it| it.bytes == 30).unwrap();
        assert_eq!((beside.category, beside.from), (Category::Other, 0));
    }

    #[test]
    fn a_gradient_that_lives_on_is_state() {
        let (mut ledger, weight) = with_parameter();
        ledger.begin_pass(PhaseKind::Backward);
        let gradient = ledger.made("float_matmul", at(2, 100), &[]);
        ledger.begin_step(weight, gradient);
        let new = ledger.made("float_sub", at(3, 100), &[kept(weight), kept(gradient)]);
        ledger.let_go(weight);
        ledger.end_step(new);
        let snapshot = closed(ledger);
        let last = snapshot.holders.last().unwrap();
        assert_eq!(last.category, Category::OptimizerState);
    }
}

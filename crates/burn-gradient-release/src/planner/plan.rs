//! Where to cut a forward pass into segments.
//!
//! Two things are in memory when backward runs a segment: what crosses the cuts up to its
//! beginning, and what the tape saves of its own operations. More cuts make the second smaller and
//! the first larger. Of all sets of cuts, [`plan`] looks for one whose highest sum is lowest.
//!
//! Several tensors may cross a cut, as the skip connections of a U-Net do. A tensor is held once,
//! however many cuts it crosses, and is counted at the first. It stays counted for the rest of the
//! pass: where backward has come to its last use, the tensor is freed, but its gradient is there
//! and waits for the operation that made it, and that is as large.

use crate::planner::{blocks::Blocks, saves::Saves};

/// A forward pass, operation by operation.
#[derive(Debug, Default)]
pub(super) struct Trace {
    operations: Vec<Operation>,
    buffers: Vec<Buffer>,
}

#[derive(Debug)]
struct Operation {
    name: &'static str,
    saves: Saves,
    /// The buffers of its operands.
    operands: Vec<usize>,
    /// The bytes of its operands beside parameters, if it has a parameter.
    parameter: Option<u64>,
}

/// The memory of a result, shared by its views.
#[derive(Debug)]
pub(super) struct Buffer {
    pub(super) bytes: u64,
    /// Index of the operation whose result it is.
    pub(super) made_by: usize,
    /// Index of the last operation that reads it.
    pub(super) last_use: usize,
    /// By which operation the tape has to save it first.
    pub(super) saved_by: Option<usize>,
}

impl Trace {
    pub(super) fn len(&self) -> usize {
        self.operations.len()
    }

    pub(super) fn buffers(&self) -> &[Buffer] {
        &self.buffers
    }

    pub(super) fn names(&self) -> Vec<&'static str> {
        self.operations.iter().map(|of| of.name).collect()
    }

    /// Notes an operation on results of earlier ones.
    pub(super) fn operation(
        &mut self,
        name: &'static str,
        operands: Vec<usize>,
        parameter: Option<u64>,
    ) {
        let index = self.operations.len();
        let saves = Saves::of(name);
        for operand in &operands {
            let buffer = &mut self.buffers[*operand];
            buffer.last_use = index;
            if saves.saves_operands() && buffer.saved_by.is_none() {
                buffer.saved_by = Some(index);
            }
        }
        self.operations.push(Operation {
            name,
            saves,
            operands,
            parameter,
        });
    }

    /// The operations with parameters from this one on, and the bytes of their other operands.
    pub(super) fn with_parameters(&self, from: usize) -> Vec<(&'static str, u64)> {
        let operations = self.operations.iter().skip(from.min(self.len()));
        operations
            .filter_map(|of| Some((of.name, of.parameter?)))
            .collect()
    }

    /// Notes a result of the last operation. Returns its buffer.
    pub(super) fn result(&mut self, bytes: u64) -> usize {
        let made_by = self.operations.len() - 1;
        let operation = &self.operations[made_by];
        if operation.saves == Saves::View
            && let Some(buffer) = operation.operands.first()
        {
            return *buffer;
        }
        let indices = operation.saves.indices(bytes);
        if indices > 0 {
            self.buffers.push(Buffer {
                bytes: indices,
                made_by,
                last_use: made_by,
                saved_by: Some(made_by),
            });
        }
        self.buffers.push(Buffer {
            bytes,
            made_by,
            last_use: made_by,
            saved_by: None,
        });
        self.buffers.len() - 1
    }

    /// The bytes of all results of the first operations.
    pub(super) fn bytes(&self, operations: usize) -> u64 {
        let buffers = self.buffers.iter();
        let buffers = buffers.take_while(|buffer| buffer.made_by < operations);
        buffers.map(|buffer| buffer.bytes).sum()
    }
}

/// How to run a forward pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    /// The operations that segments begin with; the first begins at 0.
    pub(super) cuts: Vec<usize>,
    /// From this operation on, activations are kept.
    pub(super) kept_from: usize,
    /// The bytes of activations at the worst moment of the backward pass, as estimated.
    pub(super) bytes: u64,
}

/// Plans a forward pass like this one: with the lowest peak; or, within `budget` bytes, with as few
/// operations recomputed as the rule allows that those after some cut are kept.
///
/// The operations after the last cut are kept where they run backward first, if `is_last`.
/// Otherwise the backward pass would hold them while it runs what comes after.
pub(super) fn plan(trace: &Trace, budget: Option<u64>, is_last: bool) -> Plan {
    /// So many blocks are quick, whatever the plan is.
    const FEWEST: usize = 1024;
    /// A segment ends up to a block before the best place for it.
    const BLOCKS_OF_A_SEGMENT: usize = 16;

    let wanted = |plan: &Plan| (plan.cuts.len() + 1) * BLOCKS_OF_A_SEGMENT;
    let mut most = FEWEST;
    let (blocks, lowest) = loop {
        let blocks = Blocks::new(trace, most);
        let is_fine = |plan: &Plan| wanted(plan) <= most || blocks.len() == trace.len();
        // An ample budget has long segments: few blocks will do.
        if let Some(plan) = budget.and_then(|budget| blocks.keep_most(budget))
            && is_fine(&plan)
        {
            return plan;
        }
        let lowest = blocks.lowest();
        if is_fine(&lowest) {
            break (blocks, lowest);
        }
        most = wanted(&lowest).max(2 * most);
    };
    // The blocks are not fine enough for all that fits into the budget, or nothing does.
    if let Some(plan) = budget.and_then(|budget| blocks.keep_most(budget)) {
        return plan;
    }
    Plan {
        kept_from: match is_last {
            true => lowest.kept_from,
            false => trace.len(),
        },
        ..lowest
    }
}

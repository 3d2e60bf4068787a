//! The operations of a forward pass, as the planner sees them.

use crate::planner::saves::Saves;

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
    /// Index of the operation that made it.
    pub(super) made_by: usize,
    /// Index of the last operation that reads it.
    pub(super) last_use: usize,
    /// Index of the first operation for which the tape saves it.
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

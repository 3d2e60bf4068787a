//! Random programs: forward passes, steps, and what happens between two steps.

use std::sync::Arc;

use super::model::{Graph, Op, Part};
use crate::harness::prelude::*;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Way {
    /// `backward`, after `measure` where the norm is needed.
    Released,
    TwoPasses,
    /// `step` with gradients of plain Burn.
    Ordinary,
    /// `step` with the sums of all micro-batches.
    SumsAlone,
    /// Burn's own optimizer, which is taken out and comes back.
    Burns,
}

/// What a program does to model, optimizer and copies between two steps.
#[derive(Clone, Copy, Debug)]
pub(super) enum Change {
    Clone,
    DropClone,
    SaveAndLoad,
    Freeze(usize),
    ThawAll,
    AverageWithClone,
    Move,
}

#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) changes: Vec<Change>,
    pub(super) graph: usize,
    pub(super) way: Way,
    /// Run the forward pass once more before, and drop it.
    pub(super) discards: bool,
    /// Of which all but the last are accumulated.
    pub(super) micro_batches: usize,
    /// Save the sums of the window, and go on with what was saved.
    pub(super) saves_sums: bool,
}

/// What is done to gradients.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Setting {
    None,
    GlobalNorm,
    LossScaler,
}

#[derive(Clone, Debug)]
pub(super) struct Program {
    pub(super) matrices: usize,
    pub(super) graphs: Vec<Graph>,
    pub(super) steps: Vec<Step>,
    pub(super) dtype: DType,
    pub(super) optimizer: usize,
    pub(super) setting: Setting,
    /// Whether the model has [`EarlyGradients`](burn_lean::EarlyGradients).
    pub(super) is_early: bool,
}

/// SplitMix64 (Steele, Lea and Flood, 2014): the same programs in every run.
pub(crate) struct Source(pub(crate) u64);

impl Source {
    /// Below `bound`.
    pub(crate) fn next(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) % bound as u64) as usize
    }

    /// In one of so many cases.
    fn one_in(&mut self, cases: usize) -> bool {
        self.next(cases) == 0
    }

    /// A matrix of the model, one of the newest values, or any.
    fn operand(&mut self, matrices: usize, values: usize) -> usize {
        match self.next(9) {
            0..3 => self.next(matrices),
            3..7 => values - 1 - self.next(4).min(values - 1),
            _ => self.next(values),
        }
    }

    fn op(&mut self, matrices: usize, values: usize) -> Op {
        let a = self.operand(matrices, values);
        let b = self.operand(matrices, values);
        match self.next(26) {
            0..4 => Op::Matmul(a, b),
            4..7 => Op::Add(a, b),
            7..10 => Op::Multiply(a, b),
            10..12 => Op::Tanh(a),
            12 => Op::Transpose(a),
            13 => Op::Reshape(a),
            14 => Op::SliceAndRepeat(a),
            15 => Op::Detach(a),
            16 => Op::Frozen(a),
            17 => Op::Linear(a),
            18 => Op::Lora(a),
            19 => Op::Conv(a),
            20 => Op::Norm(a),
            21 => Op::Embed(a),
            22 => Op::Tied(a),
            23 => Op::Recurrent(a),
            24 => Op::View(a),
            _ => Op::Product(a),
        }
    }

    fn graph(&mut self, matrices: usize) -> Graph {
        let ops = 5 + self.next(40);
        let with_scopes = self.next(3) > 0;
        let (mut parts, mut values) = (Vec::new(), matrices);
        while values < matrices + ops {
            let length = 1 + self.next((matrices + ops - values).min(12));
            let mut stretch = Vec::new();
            for values in values..values + length {
                stretch.push(Part::Op(self.op(matrices, values)));
            }
            values += length;
            if with_scopes && self.one_in(3) {
                let inner = stretch.split_off(self.next(length));
                stretch.push(Part::Scope(Arc::new(inner)));
            }
            match with_scopes && self.one_in(2) {
                true => parts.push(Part::Scope(Arc::new(stretch))),
                false => parts.extend(stretch),
            }
        }
        let mut outputs: Vec<usize> = (0..self.next(3)).map(|_| self.next(values)).collect();
        outputs.push(values - 1);
        Graph { parts, outputs }
    }

    fn change(&mut self, matrices: usize) -> Change {
        match self.next(7) {
            0 => Change::Clone,
            1 => Change::DropClone,
            2 => Change::SaveAndLoad,
            3 => Change::Freeze(self.next(matrices)),
            4 => Change::ThawAll,
            5 => Change::AverageWithClone,
            _ => Change::Move,
        }
    }

    pub(super) fn program(&mut self) -> Program {
        let matrices = 2 + self.next(4);
        let graphs: Vec<Graph> = (0..1 + self.next(3))
            .map(|_| self.graph(matrices))
            .collect();
        let setting = match self.next(5) {
            0 => Setting::GlobalNorm,
            1 => Setting::LossScaler,
            _ => Setting::None,
        };
        let dtype = [DType::F32, DType::F32, DType::BF16, DType::F16][self.next(4)];
        let dtype = match (setting, dtype) {
            // Refused: small numbers would vanish when the scale is taken off.
            (Setting::LossScaler, DType::F16) => DType::F32,
            (_, dtype) => dtype,
        };
        let accumulates = self.one_in(3);
        let steps = (0..3 + self.next(4)).map(|_| Step {
            changes: (0..self.next(4).saturating_sub(1))
                .map(|_| self.change(matrices))
                .collect(),
            graph: self.next(graphs.len()),
            way: match self.next(10) {
                0 => Way::TwoPasses,
                1 => Way::Ordinary,
                2 => Way::SumsAlone,
                3 if setting == Setting::None => Way::Burns,
                _ => Way::Released,
            },
            discards: self.one_in(4),
            micro_batches: 1 + if accumulates { self.next(3) } else { 0 },
            saves_sums: self.one_in(4),
        });
        Program {
            matrices,
            steps: steps.collect(),
            graphs,
            dtype,
            optimizer: self.next(5),
            setting,
            is_early: self.one_in(2),
        }
    }
}

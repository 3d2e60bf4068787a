//! Models whose weights are used again at every time step.

use burn::nn::{Lstm, LstmConfig};
use burn::tensor::activation::sigmoid;

use super::device;
use crate::harness::prelude::*;
use crate::harness::scopes::block;

/// Burn's own.
#[derive(Module, Debug)]
pub(crate) struct RecurrentModel<B: Backend> {
    lstm: Lstm<B>,
    head: Linear<B>,
}

impl<B: Backend> RecurrentModel<B> {
    /// The loss of a batch of sequences of this length.
    pub(crate) fn loss(&self, [batch, length]: [usize; 2], step: u64) -> Tensor<B, 1> {
        let x = noise::<B, 3>(step, [batch, length, 4], &device::<B>());
        let (sequence, _) = block(|| self.lstm.forward(x, None));
        let target = noise::<B, 3>(step + 1000, [batch, length, 3], &device::<B>());
        (self.head.forward(sequence) - target).square().mean()
    }
}

pub(crate) struct Recurrent;

impl Scenario for Recurrent {
    type Model<B: AutodiffBackend> = RecurrentModel<B>;

    fn init<B: AutodiffBackend>(size: Size, device: &B::Device) -> RecurrentModel<B> {
        let width = size.pick(6, 256);
        RecurrentModel {
            lstm: LstmConfig::new(4, width, true).init(device),
            head: LinearConfig::new(width, 3).init(device),
        }
    }

    fn loss<B: AutodiffBackend>(model: &RecurrentModel<B>, _: Size, step: u64) -> Tensor<B, 1> {
        model.loss([3, 5], step)
    }
}

/// Two recurrent layers, with a layer norm at every time step of each: its vectors are reached
/// through views only, as often as there are steps.
#[derive(Module, Debug)]
pub(crate) struct NormalisedRecurrentModel<B: Backend> {
    cells: Vec<Cell<B>>,
    head: Linear<B>,
}

/// A recurrent cell with a gate.
#[derive(Module, Debug)]
struct Cell<B: Backend> {
    input: Linear<B>,
    hidden: Linear<B>,
    gate: Linear<B>,
    norm: LayerNorm<B>,
}

impl<B: Backend> Cell<B> {
    fn new(inputs: usize, width: usize, device: &B::Device) -> Self {
        Self {
            input: LinearConfig::new(inputs, width).init(device),
            hidden: LinearConfig::new(width, width).init(device),
            gate: LinearConfig::new(width, width).init(device),
            norm: LayerNormConfig::new(width).init(device),
        }
    }

    fn step(&self, x: Tensor<B, 2>, hidden: Tensor<B, 2>) -> Tensor<B, 2> {
        let new = self.input.forward(x) + self.hidden.forward(hidden.clone());
        let new = self.norm.forward(new).tanh();
        let gate = sigmoid(self.gate.forward(hidden.clone()));
        gate.clone() * new + (gate.neg() + 1.0) * hidden
    }
}

pub(crate) struct NormalisedRecurrent;

const STEPS: usize = 6;

impl Scenario for NormalisedRecurrent {
    type Model<B: AutodiffBackend> = NormalisedRecurrentModel<B>;

    fn init<B: AutodiffBackend>(size: Size, device: &B::Device) -> NormalisedRecurrentModel<B> {
        let width = size.pick(6, 128);
        NormalisedRecurrentModel {
            cells: vec![Cell::new(4, width, device), Cell::new(width, width, device)],
            head: LinearConfig::new(width, 3).init(device),
        }
    }

    fn loss<B: AutodiffBackend>(
        model: &NormalisedRecurrentModel<B>,
        size: Size,
        step: u64,
    ) -> Tensor<B, 1> {
        let device = device::<B>();
        let input = noise::<B, 3>(step, [3, STEPS, 4], &device);
        let width = size.pick(6, 128);
        let mut states = vec![Tensor::zeros([3, width], &device); model.cells.len()];
        let mut outputs = Vec::new();
        for time in 0..STEPS {
            let mut x: Tensor<B, 2> = input.clone().narrow(1, time, 1).squeeze_dim(1);
            for (cell, state) in model.cells.iter().zip(&mut states) {
                *state = block(|| cell.step(x, state.clone()));
                x = state.clone();
            }
            outputs.push(model.head.forward(x));
        }
        let target = noise::<B, 2>(step + 1000, [3 * STEPS, 3], &device);
        (Tensor::cat(outputs, 0) - target).square().mean()
    }
}

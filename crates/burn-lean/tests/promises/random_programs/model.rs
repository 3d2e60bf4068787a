//! Forward passes of a model with parameters and modules of many kinds.

use std::collections::HashMap;
use std::sync::Arc;

use burn::module::Lora;
use burn::nn::PaddingConfig1d;
use burn::nn::conv::{Conv1d, Conv1dConfig};
use burn_lean::EarlyGradients;

use crate::harness::prelude::*;

/// All matrices are square, so that any operation fits any operand.
const WIDTH: usize = 4;

#[derive(Module, Debug)]
pub(super) struct Model {
    /// Each loss depends on it, also where all else is frozen.
    anchor: Param<Tensor<1>>,
    pub(super) matrices: Vec<Param<Tensor<2>>>,
    frozen: Param<Tensor<2>>,
    /// Used as functions of parameters alone.
    views: [Param<Tensor<2>>; 3],
    linear: Linear,
    lora: Linear,
    conv: Conv1d,
    norm: LayerNorm,
    /// Tied: before and after.
    table: Embedding,
    recurrent: Linear,
}

impl Model {
    pub(super) fn new(matrices: usize, dtype: DType, is_early: bool, device: &Device) -> Self {
        let matrix = |_| Param::from_tensor(Tensor::zeros([WIDTH, WIDTH], device));
        let linear = || -> Linear { LinearConfig::new(WIDTH, WIDTH).init(device) };
        let conv = Conv1dConfig::new(WIDTH, WIDTH, 3).with_padding(PaddingConfig1d::Same);
        let model = numbered(Self {
            anchor: Param::from_tensor(Tensor::zeros([1], device)),
            matrices: (0..matrices).map(matrix).collect(),
            frozen: matrix(0).no_grad(),
            views: [0; 3].map(matrix),
            linear: linear(),
            lora: linear().apply_lora(Lora::new(2, 1.0)),
            conv: conv.init(device),
            norm: LayerNormConfig::new(WIDTH).init(device),
            table: EmbeddingConfig::new(WIDTH, WIDTH).init(device),
            recurrent: linear(),
        });
        let mut zeros = Vec::new();
        model.visit(&mut Values(&mut zeros));
        let zeros = zeros.into_iter().map(|value| value.zeros_like()).collect();
        let model = average(model, zeros, 1.0, dtype);
        match is_early {
            true => model.apply_reparameterization(EarlyGradients),
            false => model,
        }
    }
}

/// The values of all parameters, in the order of the model.
pub(super) fn values(model: &Model) -> Vec<Tensor<1>> {
    let mut values = Vec::new();
    model.visit(&mut Values(&mut values));
    values
}

struct Values<'a>(&'a mut Vec<Tensor<1>>);

impl ModuleVisitor for Values<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.0.push(param.val().inner().reshape([-1]));
    }
}

/// `share` of the model, and the rest of these values.
pub(super) fn average(model: Model, others: Vec<Tensor<1>>, share: f64, dtype: DType) -> Model {
    struct Average(std::vec::IntoIter<Tensor<1>>, f64, DType);
    impl ModuleMapper for Average {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let other = self.0.next().expect("as many as were visited");
            let requires_grad = param.is_require_grad();
            param.map(|value| {
                let other = other.reshape(value.dims());
                let mean = value.inner() * self.1 + other * (1.0 - self.1);
                let mean = mean.cast(self.2).autodiff();
                mean.set_require_grad(requires_grad)
            })
        }
    }
    model.map(&mut Average(others.into_iter(), share, dtype))
}

/// An operation on square matrices; an operand is the index of a value. The matrices come first.
#[derive(Clone, Copy, Debug)]
pub(super) enum Op {
    Matmul(usize, usize),
    Add(usize, usize),
    Multiply(usize, usize),
    Tanh(usize),
    Transpose(usize),
    Reshape(usize),
    SliceAndRepeat(usize),
    Detach(usize),
    Frozen(usize),
    Linear(usize),
    Lora(usize),
    Conv(usize),
    Norm(usize),
    Embed(usize),
    Tied(usize),
    Recurrent(usize),
    View(usize),
    Product(usize),
}

impl Op {
    fn operands(self) -> Vec<usize> {
        match self {
            Self::Matmul(a, b) | Self::Add(a, b) | Self::Multiply(a, b) => vec![a, b],
            Self::Tanh(a)
            | Self::Transpose(a)
            | Self::Reshape(a)
            | Self::SliceAndRepeat(a)
            | Self::Detach(a)
            | Self::Frozen(a)
            | Self::Linear(a)
            | Self::Lora(a)
            | Self::Conv(a)
            | Self::Norm(a)
            | Self::Embed(a)
            | Self::Tied(a)
            | Self::Recurrent(a)
            | Self::View(a)
            | Self::Product(a) => vec![a],
        }
    }

    fn apply(self, model: &Model, value: impl Fn(usize) -> Tensor<2>) -> Tensor<2> {
        let shape = [WIDTH; 2];
        match self {
            Self::Matmul(a, b) => value(a).matmul(value(b)).tanh(),
            Self::Add(a, b) => value(a) + value(b),
            Self::Multiply(a, b) => (value(a) * value(b)).tanh(),
            Self::Tanh(a) => value(a).tanh(),
            Self::Transpose(a) => value(a).transpose(),
            Self::Reshape(a) => value(a).reshape([WIDTH / 2, 2 * WIDTH]).reshape(shape),
            Self::SliceAndRepeat(a) => value(a).slice([1..3, 0..WIDTH]).repeat_dim(0, 2),
            Self::Detach(a) => value(a).detach() * 0.5,
            Self::Frozen(a) => value(a).matmul(model.frozen.val()),
            Self::Linear(a) => model.linear.forward(value(a)).tanh(),
            Self::Lora(a) => model.lora.forward(value(a)).tanh(),
            Self::Conv(a) => {
                let out = model.conv.forward(value(a).unsqueeze::<3>());
                out.reshape(shape).tanh()
            }
            Self::Norm(a) => model.norm.forward(value(a)),
            Self::Embed(a) => {
                let ids = ids([1, WIDTH], a, WIDTH, &model.anchor.device());
                value(a) + model.table.forward(ids).reshape(shape)
            }
            Self::Tied(a) => value(a).matmul(model.table.weight.val().transpose()).tanh(),
            Self::Recurrent(a) => {
                let x = value(a);
                let step = |state: Tensor<2>, _| model.recurrent.forward(state + x.clone()).tanh();
                (0..3).fold(x.clone(), step)
            }
            Self::View(a) => {
                let weight = model.views[0].val().transpose();
                value(a).matmul(weight).tanh()
            }
            Self::Product(a) => {
                let product = model.views[1].val().matmul(model.views[2].val());
                value(a).matmul(product).tanh()
            }
        }
    }
}

/// A piece of a forward pass. Each operation adds a value.
#[derive(Clone, Debug)]
pub(super) enum Part {
    Op(Op),
    Scope(Arc<Vec<Part>>),
}

/// A forward pass: the outputs make the loss. What is not among their ancestors is a use that leads to
/// no loss.
#[derive(Clone, Debug)]
pub(super) struct Graph {
    pub(super) parts: Vec<Part>,
    pub(super) outputs: Vec<usize>,
}

impl Graph {
    pub(super) fn loss(&self, model: &Model, step: usize, with_scopes: bool) -> Tensor<1> {
        let (device, dtype) = (model.anchor.device(), model.anchor.val().dtype());
        let mut known = Known {
            values: HashMap::new(),
            next: model.matrices.len(),
        };
        known.run(&self.parts, model, with_scopes);
        let x: Tensor<2> = numbers([WIDTH, WIDTH], step, &device).cast(dtype);
        let outputs = self.outputs.iter().map(|output| {
            let output = known.value(model, *output);
            output.matmul(x.clone()).square().mean()
        });
        outputs.fold(model.anchor.val() * 0.5, |sum, output| sum + output)
    }
}

/// What a forward pass has computed, by index.
struct Known {
    values: HashMap<usize, Tensor<2>>,
    next: usize,
}

impl Known {
    fn value(&self, model: &Model, at: usize) -> Tensor<2> {
        match model.matrices.get(at) {
            Some(matrix) => matrix.val(),
            None => self.values[&at].clone(),
        }
    }

    fn add(&mut self, value: Tensor<2>) {
        self.values.insert(self.next, value);
        self.next += 1;
    }

    fn run(&mut self, parts: &[Part], model: &Model, with_scopes: bool) {
        for part in parts {
            match part {
                Part::Op(op) => self.add(op.apply(model, |at| self.value(model, at))),
                Part::Scope(parts) if with_scopes => self.run_in_scope(parts.clone(), model),
                Part::Scope(parts) => self.run(parts, model, with_scopes),
            }
        }
    }

    fn run_in_scope(&mut self, parts: Arc<Vec<Part>>, model: &Model) {
        let mut inputs = operands(&parts);
        inputs.retain(|input| self.values.contains_key(input));
        inputs.sort_unstable();
        inputs.dedup();
        let given: Vec<_> = inputs.iter().map(|at| self.values[at].clone()).collect();
        let first = self.next;
        let run = move |model: &Model, given: Vec<Tensor<2>>| {
            let mut inner = Known {
                values: inputs.iter().copied().zip(given).collect(),
                next: first,
            };
            inner.run(&parts, model, true);
            let results = first..inner.next;
            results
                .map(|at| inner.values[&at].clone())
                .collect::<Vec<_>>()
        };
        for result in checkpoint(model, given, run) {
            self.add(result);
        }
    }
}

fn operands(parts: &[Part]) -> Vec<usize> {
    let of_part = |part: &Part| match part {
        Part::Op(op) => op.operands(),
        Part::Scope(parts) => operands(parts),
    };
    parts.iter().flat_map(of_part).collect()
}

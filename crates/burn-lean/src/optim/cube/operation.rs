//! Operations in one pass over memory: one kernel each, from tensors to tensors.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::{DType, Shape};
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::untile;
use burn_cubecl::ops::numeric::{empty_device_contiguous_dtype, empty_device_dtype};
use burn_cubecl::tensor::CubeTensor;
use lean_arithmetic::optim::cube::Pass;
use lean_arithmetic::optim::cube::cubecl_0_11::{self as kernels, DeviceTensor};
use lean_arithmetic::optim::{Noise, Split, words};

use super::super::moment::Format;

/// An operation in one pass. Its first tensor has the shape of the parameter.
#[derive(Clone, Debug)]
pub(super) enum Operation {
    /// Steps in place: overwrites weight and states.
    Step { pass: Pass, states: Form },
    /// Sums a measure of gradient and states, and returns partial sums.
    Sum { pass: Pass, states: Form },
    /// Rounds numbers to bf16 with noise, in place.
    Round(Noise),
    /// Splits numbers: rounds them, in place, and returns the words of their lower bits.
    Split(Split, Option<Noise>),
    /// Joins numbers that were split.
    Rejoin(Split),
}

/// The states of a parameter, apart from their tensors.
#[derive(Clone, Debug)]
pub(super) struct Form {
    /// Whether there are none yet.
    is_first: bool,
    formats: Vec<Format>,
}

/// A backend that does an operation on tensors of floats or of integers, for which it has one type.
pub(super) trait Run: Backend {
    fn run(operation: Operation, tensors: Vec<FloatTensor<Self>>) -> Vec<FloatTensor<Self>>;
}

impl Operation {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Step { .. } => "lean_step",
            Self::Sum { .. } => "lean_sum",
            Self::Round(_) => "lean_round_stochastically",
            Self::Split(..) => "lean_split",
            Self::Rejoin(_) => "lean_rejoin",
        }
    }

    pub(super) fn outputs(&self, parameter: &Shape) -> Vec<(Shape, DType)> {
        match self {
            Self::Step { states, .. } => {
                let mut outputs = vec![(parameter.clone(), DType::F32)];
                outputs.extend(states.tensors(parameter));
                outputs
            }
            Self::Sum { .. } => vec![(parts(parameter), DType::F32)],
            Self::Round(_) | Self::Rejoin(_) => vec![(parameter.clone(), DType::F32)],
            Self::Split(split, _) => {
                vec![(parameter.clone(), DType::F32), low(*split, parameter)]
            }
        }
    }
}

impl Form {
    pub(super) fn new(is_first: bool, formats: &[Format]) -> Self {
        Self {
            is_first,
            formats: formats.to_vec(),
        }
    }

    fn tensors(&self, parameter: &Shape) -> impl Iterator<Item = (Shape, DType)> {
        let numbers = parameter.num_elements();
        self.formats.iter().map(move |format| match format {
            Format::Float(dtype) => (parameter.clone(), *dtype),
            Format::EightBit(_) => (Shape::new([words(numbers)]), DType::I32),
        })
    }

    /// The states as a kernel takes them; none where there are none yet to be read.
    fn of(&self, tensors: &[CubeTensor]) -> kernels::States<DeviceTensor> {
        let mut states = kernels::States::default();
        for (format, tensor) in self.formats.iter().zip(tensors.iter().map(on_device)) {
            match *format {
                Format::Float(_) => states.floats.push(tensor),
                Format::EightBit(kind) => states.eight_bit.push(kernels::EightBit {
                    words: tensor,
                    kind,
                }),
            }
        }
        states
    }
}

/// The lower bits of a parameter in 32 bits.
fn low(split: Split, parameter: &Shape) -> (Shape, DType) {
    let words = split.words(parameter.num_elements());
    (Shape::new([words]), DType::I32)
}

fn parts(parameter: &Shape) -> Shape {
    Shape::new([kernels::parts(parameter.num_elements())])
}

impl Run for CubeBackend {
    fn run(operation: Operation, tensors: Vec<CubeTensor>) -> Vec<CubeTensor> {
        // A kernel reads rows.
        let mut tensors = tensors.into_iter().map(untile);
        let mut next = || {
            tensors
                .next()
                .expect("a tensor that the operation asks for")
        };
        let first = next();
        match operation {
            Operation::Step { pass, states } => {
                let (weight, grad) = (writable(first), next());
                let shape = weight.shape();
                let kept: Vec<_> = match states.is_first {
                    true => states
                        .tensors(&shape)
                        .map(|of| empty(of, &weight))
                        .collect(),
                    false => tensors.map(writable).collect(),
                };
                let of_kernel = states.of(&kept);
                kernels::step(pass, on_device(&weight), on_device(&grad), of_kernel);
                [weight].into_iter().chain(kept).collect()
            }
            Operation::Sum { pass, states } => {
                let kept: Vec<_> = tensors.collect();
                let (client, device) = (first.client.clone(), first.device.clone());
                let parts = parts(&first.shape());
                let sums = empty_device_contiguous_dtype(client, device, parts, DType::F32);
                let of_kernel = states.of(&kept);
                kernels::sum(pass, on_device(&sums), on_device(&first), of_kernel);
                vec![sums]
            }
            Operation::Round(noise) => {
                let numbers = writable(first);
                kernels::round_stochastically(on_device(&numbers), noise);
                vec![numbers]
            }
            Operation::Split(split, noise) => {
                let numbers = writable(first);
                let (client, device) = (numbers.client.clone(), numbers.device.clone());
                let (shape, dtype) = low(split, &numbers.shape());
                let low = empty_device_contiguous_dtype(client, device, shape, dtype);
                kernels::split(split, on_device(&numbers), on_device(&low), noise);
                vec![numbers, low]
            }
            Operation::Rejoin(split) => {
                let (numbers, low) = (writable(first), next());
                kernels::rejoin(split, on_device(&numbers), on_device(&low));
                vec![numbers]
            }
        }
    }
}

/// The tensor, or a copy if something else holds it, or its elements overlap.
fn writable(tensor: CubeTensor) -> CubeTensor {
    // Burn cannot tell whether a matrix without rows overlaps, and there is nothing to write.
    let is_empty = tensor.shape().num_elements() == 0;
    match is_empty || tensor.can_mut() && tensor.is_nonoverlapping() {
        true => tensor,
        false => tensor.copy(),
    }
}

/// A tensor yet to be written, on the device of a parameter.
fn empty((shape, dtype): (Shape, DType), parameter: &CubeTensor) -> CubeTensor {
    let (client, device) = (parameter.client.clone(), parameter.device.clone());
    match shape == parameter.shape() {
        true => empty_device_dtype(client, device, shape, dtype),
        // Words are read as buffers, which have no strides.
        false => empty_device_contiguous_dtype(client, device, shape, dtype),
    }
}

fn on_device(tensor: &CubeTensor) -> DeviceTensor {
    DeviceTensor {
        client: tensor.client.clone(),
        binding: tensor.clone().binding(),
    }
}

//! One pass over memory on the processor.

use burn::tensor::{DType, Shape, TensorData};
use burn_flex::{Flex, FlexTensor};
use lean_arithmetic::optim::{
    Measure, Noise, Rule, Split,
    host::{self, Buffer, Source},
    words,
};

use crate::{
    LeanBackend, RoundToBf16,
    backend::{Operands, States, Stepped, Types},
    moment::{EightBit, Format, Moment},
};

impl LeanBackend for Flex {
    /// Weights in 32 bits, and states in 32 bits, bf16 or 8 bits. Weights of other types are
    /// stepped as Burn does, which rounds after each operation.
    fn has_pass(types: &Types<'_>) -> bool {
        types.weight == DType::F32
            && types.grad == DType::F32
            && types.states.iter().all(|format| match format {
                Format::Float(dtype) => matches!(dtype, DType::F32 | DType::BF16),
                Format::EightBit(_) => true,
            })
    }

    fn step_in_place<R: Rule<N>, const N: usize>(
        rule: &R,
        operands: Operands<Self, N>,
    ) -> Stepped<Self, N> {
        let shape = operands.weight.layout().shape().clone();
        let mut weight = in_order(operands.weight);
        let grad = in_order(operands.grad);
        let (clip, noise) = (operands.clip, operands.noise);
        let (fresh, mut states) = match operands.states {
            States::New(formats) => (true, formats.map(|format| empty(format, &shape))),
            States::Old(states) => (false, states.map(contiguous)),
        };
        let buffers = states.each_mut().map(buffer_of);
        let weights = weight.storage_mut();
        host::step(rule, clip, fresh, noise, weights, grad.storage(), buffers);
        Stepped { weight, states }
    }

    fn mean_in_place<M: Measure<N>, const N: usize>(
        measure: &M,
        operands: &Operands<Self, N>,
    ) -> FlexTensor {
        let grad = operands.grad.to_contiguous();
        let states = match &operands.states {
            States::New(_) => None,
            States::Old(states) => Some(states.clone().map(contiguous)),
        };
        let sources = states
            .as_ref()
            .map(|states| states.each_ref().map(source_of));
        let mean = host::mean(measure, operands.clip, grad.storage(), sources);
        FlexTensor::from_data(TensorData::from([mean]))
    }
}

/// The tensor with its elements one after the other. Taken by value: a second handle would make the
/// buffer a shared one, which is copied before it is written.
fn in_order(tensor: FlexTensor) -> FlexTensor {
    tensor.to_contiguous()
}

/// Not `FlexTensor::empty`, which copies its buffer to align it.
fn zeros(shape: Shape, dtype: DType) -> FlexTensor {
    match dtype.size() {
        2 => FlexTensor::filled_typed(shape, dtype, 0_u16),
        _ => FlexTensor::filled_typed(shape, dtype, 0_u32),
    }
}

fn empty(format: Format, shape: &Shape) -> Moment<Flex> {
    match format {
        Format::Float(dtype) => Moment::Float(zeros(shape.clone(), dtype)),
        Format::EightBit(kind) => Moment::EightBit(EightBit {
            words: zeros(Shape::new([words(shape.num_elements())]), DType::I32),
            shape: shape.clone(),
            kind,
        }),
    }
}

fn contiguous(state: Moment<Flex>) -> Moment<Flex> {
    state.map(&mut in_order, &mut in_order)
}

/// The elements of a contiguous state, which is copied if it is shared.
fn buffer_of(state: &mut Moment<Flex>) -> Buffer<'_> {
    match state {
        Moment::Float(floats) => match floats.dtype() {
            DType::F32 => Buffer::F32(floats.storage_mut()),
            DType::BF16 => Buffer::Bf16(floats.storage_mut()),
            dtype => unreachable!("{dtype:?} was declined"),
        },
        Moment::EightBit(blocks) => Buffer::of_words(blocks.words.storage_mut(), blocks.kind),
    }
}

/// The elements of a contiguous state.
fn source_of(state: &Moment<Flex>) -> Source<'_> {
    match state {
        Moment::Float(floats) => match floats.dtype() {
            DType::F32 => Source::F32(floats.storage()),
            DType::BF16 => Source::Bf16(floats.storage()),
            dtype => unreachable!("{dtype:?} was declined"),
        },
        Moment::EightBit(blocks) => Source::of_words(blocks.words.storage(), blocks.kind),
    }
}

impl RoundToBf16 for Flex {
    fn round_stochastically(tensor: FlexTensor, noise: Noise) -> FlexTensor {
        let tensor = in_order(tensor);
        let mut rounded = zeros(tensor.layout().shape().clone(), DType::BF16);
        host::round_stochastically(tensor.storage(), rounded.storage_mut(), noise);
        rounded
    }

    fn split(tensor: FlexTensor) -> (FlexTensor, FlexTensor) {
        let mut numbers = in_order(tensor);
        let words = Shape::new([Split::Bf16In32.words(numbers.layout().shape().num_elements())]);
        let mut low = zeros(words, DType::I32);
        host::split(
            Split::Bf16In32,
            numbers.storage_mut(),
            low.storage_mut(),
            None,
        );
        (numbers, low)
    }

    fn rejoin(nearest: FlexTensor, low: FlexTensor) -> FlexTensor {
        let mut numbers = in_order(nearest);
        host::rejoin(Split::Bf16In32, numbers.storage_mut(), low.storage());
        numbers
    }
}

//! One pass over memory on the processor.

use burn::backend::{BackendTypes, Flex};
use burn::tensor::{DType, Int, Shape, Tensor};
use lean_arithmetic::optim::host::{self, Buffer, Source};
use lean_arithmetic::optim::{Kind, Measure, Noise, Rule, Split, words};

use super::moment::{EightBit, Format, Moment};
use super::operands::{Operands, States};

type FlexTensor = <Flex as BackendTypes>::FloatTensorPrimitive;

/// Steps weight and states in place. A buffer that something else holds as well, such as a saved
/// record, is copied and not changed.
pub(super) fn step<R: Rule<N>, const N: usize, const D: usize>(
    rule: &R,
    operands: Operands<N, D>,
) -> (Tensor<D>, [Moment<D>; N]) {
    let shape = operands.weight.shape();
    let (mut weight, grad) = (of(operands.weight), of(operands.grad));
    let (is_first, mut states) = match operands.states {
        States::New(formats) => (true, formats.map(|format| State::empty(format, &shape))),
        States::Old(states) => (false, states.map(State::new)),
    };
    let buffers = states.each_mut().map(State::buffer);
    host::step(
        rule,
        operands.clip,
        is_first,
        operands.noise,
        weight.storage_mut(),
        grad.storage(),
        buffers,
    );
    let weight = Tensor::from_primitive::<Flex>(weight);
    (weight, states.map(|state| state.into_moment(&shape)))
}

pub(super) fn mean<M: Measure<N>, const N: usize, const D: usize>(
    measure: &M,
    operands: &Operands<N, D>,
) -> f32 {
    let grad = of(operands.grad.clone());
    let states = match &operands.states {
        States::New(_) => None,
        States::Old(states) => Some(states.clone().map(State::new)),
    };
    let sources = states
        .as_ref()
        .map(|states| states.each_ref().map(State::source));
    host::mean(measure, operands.clip, grad.storage(), sources)
}

/// Rounds numbers in 32 bits to bf16.
pub(super) fn round_stochastically<const D: usize>(exact: Tensor<D>, noise: Noise) -> Tensor<D> {
    let shape = exact.shape();
    let mut rounded = zeros(shape, DType::BF16);
    host::round_stochastically(of(exact).storage(), rounded.storage_mut(), noise);
    Tensor::from_primitive::<Flex>(rounded)
}

/// Splits numbers in 32 bits: rounds them in their place, and returns the words of their lower bits.
pub(super) fn split<const D: usize>(
    split: Split,
    exact: Tensor<D>,
    noise: Option<Noise>,
) -> (Tensor<D>, Tensor<1, Int>) {
    let words = Shape::new([split.words(exact.shape().num_elements())]);
    let mut numbers = of(exact);
    let mut low = zeros(words, DType::I32);
    host::split(split, numbers.storage_mut(), low.storage_mut(), noise);
    let low = Tensor::from_primitive::<Flex>(low);
    (Tensor::from_primitive::<Flex>(numbers), low)
}

/// Restores numbers that were split, in place.
pub(super) fn rejoin<const D: usize>(
    split: Split,
    nearest: Tensor<D>,
    low: Tensor<1, Int>,
) -> Tensor<D> {
    let mut numbers = of(nearest);
    let low = low
        .try_into_primitive::<Flex>()
        .expect("it is on Flex")
        .to_contiguous();
    host::rejoin(split, numbers.storage_mut(), low.storage());
    Tensor::from_primitive::<Flex>(numbers)
}

/// The tensor with its elements one after the other. Taken by value: a second handle would make the
/// buffer a shared one, which is copied before it is written.
fn of<const D: usize>(tensor: Tensor<D>) -> FlexTensor {
    let tensor = tensor.try_into_primitive::<Flex>().expect("it is on Flex");
    tensor.to_contiguous()
}

/// Not `FlexTensor::empty`, which copies its buffer to align it.
fn zeros(shape: Shape, dtype: DType) -> FlexTensor {
    match dtype.size() {
        2 => FlexTensor::filled_typed(shape, dtype, 0_u16),
        _ => FlexTensor::filled_typed(shape, dtype, 0_u32),
    }
}

/// A [`Moment`] in the backend's tensors.
enum State {
    Float(FlexTensor),
    EightBit { words: FlexTensor, kind: Kind },
}

impl State {
    fn new<const D: usize>(moment: Moment<D>) -> Self {
        match moment {
            Moment::Float(floats) => Self::Float(of(floats)),
            Moment::EightBit(EightBit { words, kind, .. }) => Self::EightBit {
                words: words
                    .try_into_primitive::<Flex>()
                    .expect("it is on Flex")
                    .to_contiguous(),
                kind,
            },
        }
    }

    fn empty(format: Format, shape: &Shape) -> Self {
        match format {
            Format::Float(dtype) => Self::Float(zeros(shape.clone(), dtype)),
            Format::EightBit(kind) => Self::EightBit {
                words: zeros(Shape::new([words(shape.num_elements())]), DType::I32),
                kind,
            },
        }
    }

    fn buffer(&mut self) -> Buffer<'_> {
        match self {
            Self::Float(floats) => match floats.dtype() {
                DType::BF16 => Buffer::Bf16(floats.storage_mut()),
                _ => Buffer::F32(floats.storage_mut()),
            },
            Self::EightBit { words, kind } => Buffer::of_words(words.storage_mut(), *kind),
        }
    }

    fn source(&self) -> Source<'_> {
        match self {
            Self::Float(floats) => match floats.dtype() {
                DType::BF16 => Source::Bf16(floats.storage()),
                _ => Source::F32(floats.storage()),
            },
            Self::EightBit { words, kind } => Source::of_words(words.storage(), *kind),
        }
    }

    fn into_moment<const D: usize>(self, shape: &Shape) -> Moment<D> {
        match self {
            Self::Float(floats) => Moment::Float(Tensor::from_primitive::<Flex>(floats)),
            Self::EightBit { words, kind } => Moment::EightBit(EightBit {
                words: Tensor::from_primitive::<Flex>(words),
                shape: shape.clone(),
                kind,
            }),
        }
    }
}

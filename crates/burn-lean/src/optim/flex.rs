//! One pass over memory on the processor.

use burn::backend::{BackendTypes, Flex};
use burn::tensor::{DType, Int, Shape, Tensor};
use lean_arithmetic::optim::host::{self, Buffer, Source};
use lean_arithmetic::optim::{DynamicMap, Measure, Noise, Rule, blocks, half_words, words};

use super::moment::{EightBit, Format, Moment};
use super::operands::{Operands, States};

type FlexTensor = <Flex as BackendTypes>::FloatTensorPrimitive;

/// Steps weight and states in place. A buffer that something else holds as well, such as a saved
/// record, is copied and not changed.
pub(super) fn step<R: Rule<N>, const N: usize, const D: usize>(
    rule: &R,
    operands: Operands<N, D>,
) -> (Tensor<D>, [Moment<D>; N]) {
    let Operands {
        weight,
        grad,
        clip,
        states,
        noise,
    } = operands;
    let shape = weight.shape();
    let (mut weight, grad) = (of(weight), of(grad));
    let (is_first, mut states) = match states {
        States::New(formats) => (true, formats.map(|format| State::empty(format, &shape))),
        States::Old(states) => (false, states.map(State::new)),
    };
    let buffers = states.each_mut().map(State::buffer);
    host::step(
        rule,
        clip,
        is_first,
        noise,
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
    let mut rounded = FlexTensor::empty(shape, DType::BF16);
    host::round_stochastically(of(exact).storage(), rounded.storage_mut(), noise);
    Tensor::from_primitive::<Flex>(rounded)
}

/// Rounds numbers in 32 bits to the nearest that bf16 has, in their place, and packs the lower
/// halves of their bits.
pub(super) fn split<const D: usize>(exact: Tensor<D>) -> (Tensor<D>, Tensor<1, Int>) {
    let words = Shape::new([half_words(exact.shape().num_elements())]);
    let mut numbers = of(exact);
    let mut low = FlexTensor::empty(words, DType::I32);
    host::split(numbers.storage_mut(), low.storage_mut());
    let low = Tensor::from_primitive::<Flex>(low);
    (Tensor::from_primitive::<Flex>(numbers), low)
}

/// Restores numbers that were split, in place.
pub(super) fn rejoin<const D: usize>(nearest: Tensor<D>, low: Tensor<1, Int>) -> Tensor<D> {
    let mut numbers = of(nearest);
    let low = in_order(low.try_into_primitive::<Flex>().expect("it is on Flex"));
    host::rejoin(numbers.storage_mut(), low.storage());
    Tensor::from_primitive::<Flex>(numbers)
}

/// The tensor with its elements one after the other.
fn of<const D: usize>(tensor: Tensor<D>) -> FlexTensor {
    in_order(tensor.try_into_primitive::<Flex>().expect("it is on Flex"))
}

/// Taken by value: a second handle would make the buffer a shared one, which is copied before it
/// is written.
fn in_order(tensor: FlexTensor) -> FlexTensor {
    tensor.to_contiguous()
}

/// A [`Moment`] in the backend's tensors.
enum State {
    Float(FlexTensor),
    EightBit {
        codes: FlexTensor,
        scales: FlexTensor,
        map: DynamicMap,
        numbers: usize,
    },
}

impl State {
    fn new<const D: usize>(moment: Moment<D>) -> Self {
        match moment {
            Moment::Float(floats) => Self::Float(of(floats)),
            Moment::EightBit(EightBit {
                codes,
                scales,
                shape,
                map,
            }) => Self::EightBit {
                codes: in_order(codes.try_into_primitive::<Flex>().expect("it is on Flex")),
                scales: of(scales),
                map,
                numbers: shape.num_elements(),
            },
        }
    }

    fn empty(format: Format, shape: &Shape) -> Self {
        let numbers = shape.num_elements();
        match format {
            Format::Float(dtype) => Self::Float(FlexTensor::empty(shape.clone(), dtype)),
            Format::EightBit(map) => Self::EightBit {
                codes: FlexTensor::empty(Shape::new([words(numbers)]), DType::I32),
                scales: FlexTensor::empty(Shape::new([blocks(numbers)]), DType::F32),
                map,
                numbers,
            },
        }
    }

    fn buffer(&mut self) -> Buffer<'_> {
        match self {
            Self::Float(floats) => match floats.dtype() {
                DType::BF16 => Buffer::Bf16(floats.storage_mut()),
                _ => Buffer::F32(floats.storage_mut()),
            },
            Self::EightBit {
                codes,
                scales,
                map,
                numbers,
            } => Buffer::of_words(codes.storage_mut(), scales.storage_mut(), *map, *numbers),
        }
    }

    fn source(&self) -> Source<'_> {
        match self {
            Self::Float(floats) => match floats.dtype() {
                DType::BF16 => Source::Bf16(floats.storage()),
                _ => Source::F32(floats.storage()),
            },
            Self::EightBit {
                codes, scales, map, ..
            } => Source::of_words(codes.storage(), scales.storage(), *map),
        }
    }

    fn into_moment<const D: usize>(self, shape: &Shape) -> Moment<D> {
        match self {
            Self::Float(floats) => Moment::Float(Tensor::from_primitive::<Flex>(floats)),
            Self::EightBit {
                codes, scales, map, ..
            } => Moment::EightBit(EightBit {
                codes: Tensor::from_primitive::<Flex>(codes),
                scales: Tensor::from_primitive::<Flex>(scales),
                shape: shape.clone(),
                map,
            }),
        }
    }
}

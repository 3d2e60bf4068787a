//! One pass over memory on cubecl's devices: a kernel for each rule, made of the rule itself.

mod eight_bit;
mod fusion;
mod kernel;
mod rounding;

use burn::tensor::{
    DType, Shape,
    backend::Backend,
    ops::{FloatTensor, FloatTensorOps},
};
use burn_cubecl::{
    BoolElement, CubeBackend, CubeRuntime, FloatElement, IntElement,
    cubecl::{
        calculate_cube_count_elemwise,
        prelude::{AddressType, Array, CubeDim, SequenceArg},
        tensor_vector_size_parallel,
    },
    ops::numeric::{empty_device_contiguous_dtype, empty_device_dtype, zeros_client},
    tensor::CubeTensor,
};

use burn_lean_arithmetic::optim::{
    Measure, Rule, Squares, blocks,
    program::{Clipping, Program},
    words,
};

use crate::{
    LeanBackend,
    backend::{Clip, Operands, States, Stepped, Types},
    moment::{EightBit, Format, Moment},
};
use eight_bit::Codes;

/// Numbers that a unit adds up for a sum, at least.
const ADDED_BY_A_UNIT: usize = 64;
/// Parts that a sum is made of, at most.
const PARTS: usize = 1 << 16;

impl<R, F, I, BT> LeanBackend for CubeBackend<R, F, I, BT>
where
    R: CubeRuntime,
    F: FloatElement,
    I: IntElement,
    BT: BoolElement,
{
    /// Weights in 32 bits, and states in as many or in 8.
    fn has_pass(types: &Types<'_>) -> bool {
        let all = |is_so: fn(&Format) -> bool| types.states.iter().all(is_so);
        types.weight == DType::F32
            && types.grad == DType::F32
            && (all(|format| *format == Format::Float(DType::F32))
                || all(|format| matches!(format, Format::EightBit(_))))
    }

    fn step_in_place<Ru: Rule<N>, const N: usize>(
        rule: &Ru,
        operands: Operands<Self, N>,
    ) -> Stepped<Self, N> {
        let Operands {
            weight,
            grad,
            clip,
            states,
        } = operands;
        let (clipping, factor) = clipping(clip);
        let weight = writable(weight);
        let (first, states) = match states {
            States::New(formats) => (true, formats.map(|format| empty(format, &weight))),
            States::Old(states) => (
                false,
                states.map(|state| state.map(&mut writable, &mut writable)),
            ),
        };
        let (program, scalars) = Program::of_rule(rule, clipping, first);
        let kept: Kept<R> = states.iter().cloned().collect();
        let extent = Extent::of(kept.floats.iter().chain([&weight, &grad]));
        if extent.elements > 0 && kept.blocks.is_empty() {
            let client = &weight.client;
            let units = extent.elements / extent.vector;
            let dim = CubeDim::new(client, units);
            kernel::step::launch(
                client,
                calculate_cube_count_elemwise(client, units, dim),
                dim,
                extent.address,
                extent.vector,
                weight.clone().into_linear_view(),
                grad.into_linear_view(),
                array(factor),
                kept.floats
                    .into_iter()
                    .map(CubeTensor::into_linear_view)
                    .collect(),
                scalars.into_iter().collect(),
                first,
                program,
            );
        } else if extent.elements > 0 {
            eight_bit::step(&weight, grad, factor, kept.blocks, scalars, first, program);
        }
        Stepped { weight, states }
    }

    fn mean_in_place<M: Measure<N>, const N: usize>(
        measure: &M,
        operands: &Operands<Self, N>,
    ) -> FloatTensor<Self> {
        let Operands {
            grad, clip, states, ..
        } = operands.clone();
        let (clipping, factor) = clipping(clip);
        let (first, states) = match states {
            States::New(_) => (true, Vec::new()),
            States::Old(states) => (false, Vec::from(states)),
        };
        let (program, scalars) = Program::of_measure(measure, clipping, first);
        let elements = grad.meta.num_elements();
        let states: Kept<R> = states.into_iter().collect();
        let sum = Self::float_sum(parts(grad, factor, states, scalars, program));
        Self::float_div_scalar(sum, (elements as f64).into())
    }

    fn sum_of_squares(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        if tensor.dtype != DType::F32 {
            return Self::float_sum(Self::float_powi_scalar(tensor, 2.into()));
        }
        let (program, scalars) = Program::of_measure(&Squares, Clipping::None, true);
        Self::float_sum(parts(tensor, None, Kept::default(), scalars, program))
    }
}

/// The sum of a program's result over all elements, in parts that are yet to be added up: `[parts]`.
fn parts<R: CubeRuntime>(
    grad: CubeTensor<R>,
    factor: Option<CubeTensor<R>>,
    states: Kept<R>,
    scalars: Vec<f32>,
    program: Program,
) -> CubeTensor<R> {
    let size = Extent::of(states.floats.iter().chain([&grad]));
    if size.elements == 0 {
        return zeros_client(grad.client, grad.device, Shape::new([1]), DType::F32);
    }
    let parts = (size.elements / ADDED_BY_A_UNIT).clamp(1, PARTS);
    let client = grad.client.clone();
    let sums = empty_device_contiguous_dtype(
        client.clone(),
        grad.device.clone(),
        Shape::new([parts]),
        DType::F32,
    );
    let dim = CubeDim::new(&client, parts);
    kernel::sum::launch(
        &client,
        calculate_cube_count_elemwise(&client, parts, dim),
        dim,
        size.address,
        size.vector,
        grad.into_linear_view(),
        array(factor),
        states
            .floats
            .into_iter()
            .map(CubeTensor::into_linear_view)
            .collect(),
        states
            .blocks
            .into_iter()
            .map(Codes::into_argument)
            .collect(),
        sums.clone().into_array_arg(),
        scalars.into_iter().collect(),
        program,
    );
    sums
}

/// What a kernel over tensors of one shape needs to know of all of them.
struct Extent {
    elements: usize,
    /// Elements that a unit takes at once.
    vector: usize,
    address: AddressType,
}

impl Extent {
    fn of<'a, R: CubeRuntime>(tensors: impl Iterator<Item = &'a CubeTensor<R>>) -> Self {
        let mut size = Self {
            elements: 0,
            vector: usize::MAX,
            address: AddressType::default(),
        };
        for tensor in tensors {
            let vector = tensor_vector_size_parallel(
                tensor.client.io_optimized_vector_sizes(tensor.dtype.size()),
                tensor.meta.shape(),
                tensor.meta.strides(),
                tensor.meta.num_dims() - 1,
            );
            size.elements = tensor.meta.num_elements();
            size.vector = size.vector.min(vector);
            size.address = size.address.max(tensor.required_address_type());
        }
        size
    }
}

/// The tensor, or a copy of it where somebody else holds it, or its elements overlap.
fn writable<R: CubeRuntime>(tensor: CubeTensor<R>) -> CubeTensor<R> {
    // Of a matrix without rows Burn cannot say whether it overlaps, and there is nothing to write.
    let is_empty = tensor.meta.num_elements() == 0;
    if is_empty || tensor.can_mut() && tensor.is_nonoverlapping() {
        tensor
    } else {
        tensor.copy()
    }
}

/// A state of a parameter, yet to be written.
fn empty<B, R>(format: Format, parameter: &CubeTensor<R>) -> Moment<B>
where
    B: Backend<FloatTensorPrimitive = CubeTensor<R>, IntTensorPrimitive = CubeTensor<R>>,
    R: CubeRuntime,
{
    let (client, device) = (&parameter.client, &parameter.device);
    let shape = parameter.meta.shape();
    let flat =
        |shape, dtype| empty_device_contiguous_dtype(client.clone(), device.clone(), shape, dtype);
    match format {
        Format::Float(dtype) => {
            let floats = empty_device_dtype(client.clone(), device.clone(), shape.clone(), dtype);
            Moment::Float(floats)
        }
        Format::EightBit(map) => Moment::EightBit(EightBit {
            codes: flat(Shape::new([words(shape.num_elements())]), DType::I32),
            scales: flat(Shape::new([blocks(shape.num_elements())]), DType::F32),
            shape: shape.clone(),
            map,
        }),
    }
}

/// The states of a parameter, which are all floats or all in 8 bits.
struct Kept<R: CubeRuntime> {
    floats: Vec<CubeTensor<R>>,
    blocks: Vec<Codes<R>>,
}

impl<R: CubeRuntime> Default for Kept<R> {
    fn default() -> Self {
        Self {
            floats: Vec::new(),
            blocks: Vec::new(),
        }
    }
}

impl<B, R> FromIterator<Moment<B>> for Kept<R>
where
    B: Backend<FloatTensorPrimitive = CubeTensor<R>, IntTensorPrimitive = CubeTensor<R>>,
    R: CubeRuntime,
{
    fn from_iter<I: IntoIterator<Item = Moment<B>>>(states: I) -> Self {
        let mut kept = Self::default();
        for state in states {
            match state {
                Moment::Float(floats) => kept.floats.push(floats),
                Moment::EightBit(EightBit {
                    codes, scales, map, ..
                }) => kept.blocks.push(Codes { codes, scales, map }),
            }
        }
        kept
    }
}

fn array<R: CubeRuntime>(factor: Option<CubeTensor<R>>) -> SequenceArg<R, Array<f32>> {
    factor.map(CubeTensor::into_array_arg).into_iter().collect()
}

/// The factor is apart, as a tensor among others.
fn clipping<B: Backend>(clip: Clip<B>) -> (Clipping, Option<FloatTensor<B>>) {
    match clip {
        Clip::None => (Clipping::None, None),
        Clip::Value(threshold) => (Clipping::Value(threshold), None),
        Clip::Factor(factor) => (Clipping::Factor, Some(factor)),
    }
}

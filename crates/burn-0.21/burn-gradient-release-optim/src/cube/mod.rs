//! One pass over memory on cubecl's devices: the tensors that its kernels take.

mod fusion;

use burn::tensor::{
    DType, Shape,
    backend::Backend,
    ops::{FloatTensor, FloatTensorOps},
};
use burn_cubecl::{
    BoolElement, CubeBackend, CubeRuntime, FloatElement, IntElement,
    ops::numeric::{empty_device_contiguous_dtype, empty_device_dtype, zeros_client},
    tensor::CubeTensor,
};

use lean_arithmetic::optim::{
    Measure, Noise, Rule, Split,
    cube::{
        Pass,
        cubecl_0_10::{self as kernels, DeviceTensor},
    },
    words,
};

use crate::{
    LeanBackend, RoundToBf16,
    backend::{Operands, States, Stepped, Types},
    moment::{EightBit, Format, Moment},
};

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
        let weight = writable(operands.weight);
        let (first, states) = match operands.states {
            States::New(formats) => (true, formats.map(|format| empty(format, &weight))),
            States::Old(states) => (
                false,
                states.map(|state| state.map(&mut writable, &mut writable)),
            ),
        };
        let pass = Pass::of_rule(rule, operands.clip, first).rounded(operands.noise);
        kernels::step(
            pass,
            on_device(&weight),
            on_device(&operands.grad),
            of_kernel(&states),
        );
        Stepped { weight, states }
    }

    fn mean_in_place<M: Measure<N>, const N: usize>(
        measure: &M,
        operands: &Operands<Self, N>,
    ) -> FloatTensor<Self> {
        let Operands {
            grad, clip, states, ..
        } = operands.clone();
        let (first, states) = match states {
            States::New(_) => (true, Vec::new()),
            States::Old(states) => (false, Vec::from(states)),
        };
        let pass = Pass::of_measure(measure, clip, first);
        let elements = grad.meta.num_elements();
        let sum = Self::float_sum(parts(pass, &grad, of_kernel(&states)));
        Self::float_div_scalar(sum, (elements as f64).into())
    }
}

impl<R, F, I, BT> RoundToBf16 for CubeBackend<R, F, I, BT>
where
    R: CubeRuntime,
    F: FloatElement,
    I: IntElement,
    BT: BoolElement,
{
    /// Rounds in place, in 32 bits. The cast to bf16 follows.
    fn round_stochastically(tensor: CubeTensor<R>, noise: Noise) -> CubeTensor<R> {
        assert_eq!(tensor.dtype, DType::F32, "steps are computed in 32 bits");
        let tensor = writable(tensor);
        kernels::round_stochastically(on_device(&tensor), noise);
        tensor
    }

    fn split(tensor: CubeTensor<R>) -> (CubeTensor<R>, CubeTensor<R>) {
        assert_eq!(tensor.dtype, DType::F32, "steps are computed in 32 bits");
        let numbers = writable(tensor);
        let words = Shape::new([Split::Bf16In32.words(numbers.meta.num_elements())]);
        let (client, device) = (numbers.client.clone(), numbers.device.clone());
        let low = empty_device_contiguous_dtype(client, device, words, DType::I32);
        kernels::split(Split::Bf16In32, on_device(&numbers), on_device(&low), None);
        (numbers, low)
    }

    fn rejoin(nearest: CubeTensor<R>, low: CubeTensor<R>) -> CubeTensor<R> {
        assert_eq!(nearest.dtype, DType::F32, "steps are computed in 32 bits");
        let numbers = writable(nearest);
        kernels::rejoin(Split::Bf16In32, on_device(&numbers), on_device(&low));
        numbers
    }
}

/// Runs a pass that sums over all elements. Returns partial sums: `[parts]`.
fn parts<R: CubeRuntime>(
    pass: Pass,
    grad: &CubeTensor<R>,
    states: kernels::States<DeviceTensor<R>>,
) -> CubeTensor<R> {
    let (client, device) = (grad.client.clone(), grad.device.clone());
    let elements = grad.meta.num_elements();
    if elements == 0 {
        return zeros_client(client, device, Shape::new([1]), DType::F32);
    }
    let shape = Shape::new([kernels::parts(elements)]);
    let sums = empty_device_contiguous_dtype(client, device, shape, DType::F32);
    kernels::sum(pass, on_device(&sums), on_device(grad), states);
    sums
}

/// The tensor, or a copy if something else holds it, or its elements overlap.
fn writable<R: CubeRuntime>(tensor: CubeTensor<R>) -> CubeTensor<R> {
    // Burn cannot tell whether a matrix without rows overlaps, and there is nothing to write.
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
    match format {
        Format::Float(dtype) => {
            let floats = empty_device_dtype(client.clone(), device.clone(), shape.clone(), dtype);
            Moment::Float(floats)
        }
        Format::EightBit(kind) => Moment::EightBit(EightBit {
            words: empty_device_contiguous_dtype(
                client.clone(),
                device.clone(),
                Shape::new([words(shape.num_elements())]),
                DType::I32,
            ),
            shape: shape.clone(),
            kind,
        }),
    }
}

/// States as a kernel takes them.
fn of_kernel<'a, B, R>(
    states: impl IntoIterator<Item = &'a Moment<B>>,
) -> kernels::States<DeviceTensor<R>>
where
    B: Backend<FloatTensorPrimitive = CubeTensor<R>, IntTensorPrimitive = CubeTensor<R>>,
    R: CubeRuntime,
{
    let mut of_kernel = kernels::States::default();
    for state in states {
        match state {
            Moment::Float(floats) => of_kernel.floats.push(on_device(floats)),
            Moment::EightBit(blocks) => of_kernel.eight_bit.push(kernels::EightBit {
                words: on_device(&blocks.words),
                kind: blocks.kind,
            }),
        }
    }
    of_kernel
}

fn on_device<R: CubeRuntime>(tensor: &CubeTensor<R>) -> DeviceTensor<R> {
    DeviceTensor {
        client: tensor.client.clone(),
        binding: tensor.clone().binding(),
    }
}

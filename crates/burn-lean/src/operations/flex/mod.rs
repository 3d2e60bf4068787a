//! Functions of floats in 32 bits on Flex, in one pass over memory.
//!
//! Elsewhere the operations are made of Burn's tensors, and so are those of other types.

mod attention;
mod hidden;
mod nf4;
mod product;

use burn::backend::{BackendTypes, Flex};
use burn::tensor::{DType, Shape, Tensor};
use lean_arithmetic::slices::{self, Activation, LayerNorm, Softmax};

use super::threads::each;
use crate::backend::is_on_flex;
use crate::wide::wide;

pub(super) use attention::{Settings, attention, attention_backward};
pub(super) use hidden::{PackedMask, drop_with, hidden_block, pack_block};
pub(super) use nf4::unpack as unpack_nf4;
pub(super) use product::{product_into, repeated};

type FlexTensor = <Flex as BackendTypes>::FloatTensorPrimitive;

/// Elements that a thread takes at once: enough to be worth its waking up, and few enough for its
/// cache.
const CHUNK: usize = 32 << 10;

/// Whether the functions of this file can compute with the tensor.
pub(super) fn has_slices<const D: usize>(tensor: &Tensor<D>) -> bool {
    tensor.dtype() == DType::F32 && is_on_flex(tensor)
}

/// Whether [`attention`] can compute with the tensor.
pub(super) fn is_attended<const D: usize>(tensor: &Tensor<D>) -> bool {
    is_on_flex(tensor) && wide(tensor.dtype()) == DType::F32
}

/// The function of each element, in place if nothing else holds the tensor.
pub(super) fn activation<const D: usize>(function: Activation, x: Tensor<D>) -> Tensor<D> {
    let mut x = floats(x);
    if x.is_unique() && is_whole(&x) {
        let chunks = x.storage_mut().chunks_mut(CHUNK).collect();
        each(chunks, |x: &mut [f32]| function.in_place(x));
        return tensor(x);
    }
    let mut y = zeros(x.layout().shape());
    let chunks = read(&x)
        .chunks(CHUNK)
        .zip(y.storage_mut().chunks_mut(CHUNK));
    each(chunks.collect(), |(x, y)| function.value(x, y));
    tensor(y)
}

/// The gradient of the input, from the input and the gradient of the output.
pub(super) fn activation_backward<const D: usize>(
    function: Activation,
    x: Tensor<D>,
    grad: Tensor<D>,
) -> Tensor<D> {
    let (x, mut grad) = (floats(x), own(grad));
    let chunks = read(&x)
        .chunks(CHUNK)
        .zip(grad.storage_mut().chunks_mut(CHUNK));
    each(chunks.collect(), |(x, grad)| function.backward(x, grad));
    tensor(grad)
}

/// `function(gate) * up`
pub(super) fn gated<const D: usize>(
    function: Activation,
    gate: Tensor<D>,
    up: Tensor<D>,
) -> Tensor<D> {
    let (gate, up) = (floats(gate), floats(up));
    let mut output = zeros(gate.layout().shape());
    let operands = read(&gate).chunks(CHUNK).zip(read(&up).chunks(CHUNK));
    let chunks = operands.zip(output.storage_mut().chunks_mut(CHUNK));
    each(chunks.collect(), |((gate, up), output)| {
        function.gated(gate, up, output);
    });
    tensor(output)
}

/// The gradients of `gate` and `up`, from both and the gradient of the output.
pub(super) fn gated_backward<const D: usize>(
    function: Activation,
    gate: Tensor<D>,
    up: Tensor<D>,
    grad: Tensor<D>,
) -> [Tensor<D>; 2] {
    let (gate, mut up, mut grad) = (floats(gate), own(up), own(grad));
    let chunks = read(&gate)
        .chunks(CHUNK)
        .zip(up.storage_mut().chunks_mut(CHUNK));
    let chunks = chunks.zip(grad.storage_mut().chunks_mut(CHUNK));
    each(chunks.collect(), |((gate, up), grad)| {
        function.gated_backward(gate, up, grad);
    });
    [tensor(grad), tensor(up)]
}

/// Rotates the pairs of `[..., time, width]` by the angles of the positions, `[time, width, 2]`, in
/// place if nothing else holds the tensor. Heads may be next to each other in memory, as a linear
/// layer has made them: so they stay.
pub(super) fn rotate<const D: usize>(
    x: Tensor<D>,
    frequencies: Tensor<3>,
    direction: f32,
) -> Tensor<D> {
    let [_, width, _] = frequencies.dims();
    let by_time = |x: FlexTensor| if D > 2 { x.transpose(D - 3, D - 2) } else { x };
    let (mut x, frequencies) = (of(x), floats(frequencies));
    let is_by_time = !x.is_contiguous() && by_time(x.clone()).is_contiguous();
    let mut heads = 1;
    if is_by_time {
        heads = x.layout().shape()[D - 3];
        x = by_time(x);
    }
    x = x.to_contiguous();
    let frequencies = read(&frequencies);
    let positions = (CHUNK / (heads * width).max(1)).max(1);
    let mut chunks = Vec::new();
    for x in x
        .storage_mut()
        .chunks_mut((frequencies.len() / 2 * heads).max(1))
    {
        let frequencies = frequencies.chunks((2 * positions * width).max(1));
        chunks.extend(x.chunks_mut(positions * heads * width).zip(frequencies));
    }
    each(chunks, |(x, frequencies): (&mut [f32], _)| {
        slices::rotate(x, frequencies, [heads, width], direction);
    });
    tensor(if is_by_time { by_time(x) } else { x })
}

/// Softmax of the rows of a tensor, in place if nothing else holds it.
pub(super) fn softmax<const D: usize>(softmax: Softmax, x: Tensor<D>) -> Tensor<D> {
    let width = x.dims()[D - 1];
    let mut x = own(x);
    let chunks = x.storage_mut().chunks_mut(rows(width)).collect();
    each(chunks, |x: &mut [f32]| softmax.rows(x, width));
    tensor(x)
}

/// The gradient of the input of [`softmax`], from its output and the gradient of that.
pub(super) fn softmax_backward<const D: usize>(
    softmax: Softmax,
    output: Tensor<D>,
    grad: Tensor<D>,
) -> Tensor<D> {
    let width = output.dims()[D - 1];
    let (output, mut grad) = (floats(output), own(grad));
    let size = rows(width);
    let chunks = read(&output)
        .chunks(size)
        .zip(grad.storage_mut().chunks_mut(size));
    each(chunks.collect(), |(output, grad)| {
        softmax.backward(output, grad, width);
    });
    tensor(grad)
}

/// The exponential of rows `[rows, width]` times the factors `[rows, 1]`.
pub(super) fn exp_rows(x: Tensor<2>, factors: Tensor<2>) -> Tensor<2> {
    let [_, width] = x.dims();
    let (mut x, factors) = (own(x), floats(factors));
    let size = rows(width);
    let factors = read(&factors).chunks(size / width.max(1));
    let chunks = x.storage_mut().chunks_mut(size).zip(factors);
    each(chunks.collect(), |(x, factors): (&mut [f32], _)| {
        slices::exp_rows(x, factors, width);
    });
    tensor(x)
}

/// The words of the masks of rows, `[rows, words]`.
pub(super) fn pack(bits: Tensor<2>, words: usize) -> Tensor<2> {
    let [rows, width] = bits.dims();
    let bits = floats(bits);
    let mut packed = zeros(&Shape::new([rows, words]));
    let chunks = packed.storage_mut().chunks_mut(words.max(1));
    for (bits, words) in read(&bits).chunks(width.max(1)).zip(chunks) {
        slices::pack_row(bits, words);
    }
    tensor(packed)
}

/// The masks of rows, `[rows, width]`.
pub(super) fn unpack(words: Tensor<2>, width: usize) -> Tensor<2> {
    let [rows, count] = words.dims();
    let words = floats(words);
    let mut bits = zeros(&Shape::new([rows, width]));
    let chunks = bits.storage_mut().chunks_mut(width.max(1));
    for (words, bits) in read(&words).chunks(count.max(1)).zip(chunks) {
        slices::unpack_row(words, bits);
    }
    tensor(bits)
}

/// Zeroes the elements of a tensor that its mask `[1, words]` drops, and scales the others.
pub(super) fn drop<const D: usize>(words: Tensor<2>, x: Tensor<D>, scale: f64) -> Tensor<D> {
    let (words, mut x) = (floats(words), own(x));
    slices::drop_row(read(&words), x.storage_mut(), scale as f32);
    tensor(x)
}

/// Layer normalization of the rows of a tensor.
pub(super) fn layer_norm<const D: usize>(
    input: Tensor<D>,
    gamma: Tensor<1>,
    beta: Option<Tensor<1>>,
    epsilon: f64,
) -> Tensor<D> {
    let norm = LayerNorm { epsilon };
    let size = rows(gamma.dims()[0]);
    let (input, gamma, beta) = (floats(input), floats(gamma), beta.map(floats));
    let mut output = zeros(input.layout().shape());
    let (gamma, beta) = (read(&gamma), beta.as_ref().map(read));
    let chunks = read(&input)
        .chunks(size)
        .zip(output.storage_mut().chunks_mut(size));
    each(chunks.collect(), |(input, output)| {
        norm.rows(input, gamma, beta, output)
    });
    tensor(output)
}

/// The gradients of the input, gamma and beta of [`layer_norm`], from that of the output.
pub(super) fn layer_norm_backward<const D: usize>(
    input: Tensor<D>,
    gamma: Tensor<1>,
    grad: Tensor<D>,
    epsilon: f64,
) -> (Tensor<D>, [Tensor<1>; 2]) {
    let norm = LayerNorm { epsilon };
    let width = gamma.dims()[0];
    let (input, gamma, mut grad) = (floats(input), floats(gamma), own(grad));
    // Sums of chunks, which are added in their order.
    let size = rows(width).max(
        read(&input)
            .len()
            .div_ceil(MOST_SUMS)
            .next_multiple_of(width.max(1)),
    );
    let chunks = read(&input)
        .chunks(size)
        .zip(grad.storage_mut().chunks_mut(size));
    let mut sums = vec![0.0; 2 * width * chunks.len()];
    let chunks = chunks.zip(sums.chunks_mut((2 * width).max(1)));
    each(chunks.collect(), |((input, grad), sums)| {
        norm.backward(input, read(&gamma), grad, sums.split_at_mut(width).into());
    });
    let mut affine = [0, 1].map(|_| zeros(&Shape::new([width])));
    for (at, sums) in sums.chunks_exact(width.max(1)).enumerate() {
        for (sum, part) in affine[at % 2].storage_mut::<f32>().iter_mut().zip(sums) {
            *sum += part;
        }
    }
    (tensor(grad), affine.map(tensor))
}

/// A tensor has no more partial sums over its rows than this, however large it is.
const MOST_SUMS: usize = 64;

/// Elements of whole rows that a thread takes at once.
fn rows(width: usize) -> usize {
    let width = width.max(1);
    (CHUNK / width).max(1) * width
}

/// To be read: its elements are one after the other, perhaps among those of a larger tensor.
fn floats<const D: usize>(tensor: Tensor<D>) -> FlexTensor {
    let tensor = of(tensor);
    match tensor.is_contiguous() {
        true => tensor,
        false => tensor.to_contiguous(),
    }
}

/// To be written over: in a buffer of its own. One that something else holds is copied when it is
/// written.
fn own<const D: usize>(tensor: Tensor<D>) -> FlexTensor {
    of(tensor).to_contiguous()
}

fn of<const D: usize>(tensor: Tensor<D>) -> FlexTensor {
    tensor.try_into_primitive::<Flex>().expect("it is on Flex")
}

fn read(tensor: &FlexTensor) -> &[f32] {
    tensor.as_slice().expect("its elements are in order")
}

/// Whether a tensor is all of its buffer.
fn is_whole(tensor: &FlexTensor) -> bool {
    tensor.storage::<f32>().len() == tensor.layout().num_elements()
}

/// Not `FlexTensor::empty`, which copies its buffer to align it.
fn zeros(shape: &Shape) -> FlexTensor {
    FlexTensor::filled_typed(shape.clone(), DType::F32, 0.0_f32)
}

fn tensor<const D: usize>(tensor: FlexTensor) -> Tensor<D> {
    Tensor::from_primitive::<Flex>(tensor)
}

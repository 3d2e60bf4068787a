//! A state of an optimizer, in as many bits as was asked for.

use burn::optim::{StateSink, StateSource};
use burn::tensor::{DType, Device, Int, Shape, Tensor, TensorData};
use lean_arithmetic::optim::{BLOCK, Kind, Noise, pack, unpack, words};

use super::record::Field;
use crate::gradients::is_looked_for;
use crate::tensors::MapTensor;

/// Storage of a state in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Floats of this type.
    Float(DType),
    /// 8 bits a number, in blocks of 128 with a scale each.
    EightBit(Kind),
}

/// A state of an optimizer of the parameter's shape: a moment, a velocity.
///
/// Saved as floats it is a tensor in Burn's record, as Burn's own optimizers have it. An optimizer
/// with 32 bits loads a moment that was saved in 8 bits, and the reverse: the next step converts
/// it.
#[derive(Clone, Debug)]
pub enum Moment<const D: usize> {
    /// Floats.
    Float(Tensor<D>),
    /// 8 bits a number.
    EightBit(EightBit),
}

/// Numbers in 8 bits, as powers of their codes: a signed number is `sign(q) * (q / 127 * r)^2` and
/// one that is never negative `(q / 255 * r)^4`, with a code `q` of 8 bits and a scale `r` in 32 for
/// 128 numbers.
#[derive(Clone, Debug)]
pub struct EightBit {
    /// The blocks of 128 numbers, 33 words each: the codes, four to an `i32`, from the lowest byte
    /// on, and the bits of the scale.
    pub words: Tensor<1, Int>,
    /// The shape of the parameter.
    pub shape: Shape,
    /// Whether the numbers have signs.
    pub kind: Kind,
}

impl<const D: usize> Moment<D> {
    /// The format it is in.
    pub fn format(&self) -> Format {
        match self {
            Self::Float(floats) => Format::Float(floats.dtype()),
            Self::EightBit(blocks) => Format::EightBit(blocks.kind),
        }
    }

    /// The shape of the parameter.
    pub fn shape(&self) -> Shape {
        match self {
            Self::Float(floats) => floats.shape(),
            Self::EightBit(blocks) => blocks.shape.clone(),
        }
    }

    /// The bytes it takes.
    pub fn bytes(&self) -> usize {
        let numbers = self.shape().num_elements();
        match self {
            Self::Float(floats) => numbers * floats.dtype().size(),
            Self::EightBit(_) => 4 * words(numbers),
        }
    }

    /// The numbers as floats, `[..]` of the parameter's shape.
    ///
    /// Codes in 8 bits are unpacked on the host.
    pub fn to_tensor(&self) -> Tensor<D> {
        match self {
            Self::Float(floats) => floats.clone(),
            Self::EightBit(blocks) => {
                let numbers = blocks.shape.num_elements();
                let numbers = blocks.kind.decode(&blocks.to_host(), numbers);
                let data = TensorData::new(numbers, blocks.shape.clone());
                Tensor::from_data(data, (&blocks.words.device(), DType::F32))
            }
        }
    }

    /// A state that holds these numbers in this format.
    ///
    /// Into 8 bits they go by way of the host, and are rounded to one of the two codes beside them.
    pub fn from_tensor(tensor: Tensor<D>, format: Format) -> Self {
        Self::rounded(tensor, format, None)
    }

    /// The same, rounded to 8 bits with noise.
    pub(super) fn rounded(tensor: Tensor<D>, format: Format, noise: Option<Noise>) -> Self {
        match format {
            Format::Float(dtype) => Self::Float(tensor.cast(dtype)),
            Format::EightBit(kind) => {
                let (device, shape) = (tensor.device(), tensor.shape());
                let data = tensor.cast(DType::F32).into_data();
                let numbers = data.as_slice().expect("they were cast");
                let words = kind.encode(numbers, noise);
                Self::EightBit(EightBit::new(words, shape, kind, &device))
            }
        }
    }

    pub(super) fn into_format(self, format: Format) -> Self {
        match self {
            moment if moment.format() == format => moment,
            // Handed over, not cloned: a cast to the type that it has makes no copy.
            Self::Float(floats) => Self::from_tensor(floats, format),
            moment => Self::from_tensor(moment.to_tensor(), format),
        }
    }
}

impl EightBit {
    fn new(words: Vec<i32>, shape: Shape, kind: Kind, device: &Device) -> Self {
        let length = words.len();
        let words = TensorData::new(words, [length]);
        Self {
            words: Tensor::from_data(words, (device, DType::I32)),
            shape,
            kind,
        }
    }

    fn to_host(&self) -> Vec<i32> {
        let words = self.words.clone().try_into_vec_as();
        words.expect("they are made as `i32`")
    }
}

const SCALES: &str = "scales";

/// A moment in 8 bits is a tensor of its codes, `i8` with signs and `u8` without, and the scales
/// under the same name with `.scales`. The shape has one dimension more than the parameter, of one
/// element: Burn's own optimizers would take the codes for numbers, and refuse the rank.
impl<const D: usize> Field for Moment<D> {
    fn flatten(&self, name: &str, out: &mut StateSink) {
        match self {
            Self::Float(floats) => floats.flatten(name, out),
            Self::EightBit(blocks) => {
                let (codes, scales) = unpack(&blocks.to_host(), blocks.shape.num_elements());
                let dtype = match blocks.kind {
                    Kind::Signed => DType::I8,
                    Kind::Positive => DType::U8,
                };
                let mut shape = blocks.shape.clone();
                shape.push(1);
                out.push_tensor("", name, TensorData::from_bytes_vec(codes, shape, dtype));
                let length = scales.len();
                out.push_tensor(name, SCALES, TensorData::new(scales, [length]));
            }
        }
    }

    fn unflatten(name: &str, source: &mut StateSource, device: &Device) -> Option<Self> {
        if is_looked_for(name) {
            return None;
        }
        let data = source.take_tensor("", name)?;
        let kind = match data.dtype() {
            DType::I8 => Kind::Signed,
            DType::U8 => Kind::Positive,
            _ => {
                source.insert_tensor(name.into(), data);
                return Field::unflatten(name, source, device).map(Self::Float);
            }
        };
        let (codes, mut shape, _) = data.into_parts();
        if shape.num_dims() != D + 1 || shape[D] != 1 {
            return None;
        }
        shape.remove(D);
        let scales: Vec<f32> = source.take_tensor(name, SCALES)?.try_into_vec().ok()?;
        if scales.len() != shape.num_elements().div_ceil(BLOCK) {
            return None;
        }
        let words = pack(&codes, &scales);
        Some(Self::EightBit(EightBit::new(words, shape, kind, device)))
    }

    fn map_tensors(self, map: &mut MapTensor<'_>) -> Self {
        match self {
            Self::Float(floats) => Self::Float(floats.map_tensors(map)),
            Self::EightBit(blocks) => Self::EightBit(EightBit {
                words: blocks.words.map_tensors(map),
                ..blocks
            }),
        }
    }
}

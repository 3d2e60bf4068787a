//! A state of an optimizer, in as many bits as was asked for.

use burn::optim::{StateSink, StateSource};
use burn::tensor::{DType, Device, Int, Shape, Tensor, TensorData};
use lean_arithmetic::optim::{DynamicMap, EightBitData, Noise, blocks, words};

use super::record::Field;

/// Storage of a state in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Floats of this type.
    Float(DType),
    /// 8 bits a number, in blocks of 256 with a scale each.
    EightBit(DynamicMap),
}

/// A state of an optimizer of the parameter's shape: a moment, a velocity.
///
/// Saved as floats it is a tensor in Burn's record, as Burn's own optimizers have it. Saved in
/// 8 bits, one loads into an optimizer with 32 bits, and the other way round: the optimizer brings
/// it into its own format in the next step.
#[derive(Clone, Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "a box would be an allocation for each moment and step"
)]
pub enum Moment<const D: usize> {
    /// Floats.
    Float(Tensor<D>),
    /// 8 bits a number.
    EightBit(EightBit),
}

/// Numbers in 8 bits, in blocks.
#[derive(Clone, Debug)]
pub struct EightBit {
    /// The codes, four to an `i32`, from the lowest byte on: `[numbers / 4]`, rounded up.
    pub codes: Tensor<1, Int>,
    /// The scale of each block: `[numbers / 256]`, rounded up.
    pub scales: Tensor<1>,
    /// The shape of the parameter.
    pub shape: Shape,
    /// The numbers that the codes stand for.
    pub map: DynamicMap,
}

impl<const D: usize> Moment<D> {
    /// The format it is in.
    pub fn format(&self) -> Format {
        match self {
            Self::Float(floats) => Format::Float(floats.dtype()),
            Self::EightBit(blocks) => Format::EightBit(blocks.map),
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
            Self::EightBit(_) => 4 * (words(numbers) + blocks(numbers)),
        }
    }

    /// The numbers as floats, `[..]` of the parameter's shape.
    ///
    /// Codes in 8 bits are unpacked on the host.
    pub fn to_tensor(&self) -> Tensor<D> {
        match self {
            Self::Float(floats) => floats.clone(),
            Self::EightBit(blocks) => {
                let numbers = blocks.to_host().decode(blocks.map);
                let data = TensorData::new(numbers, blocks.shape.clone());
                Tensor::from_data(data, (&blocks.scales.device(), DType::F32))
            }
        }
    }

    /// A state that holds these numbers in this format.
    ///
    /// Into 8 bits they go by way of the host, and are rounded to the nearest.
    pub fn from_tensor(tensor: Tensor<D>, format: Format) -> Self {
        Self::rounded(tensor, format, None)
    }

    /// The same, with noise for rounding to 8 bits by chance.
    pub(super) fn rounded(tensor: Tensor<D>, format: Format, noise: Option<Noise>) -> Self {
        match format {
            Format::Float(dtype) => Self::Float(tensor.cast(dtype)),
            Format::EightBit(map) => {
                let (device, shape) = (tensor.device(), tensor.shape());
                let data = tensor.cast(DType::F32).into_data();
                let numbers = data.as_slice().expect("they were cast");
                let data = map.encode(numbers, noise);
                Self::EightBit(EightBit::new(data, shape, map, &device))
            }
        }
    }

    /// Converts the moment to this format.
    pub(super) fn into_format(self, format: Format) -> Self {
        match self {
            moment if moment.format() == format => moment,
            // Handed over, not cloned: a cast to the type that it has makes no copy.
            Self::Float(floats) => Self::from_tensor(floats, format),
            moment => Self::from_tensor(moment.to_tensor(), format),
        }
    }

    pub(super) fn on_device(self, device: &Device) -> Self {
        match self {
            Self::Float(floats) => Self::Float(floats.to_device(device)),
            Self::EightBit(blocks) => Self::EightBit(EightBit {
                codes: blocks.codes.to_device(device),
                scales: blocks.scales.to_device(device),
                ..blocks
            }),
        }
    }
}

/// The type that arithmetic on a type is done in.
pub(super) fn wide(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        dtype => dtype,
    }
}

impl EightBit {
    fn new(data: EightBitData, shape: Shape, map: DynamicMap, device: &Device) -> Self {
        let words = data.words();
        let (length, blocks) = (words.len(), data.scales.len());
        let codes = TensorData::new(words, [length]);
        let scales = TensorData::new(data.scales, [blocks]);
        Self {
            codes: Tensor::from_data(codes, (device, DType::I32)),
            scales: Tensor::from_data(scales, (device, DType::F32)),
            shape,
            map,
        }
    }

    fn to_host(&self) -> EightBitData {
        let words = self.codes.clone().into_data();
        let words = words.as_slice().expect("codes are made as `i32`");
        let scales = self.scales.clone().try_into_vec_as::<f32>();
        let scales = scales.expect("scales are made as `f32`");
        EightBitData::from_words(words, scales, self.shape.num_elements())
    }
}

const SCALES: &str = "scales";

/// A moment in 8 bits is a tensor of `u8` or, with the signed map, `i8`, and the scales under the
/// same name with `.scales`. The shape has one dimension more than the parameter, of one element:
/// Burn's own optimizers would take the codes for numbers, and refuse the rank.
impl<const D: usize> Field for Moment<D> {
    fn flatten(&self, name: &str, out: &mut StateSink) {
        match self {
            Self::Float(floats) => floats.flatten(name, out),
            Self::EightBit(blocks) => {
                let EightBitData { codes, scales } = blocks.to_host();
                let dtype = match blocks.map {
                    DynamicMap::Signed => DType::I8,
                    DynamicMap::Unsigned => DType::U8,
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
        let data = source.take_tensor("", name)?;
        let map = match data.dtype() {
            DType::I8 => DynamicMap::Signed,
            DType::U8 => DynamicMap::Unsigned,
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
        let scales = source.take_tensor(name, SCALES)?.try_into_vec().ok()?;
        if scales.len() != blocks(shape.num_elements()) {
            return None;
        }
        let data = EightBitData {
            codes: codes.to_vec(),
            scales,
        };
        debug_assert_eq!(data.codes.len(), shape.num_elements());
        Some(Self::EightBit(EightBit::new(data, shape, map, device)))
    }
}

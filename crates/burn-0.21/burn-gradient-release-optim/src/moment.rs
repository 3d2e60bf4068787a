//! A state of an optimizer, in as many bits as was asked for.

use burn::{
    record::{PrecisionSettings, Record},
    tensor::{
        Bytes, DType, Element, Int, Shape, Tensor, TensorData, TensorMetadata, TensorPrimitive,
        backend::Backend,
        ops::{FloatTensor, IntTensor},
    },
};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

use lean_arithmetic::optim::{BLOCK, Kind, Noise, pack, unpack, words};

/// Storage of a state in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Floats of this type.
    Float(DType),
    /// 8 bits a number, in blocks of 128 with a scale each.
    EightBit(Kind),
}

/// A state of an optimizer of the parameter's shape: a moment, a velocity, a sum of squares.
///
/// Saved as floats it is Burn's record of a tensor, in every format of file. Saved in 8 bits, one
/// loads into an optimizer with 32 bits, and the other way round: the optimizer brings it into its
/// own format in the next step.
#[derive(Clone, Debug)]
pub enum Moment<B: Backend> {
    /// Floats.
    Float(FloatTensor<B>),
    /// 8 bits a number.
    EightBit(EightBit<B>),
}

/// Numbers in 8 bits, as powers of their codes: a signed number is `sign(q) * (q / 127 * r)^2` and
/// one that is never negative `(q / 255 * r)^4`, with a code `q` of 8 bits and a scale `r` in 32 for
/// 128 numbers.
#[derive(Clone, Debug)]
pub struct EightBit<B: Backend> {
    /// The blocks of 128 numbers, 33 words each: the codes, four to an `i32`, from the lowest byte
    /// on, and the bits of the scale.
    pub words: IntTensor<B>,
    /// The shape of the parameter.
    pub shape: Shape,
    /// Whether the numbers have signs.
    pub kind: Kind,
}

impl<B: Backend> Moment<B> {
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

    /// The device of the tensor.
    pub fn device(&self) -> B::Device {
        match self {
            Self::Float(floats) => B::float_device(floats),
            Self::EightBit(blocks) => B::int_device(&blocks.words),
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
    pub fn to_tensor<const D: usize>(&self) -> Tensor<B, D> {
        match self {
            Self::Float(floats) => from_float(floats.clone()),
            Self::EightBit(blocks) => {
                let device = B::int_device(&blocks.words);
                let numbers = blocks.shape.num_elements();
                let numbers = blocks.kind.decode(&blocks.to_host(), numbers);
                let data = TensorData::new(numbers, blocks.shape.clone());
                Tensor::from_data(data, (&device, DType::F32))
            }
        }
    }

    /// A state that holds these numbers in this format.
    ///
    /// Into 8 bits they go by way of the host, and are rounded to one of the two codes beside them.
    pub fn from_tensor<const D: usize>(tensor: Tensor<B, D>, format: Format) -> Self {
        Self::rounded(tensor, format, None)
    }

    /// The same, rounded to 8 bits with noise.
    pub(crate) fn rounded<const D: usize>(
        tensor: Tensor<B, D>,
        format: Format,
        noise: Option<Noise>,
    ) -> Self {
        match format {
            Format::Float(dtype) => Self::Float(tensor.cast(dtype).into_primitive().tensor()),
            Format::EightBit(kind) => {
                let (device, shape) = (tensor.device(), tensor.shape());
                let numbers = tensor.into_data().convert::<f32>();
                let numbers = numbers.as_slice::<f32>().expect("they were converted");
                let words = kind.encode(numbers, noise);
                Self::EightBit(EightBit::new(words, shape, kind, &device))
            }
        }
    }

    pub(crate) fn into_format<const D: usize>(self, format: Format) -> Self {
        if self.format() == format {
            self
        } else {
            Self::from_tensor(self.to_tensor::<D>(), format)
        }
    }

    pub(crate) fn map<C: Backend>(
        self,
        float: &mut impl FnMut(FloatTensor<B>) -> FloatTensor<C>,
        int: &mut impl FnMut(IntTensor<B>) -> IntTensor<C>,
    ) -> Moment<C> {
        match self {
            Self::Float(floats) => Moment::Float(float(floats)),
            Self::EightBit(EightBit { words, shape, kind }) => Moment::EightBit(EightBit {
                words: int(words),
                shape,
                kind,
            }),
        }
    }

    pub(crate) fn on_device(self, device: &B::Device) -> Self {
        self.map(
            &mut |floats| B::float_to_device(floats, device),
            &mut |codes| B::int_to_device(codes, device),
        )
    }
}

pub(crate) fn from_float<B: Backend, const D: usize>(tensor: FloatTensor<B>) -> Tensor<B, D> {
    Tensor::from_primitive(TensorPrimitive::Float(tensor))
}

/// The type that arithmetic on a type is done in.
pub(crate) fn wide(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        dtype => dtype,
    }
}

impl<B: Backend> EightBit<B> {
    fn new(words: Vec<i32>, shape: Shape, kind: Kind, device: &B::Device) -> Self {
        let length = words.len();
        let words = TensorData::new(words, [length]);
        let words = Tensor::<B, 1, Int>::from_data(words, (device, DType::I32));
        Self {
            words: words.into_primitive(),
            shape,
            kind,
        }
    }

    fn to_host(&self) -> Vec<i32> {
        let words = Tensor::<B, 1, Int>::from_primitive(self.words.clone()).into_data();
        words.to_vec().expect("they are made as `i32`")
    }
}

/// A [`Moment`] as it is saved: Burn's data of a tensor.
///
/// In 8 bits its type is `i8` with signs and `u8` without, and its bytes are the codes, followed by
/// the scales. Its shape has one dimension more than the parameter, of one element: Burn's own
/// optimizers would take the codes for numbers, and refuse the rank.
#[derive(Clone, Debug)]
pub struct MomentItem(TensorData);

impl Serialize for MomentItem {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for MomentItem {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let data = TensorData::deserialize(deserializer)?;
        let numbers = data.shape.num_elements();
        let found = data.bytes.len();
        let (size, what) = match data.dtype {
            DType::U8 | DType::I8 => (numbers + 4 * numbers.div_ceil(BLOCK), "8 bits"),
            dtype if dtype.is_float() => (numbers * dtype.size(), "floats"),
            dtype => {
                let message =
                    format!("the state of an optimizer is floats or 8 bits, not {dtype:?}");
                return Err(D::Error::custom(message));
            }
        };
        if found != size {
            let message = format!("{numbers} numbers in {what} are {size} bytes, not {found}");
            return Err(D::Error::custom(message));
        }
        Ok(Self(data))
    }
}

impl<B: Backend> Record<B> for Moment<B> {
    type Item<S: PrecisionSettings> = MomentItem;

    fn into_item<S: PrecisionSettings>(self) -> MomentItem {
        MomentItem(match self {
            Self::Float(floats) => {
                let shape = floats.shape();
                let count = shape.num_elements();
                let flat = B::float_reshape(floats, Shape::new([count]));
                let mut data = from_float::<B, 1>(flat)
                    .into_data()
                    .convert::<S::FloatElem>();
                data.shape = shape;
                data
            }
            Self::EightBit(blocks) => {
                let (mut bytes, scales) = unpack(&blocks.to_host(), blocks.shape.num_elements());
                bytes.extend(scales.iter().flat_map(|scale| scale.to_le_bytes()));
                let dtype = match blocks.kind {
                    Kind::Signed => DType::I8,
                    Kind::Positive => DType::U8,
                };
                let mut shape = blocks.shape;
                shape.push(1);
                TensorData {
                    bytes: Bytes::from_bytes_vec(bytes),
                    shape,
                    dtype,
                }
            }
        })
    }

    fn from_item<S: PrecisionSettings>(MomentItem(data): MomentItem, device: &B::Device) -> Self {
        let kind = match data.dtype {
            DType::I8 => Kind::Signed,
            DType::U8 => Kind::Positive,
            _ => {
                let shape = data.shape.clone();
                let flat = TensorData {
                    shape: Shape::new([shape.num_elements()]),
                    ..data
                };
                // In the type that it was saved in, if the device has that: the next step brings it
                // into its own.
                let dtype = match B::supports_dtype(device, flat.dtype) {
                    true => flat.dtype,
                    false => B::FloatElem::dtype(),
                };
                let flat = Tensor::<B, 1>::from_data(flat.convert_dtype(dtype), (device, dtype));
                return Self::Float(B::float_reshape(flat.into_primitive().tensor(), shape));
            }
        };
        let mut shape = data.shape;
        shape.remove(shape.num_dims() - 1);
        let (codes, scales) = data.bytes.split_at(shape.num_elements());
        let scales = scales.as_chunks().0.iter().copied();
        let scales: Vec<f32> = scales.map(f32::from_le_bytes).collect();
        let words = pack(codes, &scales);
        Self::EightBit(EightBit::new(words, shape, kind, device))
    }
}

//! Encodings of positions, for inputs in half precision, too.
//!
//! Burn's add a table in f32 to their input, or multiply with it, and take inputs in f32 only.

use burn::module::Module;
use burn::tensor::{Device, Tensor};

use super::configuration::configuration;
use crate::operations::rotary_encoding;
use crate::wide::widened;

configuration! {
    RotaryEncodingConfig(burn::nn::RotaryEncodingConfig) {
        new(max_sequence_length: usize, d_model: usize),
        with_theta: f32,
    }
    /// # Panics
    ///
    /// If `d_model` is odd, or `theta` not positive.
    init(device: &Device) -> RotaryEncoding
}

impl RotaryEncodingConfig {
    /// An encoding whose frequencies are changed by a function.
    ///
    /// # Panics
    ///
    /// If `d_model` is odd, or `theta` not positive.
    pub fn init_with_frequency_scaling(
        &self,
        scaling: impl Fn(Tensor<1>) -> Tensor<1>,
        device: &Device,
    ) -> RotaryEncoding {
        let plain = self.0.init_with_frequency_scaling(scaling, device);
        plain.into()
    }
}

/// Burn's [`RotaryEncoding`](burn::nn::RotaryEncoding) as [one operation](rotary_encoding), computed
/// in f32 at least and rounded once.
///
/// ```
/// use burn::tensor::{DType, Device, Tensor};
/// use burn_lean::operations::nn::RotaryEncodingConfig;
///
/// let device = Device::flex();
/// let rotary = RotaryEncodingConfig::new(16, 8).init(&device);
/// let query = Tensor::<4>::ones([2, 4, 16, 8], &device).cast(DType::BF16);
/// assert_eq!(rotary.forward(query).dtype(), DType::BF16);
/// ```
#[derive(Module, Debug)]
pub struct RotaryEncoding {
    plain: burn::nn::RotaryEncoding,
}

impl RotaryEncoding {
    /// Rotates the features of each position, from position 0 on.
    ///
    /// # Shapes
    ///
    /// `[..., time, d_model]`, and the output is as the input.
    ///
    /// # Panics
    ///
    /// If the shape does not fit, or the sequence is longer than the longest.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        self.apply(x, 0)
    }

    /// The same, from position `start` on.
    ///
    /// # Panics
    ///
    /// As [`forward`](Self::forward).
    pub fn apply<const D: usize>(&self, x: Tensor<D>, start: usize) -> Tensor<D> {
        assert!(
            D >= 2,
            "the input of a RotaryEncoding is `[..., time, d_model]`"
        );
        let time = x.dims()[D - 2];
        let frequencies = self.plain.freq_complex.clone();
        rotary_encoding(x, frequencies.narrow(0, start, time))
    }

    /// Shifts the table, so that its first position is `start`.
    ///
    /// # Panics
    ///
    /// If `start` is not beyond the table's first position.
    pub fn shift(&mut self, start: usize) {
        self.plain.shift(start);
    }

    /// Shifts the table back to position 0.
    pub fn reset(&mut self) {
        self.plain.reset();
    }
}

configuration! {
    PositionalEncodingConfig(burn::nn::PositionalEncodingConfig) {
        new(d_model: usize),
        with_max_sequence_size: usize,
        with_max_timescale: usize,
    }
    /// # Panics
    ///
    /// If `d_model` is odd, or the longest wavelength shorter than the longest sequence.
    init(device: &Device) -> PositionalEncoding
}

/// Burn's [`PositionalEncoding`](burn::nn::PositionalEncoding), computed in f32 at least and rounded
/// once.
#[derive(Module, Debug)]
pub struct PositionalEncoding {
    plain: burn::nn::PositionalEncoding,
}

impl PositionalEncoding {
    /// Adds its sinusoids to each position.
    ///
    /// # Shapes
    ///
    /// `[batch, time, d_model]`, and the output is as the input.
    ///
    /// # Panics
    ///
    /// If the shape does not fit, or the sequence is longer than the longest.
    pub fn forward(&self, input: Tensor<3>) -> Tensor<3> {
        let dtype = input.dtype();
        self.plain.forward(widened(input)).cast(dtype)
    }
}

macro_rules! wraps {
    ($($name:ident),+) => {$(
        impl From<burn::nn::$name> for $name {
            fn from(plain: burn::nn::$name) -> Self {
                Self { plain }
            }
        }

        /// The fields are those of Burn's.
        impl std::ops::Deref for $name {
            type Target = burn::nn::$name;

            fn deref(&self) -> &Self::Target {
                &self.plain
            }
        }

        impl From<$name> for burn::nn::$name {
            fn from(wrapped: $name) -> Self {
                wrapped.plain
            }
        }
    )+};
}

wraps!(RotaryEncoding, PositionalEncoding);

//! Burn's [`nn::norm`](burn::nn::norm), with normalizations that keep their input alone.

pub use burn::nn::norm::*;

use burn::module::{Content, DisplaySettings, Module, ModuleDisplay, Param};
use burn::tensor::{Device, Tensor};

use super::configuration::configuration;
use super::same_fields::same_fields;
use crate::operations::{group_norm, layer_norm, rms_norm};

configuration! {
    LayerNormConfig(burn::nn::LayerNormConfig) {
        new(d_model: usize),
        with_epsilon: f64,
        with_bias: bool,
    }
    init(device: &Device) -> LayerNorm
}

/// An `f64` under a name that is not primitive, so that visitors enter the field, which they do not in
/// Burn's modules. [`MixedPrecision`](crate::MixedPrecision) tells by that which normalizations take
/// an input in half precision with gains in f32.
pub type Epsilon = f64;

/// Burn's [`LayerNorm`](burn::nn::LayerNorm) as [one operation](layer_norm).
#[derive(Module, Debug)]
pub struct LayerNorm {
    /// `[d_model]`
    pub gamma: Param<Tensor<1>>,
    /// `[d_model]`
    pub beta: Option<Param<Tensor<1>>>,
    /// Added to the variance for stability.
    pub epsilon: Epsilon,
}

impl LayerNorm {
    /// Normalizes the last axis.
    ///
    /// # Shapes
    ///
    /// `[..., d_model]`, and the output is as the input.
    ///
    /// # Panics
    ///
    /// If the last axis of `input` is not `d_model`.
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        let beta = self.beta.as_ref().map(Param::val);
        layer_norm(input, self.gamma.val(), beta, self.epsilon)
    }
}

/// # Panics
///
/// If the module does not show its epsilon: a version of Burn that is not 0.22.
impl From<burn::nn::LayerNorm> for LayerNorm {
    fn from(plain: burn::nn::LayerNorm) -> Self {
        let epsilon = shown_epsilon(&plain)
            .expect("Burn's LayerNorm shows its epsilon, which is the only way to it");
        Self {
            gamma: plain.gamma,
            beta: plain.beta,
            epsilon,
        }
    }
}

/// The epsilon is a private field, and shown as the shortest number that reads as the same.
fn shown_epsilon(plain: &burn::nn::LayerNorm) -> Option<f64> {
    let content = plain.custom_content(Content::new(DisplaySettings::new()))?;
    let shown = |attribute: &&burn::module::Attribute| attribute.name == "epsilon";
    content.attributes.iter().find(shown)?.value.parse().ok()
}

impl From<LayerNorm> for burn::nn::LayerNorm {
    fn from(lean: LayerNorm) -> Self {
        let [d_model] = lean.gamma.shape().dims();
        let config = burn::nn::LayerNormConfig::new(d_model).with_epsilon(lean.epsilon);
        // One with parameters that are replaced at once, and never made.
        let mut plain = config.init(&Device::default());
        plain.gamma = lean.gamma;
        plain.beta = lean.beta;
        plain
    }
}

configuration! {
    RmsNormConfig(burn::nn::RmsNormConfig) {
        new(d_model: usize),
        with_epsilon: f64,
    }
    /// # Panics
    ///
    /// If epsilon is not positive.
    init(device: &Device) -> RmsNorm
}

/// Burn's [`RmsNorm`](burn::nn::RmsNorm) as [one operation](rms_norm).
#[derive(Module, Debug)]
pub struct RmsNorm {
    /// `[d_model]`
    pub gamma: Param<Tensor<1>>,
    /// Is added to the mean square.
    pub epsilon: Epsilon,
}

same_fields!(RmsNorm, burn::nn::RmsNorm, { gamma, epsilon });

impl RmsNorm {
    /// Normalizes the last axis.
    ///
    /// # Shapes
    ///
    /// `[..., d_model]`, and the output is as the input.
    ///
    /// # Panics
    ///
    /// If the last axis of `x` is not `d_model`.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        rms_norm(x, self.gamma.val(), self.epsilon)
    }
}

configuration! {
    GroupNormConfig(burn::nn::GroupNormConfig) {
        new(num_groups: usize, num_channels: usize),
        with_epsilon: f64,
        with_affine: bool,
    }
    /// # Panics
    ///
    /// If the channels are no multiple of the groups.
    init(device: &Device) -> GroupNorm
}

/// Burn's [`GroupNorm`](burn::nn::GroupNorm) as [one operation](group_norm).
#[derive(Module, Debug)]
pub struct GroupNorm {
    /// `[num_channels]`
    pub gamma: Option<Param<Tensor<1>>>,
    /// `[num_channels]`
    pub beta: Option<Param<Tensor<1>>>,
    /// The number of groups.
    pub num_groups: usize,
    /// The number of channels.
    pub num_channels: usize,
    /// Added to the variance for stability.
    pub epsilon: Epsilon,
    /// Whether gamma and beta are used.
    pub affine: bool,
}

same_fields!(GroupNorm, burn::nn::GroupNorm, {
    gamma,
    beta,
    num_groups,
    num_channels,
    epsilon,
    affine,
});

impl GroupNorm {
    /// Normalizes each group of channels.
    ///
    /// # Shapes
    ///
    /// `[batch, num_channels, ...]`, and the output is as the input.
    ///
    /// # Panics
    ///
    /// If the second axis of `input` is not `num_channels`, or the layer is affine and lacks a
    /// parameter.
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        assert_eq!(
            input.dims()[1],
            self.num_channels,
            "a GroupNorm has an input of `[batch, num_channels, ...]`"
        );
        let affine = |param: &Option<Param<Tensor<1>>>| {
            let param = param.as_ref().filter(|_| self.affine);
            assert_eq!(
                param.is_some(),
                self.affine,
                "an affine GroupNorm has gamma and beta"
            );
            param.map(Param::val)
        };
        let (gamma, beta) = (affine(&self.gamma), affine(&self.beta));
        group_norm(input, gamma, beta, self.num_groups, self.epsilon)
    }
}

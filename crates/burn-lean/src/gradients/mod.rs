//! Gradient transform: the scale of a loss, norms and clipping, between a complete gradient and its
//! step.

mod clipping;
mod in_f32;
mod norm;
mod plain;
mod record;
mod scaler;
mod transform;

pub use clipping::{AdaptiveClippingConfig, AutoClipConfig, NormClipping, ZClipConfig};
pub(crate) use in_f32::asked;
#[cfg(feature = "optim")]
pub(crate) use in_f32::takes_f32_gradients;
pub use plain::{clip_grad_norm, try_clip_grad_norm};
pub use record::GradientRecord;
pub use scaler::{LossScaler, LossScalerConfig};
pub use transform::GradNorm;
pub(crate) use transform::{GradientTransform, StepGradients, Stop};

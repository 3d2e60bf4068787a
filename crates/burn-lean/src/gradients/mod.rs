//! Gradient transform: the scale of a loss, norms and clipping, between a complete gradient and its
//! step.

mod asked;
mod clipping;
mod norm;
mod pipeline;
mod plain;
mod record;
mod scaler;

#[cfg(feature = "scratch")]
pub(crate) use asked::is_question;
pub(crate) use asked::{Answer, asked};
#[cfg(feature = "optim")]
pub(crate) use asked::{answers, is_looked_for, is_only_asked, takes_f32_gradients};
pub use clipping::{AdaptiveClippingConfig, AutoClipConfig, NormClipping, ZClipConfig};
pub use lean_arithmetic::norm::GradNorm;
pub(crate) use pipeline::{Pipeline, StepGradients, Transformed};
pub use plain::{clip_grad_norm, try_clip_grad_norm};
pub use record::GradientRecord;
#[cfg(any(feature = "data-parallel", feature = "train"))]
pub(crate) use record::PATH_IN_CHECKPOINT;
pub use scaler::{LossScaler, LossScalerConfig};

//! Gradient release for Burn 0.21: the optimizer steps inside the backward pass.
//!
//! [`GradientRelease`] decorates an autodiff backend, [`ReleaseOptimizer`] wraps an optimizer of
//! Burn. Once a model is [armed](ReleaseOptimizer::arm), each of its parameters is stepped inside
//! `backward` the moment its gradient is complete, and the gradient is freed: at no time do all of
//! them exist. The weights are those of plain Burn, bit for bit; `docs/burn-0.21/reference.md` in the
//! repository lists the exceptions.
//!
//! ```
//! use burn::{
//!     backend::{Autodiff, Flex},
//!     nn::{Linear, LinearConfig},
//!     optim::{AdamConfig, GradientsParams, Optimizer},
//!     tensor::{Distribution, Tensor},
//! };
//! use burn_gradient_release::{GradientRelease, WithGradientRelease};
//!
//! type B = GradientRelease<Autodiff<Flex>>; // was: Autodiff<Flex>
//!
//! let device = Default::default();
//! let mut model: Linear<B> = LinearConfig::new(16, 4).init(&device);
//! let mut optim = AdamConfig::new().init().with_gradient_release();
//!
//! for _ in 0..3 {
//!     let lr = 1e-3;
//!     model = optim.arm(lr, model); // the one new line of the loop
//!     let batch = Tensor::<B, 2>::random([8, 16], Distribution::Default, &device);
//!     let loss = model.forward(batch).powi_scalar(2).mean();
//!     let grads = GradientsParams::from_grads(loss.backward(), &model);
//!     model = optim.step(lr, model, grads);
//! }
//! ```
//!
//! Start with [`ReleaseOptimizer`]; [`ReleaseAccumulator`] is for micro-batches, [`StepReport`]
//! says what a step did, [`ReleaseError`] what is refused. For burn-train's `Learner` there is the
//! crate `burn-gradient-release-train`.

#![forbid(unsafe_code)]

mod backend;
mod backward;
#[cfg(feature = "distributed")]
mod distributed;
mod error;
mod fork;
mod groups;
mod lower;
mod ops;
mod optimizer;
mod planner;
mod slot;
mod subgraph;
mod tape;
mod tensor;
mod util;

pub use backend::{GradientRelease, ReleaseBackend};
pub use error::{Refused, ReleaseError};
pub use groups::{
    Either, ModuleLearningRates, ModuleLrScheduler, ModuleLrSchedulerRecord, ParamGroup,
    ParamGroupError,
};
pub use optimizer::{
    AdaptiveClippingConfig, AutoClipConfig, GradNorm, GradientRecord, GroupOptions, LossScaler,
    LossScalerConfig, LossScalerRecord, NormClipping, Outcome, ReleaseAccumulator,
    ReleaseOptimizer, StepReport, TwoPasses, WithGradientRelease, ZClipConfig,
};
pub use planner::Recompute;
pub use slot::reduction::{GradientReduction, PendingGradient, Recipients, ReductionError};
pub use tensor::{ReleaseTensor, scope::checkpoint};
pub use util::inner::AutodiffInner;
pub use util::progress::Recomputed;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

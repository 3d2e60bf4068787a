//! Gradient release and activation checkpointing, for Burn 0.22.
//!
//! [`ReleaseOptimizer::backward`] runs backward, steps each parameter when its gradient is complete,
//! and frees that gradient. So the gradients of a model never exist all at once. The model goes in by
//! value and comes out with its new weights, which are those of plain Burn, bit for bit. [`checkpoint`]
//! runs a part of a model and keeps no activations: backward computes them again. It also works without
//! gradient release.
//!
//! ```
//! use burn::nn::{Linear, LinearConfig};
//! use burn::optim::AdamWConfig;
//! use burn::tensor::{Device, Distribution, Tensor};
//! use burn_lean::WithGradientRelease;
//!
//! let device = Device::flex().autodiff();
//! let mut model: Linear = LinearConfig::new(16, 4).init(&device);
//! let mut optim = AdamWConfig::new().init().with_gradient_release();
//!
//! for _ in 0..3 {
//!     let batch = Tensor::<2>::random([8, 16], Distribution::Default, &device);
//!     let loss = model.forward(batch).square().mean();
//!     model = optim.backward(1e-3, loss, model);
//! }
//! ```
//!
//! # By task
//!
//! `docs` in the repository has a page for most tasks. Each call that can be refused has a `try_` version,
//! which returns a [`ReleaseError`].
//!
//! | task | items |
//! |---|---|
//! | gradient release in a loop | [`WithGradientRelease`], [`ReleaseOptimizer`] |
//! | several optimizers or models under one loss | [`backward()`] |
//! | weights used through other functions | [`EarlyGradients`] |
//! | what a step did | [`StepReport`], [`Outcome`] |
//! | back to plain Burn | [`ReleaseOptimizer::into_optimizer`], [`ReleaseOptimizer::to_record`] |
//! | recompute | [`checkpoint`], [`checkpoint_each`], [`checkpoint_encoder`], [`checkpoint_decoder`], [`checkpoint_chunks`], [`checkpoint_steps`], [`Budget`] |
//! | scopes over your types | [`Tensors`], [`MapTensor`], [`EncoderLayers`], [`DecoderLayers`] |
//! | weights that visit a device | [`checkpoint_on`] |
//! | accumulate | [`accumulate`](ReleaseOptimizer::accumulate), [`has_sums`](ReleaseOptimizer::has_sums), [`take_sums`](ReleaseOptimizer::take_sums) |
//! | clip by the global norm | [`two_passes`](ReleaseOptimizer::two_passes), [`NormClipping`]; in plain Burn [`clip_grad_norm`] |
//! | loss scaling | [`LossScalerConfig`], [`LossScaler`] |
//! | groups | [`no_decay`], [`check_group`] |
//! | mixed precision | [`MixedPrecision`]; feature `optim`: `optim::InFiveBytes` |
//! | operations that save fewer tensors | feature `operations`: `operations::nn`, `operations::Attention`, `operations::linear_cross_entropy` |
//! | LoRA | feature `operations`: `operations::Nf4`; feature `peft`: `save_adapters`, `load_adapters` |
//! | fused and small optimizers | feature `optim`: `optim::InOnePass`, `optim::EightBitMoments`, `optim::Bf16Weights` |
//! | states in host memory, sums in the moments | feature `optim`: `optim::Offload`, `optim::AccumulateInMoments` |
//! | weights and states in a file | feature `scratch`: `Scratch`, `optim::InScratch` |
//! | weights of the Hub | feature `safetensors`: `safetensors` |
//! | the Learner | feature `train`: `train::output`, `train::GradientReleaseStrategy`, `train::release_learner` |
//! | several processes | feature `data-parallel`: `DataParallel`, `Replicas`; feature `mpi`: `Mpi` |
//! | another all-reduce | [`GradientReduction`], [`PendingGradient`] |
//! | memory over time | feature `timeline`: `timeline` |
//! | less reserved memory on a GPU | feature `cube`: `reuse_device_memory` |
//!
//! The feature `tracing` emits an event for each step's report. Backends have the features of `burn` of
//! the same names: `flex`, a default, with threads by `rayon`; `ndarray`, `wgpu`, `cuda`, `fusion`; and
//! `cube`, for other devices of CubeCL.
//!
//! # Coming from PyTorch
//!
//! An optimizer in a backward hook is [`WithGradientRelease`]. `torch.utils.checkpoint` is [`checkpoint`],
//! `GradScaler` is [`LossScaler`], `clip_grad_norm_` is [`NormClipping::GlobalNorm`], `autocast` is
//! [`MixedPrecision`] (a cast of the model), `DistributedDataParallel` is `DataParallel`, and
//! `ZeroRedundancyOptimizer` is `DataParallel::with_sharded_optimizer`.

#![cfg_attr(docsrs, feature(doc_cfg))]
// But in `operations::flex::product`.
#![deny(unsafe_code)]

#[cfg(not(any(feature = "flex", feature = "ndarray", feature = "cube")))]
compile_error!(
    "burn-lean needs the feature of a backend: `flex`, `ndarray`, `wgpu`, `cuda` or `cube`"
);

mod backend;
mod backward;
#[cfg(feature = "data-parallel")]
mod data_parallel;
#[cfg(feature = "cube")]
mod device_memory;
mod early;
mod error;
mod gradients;
mod groups;
mod lock;
mod marks;
mod mixed_precision;
#[cfg(feature = "operations")]
pub mod operations;
#[cfg(feature = "optim")]
pub mod optim;
mod optimizer;
mod path;
#[cfg(feature = "peft")]
mod peft;
mod recompute;
mod reduction;
#[cfg(feature = "safetensors")]
pub mod safetensors;
#[cfg(feature = "scratch")]
mod scratch;
#[cfg(all(feature = "scratch", not(target_os = "linux")))]
compile_error!(
    "the feature `scratch` is for Linux: its files are allocated, mapped and let go by calls of Linux"
);
mod tape;
mod tensors;
#[cfg(feature = "timeline")]
pub mod timeline;
#[cfg(feature = "train")]
pub mod train;
mod wide;

#[cfg(feature = "data-parallel")]
pub use data_parallel::{DataParallel, SaveStatesError};
#[cfg(feature = "cube")]
pub use device_memory::{DeviceMemoryInUse, reuse_device_memory};
pub use early::{EarlyGradient, EarlyGradients};
pub use error::{Refused, ReleaseError};
pub use gradients::{
    AdaptiveClippingConfig, AutoClipConfig, GradNorm, GradientRecord, LossScaler, LossScalerConfig,
    NormClipping, ZClipConfig, clip_grad_norm, try_clip_grad_norm,
};
pub use groups::{check_group, no_decay};
#[cfg(feature = "mpi")]
pub use lean_replicas::Mpi;
#[cfg(feature = "data-parallel")]
pub use lean_replicas::{Alone, CommunicationError, Communicator, ReplicaError, Replicas, Threads};
pub use mixed_precision::{CastError, MixedPrecision};
pub use optimizer::{
    Accumulating, IntoModuleOptimizer, Measuring, Outcome, Part, RefusedPass, ReleaseOptimizer,
    StepReport, Stepping, WithGradientRelease, backward, try_backward,
};
#[cfg(feature = "peft")]
pub use peft::{PeftError, load_adapters, save_adapters};
pub use recompute::{
    Budget, BudgetPass, DecoderLayers, DecoderMasks, EncoderLayers, Planned, TwoPasses, checkpoint,
    checkpoint_chunks, checkpoint_decoder, checkpoint_each, checkpoint_encoder, checkpoint_on,
    checkpoint_steps,
};
pub use reduction::{GradientReduction, PendingGradient, Recipients, ReductionError};
#[cfg(feature = "scratch")]
pub use scratch::{Scratch, ScratchError, ScratchUsage};
pub use tensors::{MapTensor, Tensors};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// The code of the docs for Burn 0.22, whose language is `rust` there. That of the language `rs` is
/// for Burn 0.21: `tests` compiles it.
#[cfg(all(doctest, feature = "operations", feature = "optim", feature = "train"))]
mod pages {
    #[doc = include_str!("../../../README.md")]
    struct FrontPage;

    #[doc = include_str!("../../../examples/language-model/README.md")]
    struct LanguageModel;

    #[doc = include_str!("../../../docs/lora.md")]
    struct Lora;

    #[doc = include_str!("../../../docs/start.md")]
    struct Start;
}

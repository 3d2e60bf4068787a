//! Optimizers in one pass over memory, and small ones.
//!
//! - Burn's optimizers [in one pass](InOnePass): the same weights and records, without temporaries.
//! - Optimizers that Burn 0.22 lacks: [`StableAdamW`], [`RAdam`], [`Came`], [`AdaLomo`].
//! - [Moments in 8 bits](EightBitMoments) or [in bf16](Lean::with_bf16_moments).
//! - [Accumulation in the moments](AccumulateInMoments), without a sum of gradients.
//! - [Weights in bf16](Bf16Weights), stepped in 32 bits, with [24 of them kept](MasterWeights24);
//!   with moments in 8 bits [five bytes a parameter](InFiveBytes).
//! - [States in host memory](Offload), or [in a file](InScratch), with the weights.
//!
//! All are [`Optimizer`]s of Burn: [`init`](Lean::init) makes a [`ModuleOptimizer`], with or
//! without [gradient release](crate::WithGradientRelease), and each may step a group of parameters.

mod accumulation;
mod adalomo;
mod adam;
mod adamw;
mod adaptive;
mod bf16;
mod came;
#[cfg(feature = "cube")]
mod cube;
mod factored;
#[cfg(feature = "flex")]
mod flex;
mod in_f32;
#[cfg(feature = "scratch")]
mod in_scratch;
mod lion;
mod moment;
#[cfg(feature = "flex")]
mod offloaded;
mod operands;
mod radam;
mod record;
mod rounding;
mod settings;
mod sgd;
mod stable_adamw;
mod step;

use burn::module::{Module, Param};
use burn::optim::{ModuleOptimizer, Optimizer};
use burn::tensor::{Shape, Tensor};
use lean_arithmetic::optim::Moments;

pub use accumulation::{AccumulateInMoments, AccumulatingInMoments, AccumulatingState};
pub use adalomo::{AdaLomo, AdaLomoConfig, AdaLomoState};
pub use adam::{Adam, AdamState};
pub use adamw::{AdamW, AdamWState};
pub use adaptive::{Adaptive, AdaptiveMomentumState, AdaptiveState};
pub use bf16::{Bf16State, Bf16Weights, InFiveBytes};
pub use came::{Came, CameConfig, CameState};
pub use factored::Factored;
#[cfg(feature = "scratch")]
pub use in_scratch::{InScratch, Scratched, ScratchedState};
pub use lean_arithmetic::optim::{CannotAccumulate, Kind, MomentDecay};
pub use lion::{Lion, LionState};
pub use moment::{EightBit, Format, Moment};
#[cfg(feature = "flex")]
pub use offloaded::{Offload, Offloaded, OffloadedState};
pub use radam::{RAdam, RAdamConfig, RAdamState};
pub use rounding::{LowBits, MasterWeights, MasterWeights24, Rounding, Stochastic};
pub use sgd::{MomentumState, Sgd, SgdState};
pub use stable_adamw::{StableAdamW, StableAdamWConfig, StableAdamWState};

use crate::path::{Path, PathVisitor, WithPaths, is_embedding};
use settings::Settings;

/// A configuration of Burn whose optimizer is here, in one pass over memory.
pub trait InOnePass {
    /// The optimizer in one pass.
    type Optimizer: Lean;

    /// The same optimizer, in one pass over weight, gradient and states on Flex and on the Cube
    /// backend (wgpu, CUDA), fused or not. On other backends, Burn's operations compute the step.
    ///
    /// Its records are Burn's. So are its weights and states: bit for bit on Flex and on NdArray,
    /// up to rounding on the Cube backend. Weights in half precision are rounded after each
    /// operation, as in Burn: squares overflow in `f16`, and second moments do not change in
    /// `bf16`. Keep such weights in 32 bits, or use [`Bf16Weights`].
    ///
    /// The optimizer clips as its configuration says, also if it steps a group. Burn's
    /// [`ModuleOptimizer`] does not know of this clipping. Clipping by value is part of the pass.
    ///
    /// ```
    /// use burn::optim::AdamWConfig;
    /// use burn_lean::WithGradientRelease;
    /// use burn_lean::optim::{InOnePass, Lean};
    ///
    /// let adamw = AdamWConfig::new().with_weight_decay(0.05).in_one_pass();
    /// let optim = adamw.init().with_gradient_release();
    /// # let _ = optim;
    /// ```
    ///
    /// # Panics
    ///
    /// If a number of the configuration is not finite, or out of range: a share of one or more, an
    /// epsilon or a weight decay below zero, a threshold of clipping of zero or less (an infinite
    /// one clips nothing). The message names the setting and its value.
    fn in_one_pass(&self) -> Self::Optimizer;
}

/// An optimizer of this module.
pub trait Lean: Optimizer {
    /// The optimizer for all parameters of a module, as the `init` of Burn's configurations makes
    /// it.
    fn init(self) -> ModuleOptimizer {
        ModuleOptimizer::from(self)
    }

    /// Keeps moments in bf16: two bytes a number, rounded to the nearest after each step. A device
    /// without bf16 (WGSL, NdArray) is refused in the first step.
    ///
    /// # Panics
    ///
    /// If a moment keeps more than 0.99 of itself in a step, as AdamW's second does by default: it
    /// would change by less than bf16 can hold, and stand still. Take a `beta_2` of at most 0.99.
    /// The same goes for moments that take in micro-batches with [`MomentDecay::EachStep`], where
    /// they keep all of themselves.
    fn with_bf16_moments(mut self) -> Self {
        self.settings_mut().moments = Moments::expect_bf16(&self.kept_shares());
        self
    }

    /// Decay rate of each moment.
    #[doc(hidden)]
    fn kept_shares(&self) -> Vec<(&'static str, f64)>;

    /// Settings that all optimizers have.
    #[doc(hidden)]
    fn settings_mut(&mut self) -> &mut Settings;
}

/// An optimizer whose moments may be kept in 8 bits.
pub trait EightBitMoments: Lean {
    /// Keeps moments in 8 bits a number: a code `q` of a power, and a scale `r` in 32 bits for 128
    /// numbers.
    ///
    /// - A first moment, a velocity: `sign(q) * (q / 127 * r)^2`.
    /// - A second moment: `(q / 255 * r)^4`, and never zero if it was not.
    ///
    /// As FlashOptim (2026), <https://arxiv.org/abs/2602.23349>, which has a softsign and a root
    /// instead, and Dettmers et al., "8-bit Optimizers via Block-wise Quantization" (2022),
    /// <https://arxiv.org/abs/2110.02861>, which has a table.
    ///
    /// The step itself is computed in 32 bits, with the moments before they are rounded. A second
    /// moment changes by less than the distance of two codes. So it is rounded up or down by a Weyl
    /// sequence at each element, and right on average. The sequence is the same in every run and on
    /// every backend. A moment that is not finite becomes its weight. Parameters of fewer than 4096
    /// elements keep moments of 32 bits, and so do those that have the shape of an embedding's
    /// weight in `model`, as Dettmers et al. recommend. AMSGrad keeps the largest second moment,
    /// even one that was rounded up, so steps become too short: use AMSGrad with 32 bits.
    ///
    /// Records are smaller too, and interchangeable with records in 32 bits. Burn's own optimizer
    /// panics if it loads a record in 8 bits. Flex and the Cube backend (wgpu, CUDA) step with them
    /// in one pass. On other backends the moments are packed and unpacked on the host, which is
    /// slow.
    ///
    /// ```
    /// use burn::nn::{Linear, LinearConfig};
    /// use burn::optim::AdamWConfig;
    /// use burn::tensor::Device;
    /// use burn_lean::optim::{EightBitMoments, InOnePass, Lean};
    ///
    /// let model: Linear = LinearConfig::new(64, 64).init(&Device::flex().autodiff());
    /// let optim = AdamWConfig::new().in_one_pass().with_8_bit_moments(&model).init();
    /// # let _ = optim;
    /// ```
    fn with_8_bit_moments(mut self, model: &impl Module) -> Self {
        let settings = self.settings_mut();
        settings.moments = Moments::EightBit;
        settings.embeddings = embedding_shapes(model).into();
        self
    }
}

fn embedding_shapes(model: &impl Module) -> Vec<Shape> {
    #[derive(Default)]
    struct Embeddings {
        shapes: Vec<Shape>,
    }
    impl PathVisitor for Embeddings {
        fn visit<const D: usize>(&mut self, path: &Path, param: &Param<Tensor<D>>) {
            if is_embedding(path) {
                self.shapes.push(param.lazy_shape());
            }
        }
    }
    let mut embeddings = Embeddings::default();
    model.visit(&mut WithPaths::new(&mut embeddings));
    embeddings.shapes
}

//! The optimizers.

mod adafactor;
mod adagrad;
mod adam;
mod adamw;
mod adan;
mod adaptive;
mod came;
mod factored;
mod lion;
mod radam;
mod rmsprop;
mod sgd;
mod stable_adamw;

use burn::{
    grad_clipping::GradientClipping,
    module::{AutodiffModule, Module, ModuleVisitor, Param},
    optim::{SimpleOptimizer, adaptor::OptimizerAdaptor, decay::WeightDecayConfig},
    tensor::{
        Shape, Tensor,
        backend::{AutodiffBackend, Backend},
    },
};
use lean_arithmetic::optim::{Moments, rules::CoupledDecay};

pub use adafactor::{AdaLomoConfig, Adafactor, AdafactorConfig, AdafactorState};
pub use adagrad::{AdaGrad, AdaGradState, LrDecayState};
pub use adam::{Adam, AdamState};
pub use adamw::{AdamW, AdamWState};
pub use adan::{Adan, AdanState, AdaptiveNesterovMomentumState};
pub use adaptive::{Adaptive, AdaptiveMomentumState, AdaptiveState};
pub use came::{Came, CameConfig, CameState};
pub use factored::Factored;
pub use lion::{Lion, LionConfig, LionState};
pub use radam::{RAdam, RAdamConfig, RAdamState};
pub use rmsprop::{CenteredState, RmsProp, RmsPropMomentumState, RmsPropState, SquareAvgState};
pub use sgd::{MomentumState, Sgd, SgdState};
pub use stable_adamw::{StableAdamW, StableAdamWConfig, StableAdamWState};

use crate::settings::Settings;

/// A configuration of Burn whose optimizer is here, in one pass over memory.
pub trait InOnePass {
    /// The optimizer in one pass.
    type Optimizer: Lean;

    /// The same optimizer in one pass over weight, gradient and states, where the backend has such
    /// a pass, and by Burn's operations elsewhere.
    ///
    /// Its records are Burn's. So are, on Flex, its weights and states, bit for bit; on a GPU they
    /// are up to rounding.
    ///
    /// [`init`](Lean::init) gives the clipping of the configuration to Burn's adaptor, as Burn's
    /// `init` does, for groups of parameters to see. The adaptor clips with temporaries: by norm one
    /// as large as the gradient. `OptimizerAdaptor::from(optimizer)` clips by value in the pass, by norm
    /// as the adaptor, and half precision in f32; but groups neither inherit nor replace that.
    ///
    /// # Panics
    ///
    /// If a number of the configuration is not finite, or out of range: a share of one or more, an
    /// epsilon or a weight decay below zero, a threshold of clipping of zero or less (an infinite
    /// one clips nothing). The message names the setting and its value.
    ///
    /// ```
    /// use burn::{
    ///     backend::{Autodiff, Flex},
    ///     nn::Linear,
    ///     optim::{AdamWConfig, adaptor::OptimizerAdaptor},
    /// };
    /// use burn_gradient_release_optim::{AdamW, InOnePass, Lean};
    ///
    /// type B = Autodiff<Flex>;
    ///
    /// let optim: OptimizerAdaptor<AdamW, Linear<B>, B> =
    ///     AdamWConfig::new().with_weight_decay(0.05).in_one_pass().init();
    /// # let _ = optim;
    /// ```
    fn in_one_pass(&self) -> Self::Optimizer;
}

/// An optimizer of this crate.
pub trait Lean: Clone {
    /// The optimizer for all parameters of a module, as the `init` of Burn's configurations makes
    /// it: clipping is the adaptor's. Without gradient release, that clips in the gradient's type: in
    /// f16, a norm from 256 on overflows, and nothing moves. `OptimizerAdaptor::from` of the optimizer
    /// clips in f32.
    fn init<B, M>(mut self) -> OptimizerAdaptor<Self, M, B>
    where
        B: AutodiffBackend,
        M: AutodiffModule<B>,
        Self: SimpleOptimizer<B::InnerBackend>,
    {
        let clipping = self.settings_mut().clipping.take();
        adaptor(self, clipping)
    }

    /// Keeps moments in bf16: two bytes a number, rounded to the nearest after each step. The device
    /// must have bf16, which WGSL and NdArray do not.
    ///
    /// # Panics
    ///
    /// If a moment keeps more than 0.99 of itself in a step, as AdamW's second does by default: it
    /// would change by less than bf16 can hold, and stand still. Take a `beta_2` of at most 0.99.
    /// The same goes for moments that take in micro-batches with
    /// [`MomentDecay::EachStep`](crate::MomentDecay::EachStep), where they keep all of themselves.
    /// Sums of squares, as AdaGrad's, keep all of themselves. A centered RMSProp is refused, as its
    /// variance may be negative after rounding.
    ///
    /// The first step panics if the device has no bf16.
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
    /// The step itself is computed in 32 bits, with the moments before they are rounded. Second
    /// moments, which change by less than the codes lie apart, are rounded up with the probability
    /// of the part that is cut off, by a Weyl sequence at each place: the same in every run and on
    /// every backend. A moment that is not finite becomes its weight. Parameters of fewer than 4096
    /// elements keep moments of 32 bits, and so do those that have the shape of an embedding's
    /// weight in `model`, as Dettmers et al. recommend.
    ///
    /// Records are smaller as well, and interchangeable with those in 32 bits. Flex, wgpu and CUDA
    /// step with them in one pass. On other backends the moments are packed and unpacked on the
    /// host, which is slow.
    fn with_8_bit_moments<B: Backend>(mut self, model: &impl Module<B>) -> Self {
        let settings = self.settings_mut();
        settings.moments = Moments::EightBit;
        settings.embeddings = embedding_shapes(model).into();
        self
    }
}

/// An optimizer whose gradients the adaptor clips.
fn adaptor<O, B, M>(optim: O, clipping: Option<GradientClipping>) -> OptimizerAdaptor<O, M, B>
where
    O: SimpleOptimizer<B::InnerBackend>,
    B: AutodiffBackend,
    M: AutodiffModule<B>,
{
    let adaptor = OptimizerAdaptor::from(optim);
    match clipping {
        Some(clipping) => adaptor.with_grad_clipping(clipping),
        None => adaptor,
    }
}

fn coupled_decay(config: Option<WeightDecayConfig>) -> CoupledDecay {
    CoupledDecay(config.map(|config| config.penalty.into()))
}

fn embedding_shapes<B: Backend>(model: &impl Module<B>) -> Vec<Shape> {
    let mut embeddings = Embeddings::default();
    model.visit(&mut embeddings);
    embeddings.shapes
}

#[derive(Default)]
struct Embeddings {
    containers: Vec<bool>,
    shapes: Vec<Shape>,
}

impl<B: Backend> ModuleVisitor<B> for Embeddings {
    fn enter_module(&mut self, _name: &str, container_type: &str) {
        self.containers.push(container_type.contains("Embedding"));
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.containers.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        if self.containers.last() == Some(&true) {
            self.shapes.push(param.lazy_shape());
        }
    }
}

//! Stochastic gradient descent.

use burn::{
    grad_clipping::GradientClippingConfig,
    optim::{
        LearningRate, SgdConfig, SimpleOptimizer, decay::WeightDecayConfig,
        momentum::MomentumConfig,
    },
    record::Record,
    tensor::{ElementConversion, Tensor, backend::Backend},
};
use serde::Deserialize;

use super::{InOnePass, Lean, configuration, decay::CoupledDecay};
use crate::{
    EightBitMoments, LeanBackend, Number, Rule,
    moment::Moment,
    pass::{Kind, Settings},
};

/// Burn's [`Sgd`](burn::optim::Sgd) in one pass; made by [`InOnePass::in_one_pass`].
#[derive(Clone, Debug)]
pub struct Sgd {
    momentum: Option<MomentumConfig>,
    weight_decay: CoupledDecay,
    settings: Settings,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Configuration {
    weight_decay: Option<WeightDecayConfig>,
    momentum: Option<MomentumConfig>,
    gradient_clipping: Option<GradientClippingConfig>,
}

impl InOnePass for SgdConfig {
    type Optimizer = Sgd;

    fn in_one_pass(&self) -> Sgd {
        let config: Configuration = configuration(self);
        Sgd {
            momentum: config.momentum,
            weight_decay: config.weight_decay.into(),
            settings: Settings::clipping(config.gradient_clipping),
        }
    }
}

impl Sgd {
    pub(crate) fn momentum(&self) -> Option<&MomentumConfig> {
        self.momentum.as_ref()
    }
}

impl Lean for Sgd {
    fn settings_mut(&mut self) -> &mut Settings {
        &mut self.settings
    }
}

impl EightBitMoments for Sgd {}

/// State of [`Sgd`], saved as Burn saves it.
#[derive(Record, Clone, Debug)]
pub struct SgdState<B: Backend> {
    /// With momentum.
    pub momentum: Option<MomentumState<B>>,
}

/// Momentum of [`SgdState`].
#[derive(Record, Clone, Debug)]
pub struct MomentumState<B: Backend> {
    /// The sum that gradients go into.
    pub velocity: Moment<B>,
}

impl<B: LeanBackend> SimpleOptimizer<B> for Sgd {
    type State<const D: usize> = SgdState<B>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<B, D>,
        grad: Tensor<B, D>,
        state: Option<SgdState<B>>,
    ) -> (Tensor<B, D>, Option<SgdState<B>>) {
        let decay = self.weight_decay.in_part(self.settings.part);
        let momentum = state.and_then(|state| state.momentum);
        let Some(config) = &self.momentum else {
            let rule = Descent { lr, decay };
            let (tensor, []) = self.settings.step(&rule, [], tensor, grad, Some([]));
            return (tensor, Some(SgdState { momentum }));
        };
        let rule = WithMomentum {
            descent: Descent { lr, decay },
            // Burn rounds it to the element's type, and `1 - dampening` not.
            momentum: self
                .settings
                .part
                .kept(config.momentum.elem::<B::FloatElem>().elem()),
            rest: 1.0 - config.dampening,
            nesterov: config.nesterov,
        };
        let states = momentum.map(|momentum| [momentum.velocity]);
        let (tensor, [velocity]) = self
            .settings
            .step(&rule, [Kind::Signed], tensor, grad, states);
        let momentum = Some(MomentumState { velocity });
        (tensor, Some(SgdState { momentum }))
    }

    fn to_device<const D: usize>(state: SgdState<B>, device: &B::Device) -> SgdState<B> {
        let momentum = state.momentum.map(|momentum| MomentumState {
            velocity: momentum.velocity.on_device(device),
        });
        SgdState { momentum }
    }
}

#[derive(Clone, Copy)]
struct Descent {
    lr: f64,
    decay: CoupledDecay,
}

impl Descent {
    #[inline(always)]
    fn weight<T: Number>(&self, weight: T, step: T) -> T {
        weight - step.mul_scalar(self.lr)
    }
}

impl Rule<0> for Descent {
    #[inline(always)]
    fn first<T: Number>(&self, weight: T, grad: T) -> (T, [T; 0]) {
        let grad = self.decay.gradient(&weight, grad);
        (self.weight(weight, grad), [])
    }

    #[inline(always)]
    fn next<T: Number>(&self, weight: T, grad: T, []: [T; 0]) -> (T, [T; 0]) {
        self.first(weight, grad)
    }
}

#[derive(Clone, Copy)]
struct WithMomentum {
    descent: Descent,
    momentum: f64,
    rest: f64,
    nesterov: bool,
}

impl WithMomentum {
    #[inline(always)]
    fn step<T: Number>(&self, weight: T, grad: T, velocity: T) -> (T, [T; 1]) {
        let step = if self.nesterov {
            velocity.clone().mul_scalar(self.momentum) + grad
        } else {
            velocity.clone()
        };
        (self.descent.weight(weight, step), [velocity])
    }
}

impl Rule<1> for WithMomentum {
    #[inline(always)]
    fn first<T: Number>(&self, weight: T, grad: T) -> (T, [T; 1]) {
        let grad = self.descent.decay.gradient(&weight, grad);
        self.step(weight, grad.clone(), grad)
    }

    #[inline(always)]
    fn next<T: Number>(&self, weight: T, grad: T, [velocity]: [T; 1]) -> (T, [T; 1]) {
        let grad = self.descent.decay.gradient(&weight, grad);
        let velocity = grad.clone().mul_scalar(self.rest) + velocity.mul_scalar(self.momentum);
        self.step(weight, grad, velocity)
    }
}

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
use lean_arithmetic::optim::{
    Kind, configuration,
    rules::{CoupledDecay, Descent, Momentum},
};
use serde::Deserialize;

use super::{EightBitMoments, InOnePass, Lean, coupled_decay};
use crate::{LeanBackend, moment::Moment, settings::Settings};

/// Burn's [`Sgd`](burn::optim::Sgd) in one pass; made by [`InOnePass::in_one_pass`].
#[derive(Clone, Debug)]
pub struct Sgd {
    pub(crate) momentum: Option<Momentum>,
    weight_decay: CoupledDecay,
    pub(crate) settings: Settings,
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
            momentum: config.momentum.map(|config| {
                Momentum {
                    momentum: config.momentum,
                    dampening: config.dampening,
                    nesterov: config.nesterov,
                }
                .checked()
            }),
            weight_decay: coupled_decay(config.weight_decay).checked("SGD"),
            settings: Settings::as_burn(config.gradient_clipping),
        }
    }
}

impl Lean for Sgd {
    fn kept_shares(&self) -> Vec<(&'static str, f64)> {
        let momentum = self.momentum.iter();
        momentum
            .map(|momentum| ("SGD: momentum", momentum.momentum))
            .collect()
    }

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
        let micro_batch = self.settings.micro_batch;
        let decay = self.weight_decay.in_micro_batch(micro_batch);
        let descent = Descent { lr, decay };
        let momentum = state.and_then(|state| state.momentum);
        let Some(config) = self.momentum else {
            let (tensor, []) = self
                .settings
                .step(&descent, [], None, tensor, grad, Some([]));
            return (tensor, Some(SgdState { momentum }));
        };
        // Burn rounds it to the element's type, and `1 - dampening` not.
        let rounded = Momentum {
            momentum: config.momentum.elem::<B::FloatElem>().elem(),
            ..config
        };
        let rule = rounded.rule(descent, micro_batch);
        let states = momentum.map(|momentum| [momentum.velocity]);
        let (tensor, [velocity]) =
            self.settings
                .step(&rule, [Kind::Signed], None, tensor, grad, states);
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

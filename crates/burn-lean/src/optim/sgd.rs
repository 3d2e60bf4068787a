//! Stochastic gradient descent.

use burn::grad_clipping::GradientClippingConfig;
use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{LearningRate, Optimizer, SgdConfig};
use burn::serde::Deserialize;
use burn::tensor::{Device, Tensor};
use lean_arithmetic::optim::rules::{CoupledDecay, Descent, Momentum};
use lean_arithmetic::optim::{Kind, configuration};

use super::moment::Moment;
use super::record::{Field, record_state};
use super::settings::Settings;
use super::{EightBitMoments, InOnePass, Lean};

/// Burn's [`Sgd`](burn::optim::Sgd) in one pass; made by [`InOnePass::in_one_pass`].
#[derive(Clone, Debug)]
pub struct Sgd {
    pub(super) momentum: Option<Momentum>,
    weight_decay: CoupledDecay,
    pub(super) settings: Settings,
}

#[derive(Deserialize)]
#[serde(crate = "burn::serde", deny_unknown_fields)]
struct Configuration {
    weight_decay: Option<WeightDecayConfig>,
    momentum: Option<MomentumConfig>,
    gradient_clipping: Option<GradientClippingConfig>,
}

impl InOnePass for SgdConfig {
    type Optimizer = Sgd;

    fn in_one_pass(&self) -> Sgd {
        let config: Configuration = configuration(self);
        let decay = config.weight_decay.map(|decay| decay.penalty.into());
        Sgd {
            momentum: config.momentum.map(|config| {
                Momentum {
                    // Burn rounds it to 32 bits, and `1 - dampening` not.
                    momentum: f64::from(config.momentum as f32),
                    dampening: config.dampening,
                    nesterov: config.nesterov,
                }
                .checked()
            }),
            weight_decay: CoupledDecay(decay).checked("SGD"),
            settings: Settings::as_burn(config.gradient_clipping),
        }
    }
}

impl Lean for Sgd {
    fn kept_shares(&self) -> Vec<(&'static str, f64)> {
        let share = |momentum: &Momentum| ("SGD: momentum", momentum.momentum);
        self.momentum.iter().map(share).collect()
    }

    fn settings_mut(&mut self) -> &mut Settings {
        &mut self.settings
    }
}

impl EightBitMoments for Sgd {}

/// State of [`Sgd`], saved as Burn saves it.
#[derive(Clone, Debug)]
pub struct SgdState<const D: usize> {
    /// With momentum.
    pub momentum: Option<MomentumState<D>>,
}

/// Momentum of [`SgdState`].
#[derive(Clone, Debug)]
pub struct MomentumState<const D: usize> {
    /// The sum that gradients go into.
    pub velocity: Moment<D>,
}

record_state!(SgdState { momentum });
record_state!(MomentumState { velocity });

impl Optimizer for Sgd {
    type State<const D: usize> = SgdState<D>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        state: Option<SgdState<D>>,
    ) -> (Tensor<D>, Option<SgdState<D>>) {
        if self
            .settings
            .is_only_asked(&tensor, self.momentum.is_some())
        {
            return (tensor, None);
        }
        let micro_batch = self.settings.micro_batch;
        let decay = self.weight_decay.in_micro_batch(micro_batch);
        let descent = Descent { lr, decay };
        let momentum = state.and_then(|state| state.momentum);
        let Some(config) = &self.momentum else {
            let (tensor, []) = self
                .settings
                .step(&descent, [], None, tensor, grad, Some([]));
            return (tensor, Some(SgdState { momentum }));
        };
        let rule = config.rule(descent, micro_batch);
        let states = momentum.map(|momentum| [momentum.velocity]);
        let kinds = [Kind::Signed];
        let (tensor, [velocity]) = self.settings.step(&rule, kinds, None, tensor, grad, states);
        let momentum = Some(MomentumState { velocity });
        (tensor, Some(SgdState { momentum }))
    }

    fn to_device<const D: usize>(state: SgdState<D>, device: &Device) -> SgdState<D> {
        state.on_device(device)
    }
}

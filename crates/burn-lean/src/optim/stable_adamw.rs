//! StableAdamW.

use burn::config::Config;
use burn::grad_clipping::GradientClippingConfig;
use burn::optim::{LearningRate, ModuleOptimizer, Optimizer};
use burn::tensor::{Device, Tensor};
use lean_arithmetic::optim::{Kind, rules};

use super::moment::Moment;
use super::record::record_state;
use super::settings::Settings;
use super::step::mean;
use super::{EightBitMoments, Lean};

/// Configuration of [`StableAdamW`].
#[derive(Config, Debug)]
pub struct StableAdamWConfig {
    /// Decay rate of the first moment.
    #[config(default = 0.9)]
    pub beta_1: f64,
    /// Decay rate of the second moment.
    #[config(default = 0.99)]
    pub beta_2: f64,
    /// Added to the root of the second moment.
    #[config(default = 1e-6)]
    pub epsilon: f64,
    /// Weight decay, decoupled: a weight shrinks by `lr * weight_decay` of itself.
    #[config(default = 1e-2)]
    pub weight_decay: f64,
    /// Clipping of gradients.
    pub grad_clipping: Option<GradientClippingConfig>,
}

impl StableAdamWConfig {
    /// Builds the optimizer.
    ///
    /// # Panics
    ///
    /// If a setting is out of range, which is named with its value.
    pub fn build(&self) -> StableAdamW {
        StableAdamW {
            stable_adamw: rules::StableAdamW {
                beta_1: self.beta_1,
                beta_2: self.beta_2,
                epsilon: self.epsilon,
                weight_decay: self.weight_decay,
            }
            .checked(),
            settings: Settings::clipping(self.grad_clipping.clone()),
        }
    }

    /// The optimizer for all parameters of a module.
    pub fn init(&self) -> ModuleOptimizer {
        self.build().init()
    }
}

/// AdamW whose learning rate shrinks, parameter by parameter, if gradients are larger than the
/// second moment suggests. With gradient release this replaces clipping by the global norm.
///
/// Wortsman et al., "Stable and low-precision training for large-scale vision-language models"
/// (2023), <https://arxiv.org/abs/2304.13013>; as optimi has it, with its defaults.
///
/// ```
/// use burn_lean::WithGradientRelease;
/// use burn_lean::optim::{Lean, StableAdamWConfig};
///
/// let optim = StableAdamWConfig::new().init().with_gradient_release();
/// # let _ = optim;
/// ```
#[derive(Clone, Debug)]
pub struct StableAdamW {
    stable_adamw: rules::StableAdamW,
    settings: Settings,
}

impl Lean for StableAdamW {
    fn kept_shares(&self) -> Vec<(&'static str, f64)> {
        vec![
            ("StableAdamW: beta_1", self.stable_adamw.beta_1),
            ("StableAdamW: beta_2", self.stable_adamw.beta_2),
        ]
    }

    fn settings_mut(&mut self) -> &mut Settings {
        &mut self.settings
    }
}

impl EightBitMoments for StableAdamW {}

/// State of [`StableAdamW`].
#[derive(Clone, Debug)]
pub struct StableAdamWState<const D: usize> {
    /// Number of steps taken.
    pub time: usize,
    /// Moving average of gradients, without bias.
    pub moment_1: Moment<D>,
    /// Moving average of squared gradients, without bias.
    pub moment_2: Moment<D>,
}

record_state!(StableAdamWState {
    time,
    moment_1,
    moment_2
});

impl Optimizer for StableAdamW {
    type State<const D: usize> = StableAdamWState<D>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        state: Option<StableAdamWState<D>>,
    ) -> (Tensor<D>, Option<StableAdamWState<D>>) {
        if self.settings.is_only_asked(&tensor, true) {
            return (tensor, None);
        }
        let time = state.as_ref().map_or(0, |state| state.time) + 1;
        let states = state.map(|state| [state.moment_1, state.moment_2]);
        let kinds = [Kind::Signed, Kind::Positive];
        let noise = Some(self.settings.micro_batch.noise(time));
        let dtype = tensor.dtype();
        let operands = self.settings.operands(kinds, noise, tensor, grad, states);

        let measure = self.stable_adamw.measure(time);
        let moves = self.settings.micro_batch.moves;
        let mean = moves.then(|| mean(&measure, &operands));
        let rule = self.stable_adamw.rule(lr, time, mean);
        let (tensor, [moment_1, moment_2]) = self.settings.apply(&rule, operands);
        let state = StableAdamWState {
            time,
            moment_1,
            moment_2,
        };
        (tensor.cast(dtype), Some(state))
    }

    fn to_device<const D: usize>(state: StableAdamWState<D>, device: &Device) -> Self::State<D> {
        StableAdamWState {
            time: state.time,
            moment_1: state.moment_1.on_device(device),
            moment_2: state.moment_2.on_device(device),
        }
    }
}

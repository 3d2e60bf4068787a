//! Optimizers that step by a first and a second moment.

use burn::optim::{LearningRate, Optimizer};
use burn::tensor::{Device, Tensor};
use lean_arithmetic::optim::Kind;
use lean_arithmetic::optim::rules::{AdaptiveRule, AmsGrad};

use super::Lean;
use super::moment::Moment;
use super::record::{Field, record_state};
use super::settings::Settings;
use super::step::mean;

/// [`Adam`](super::Adam), [`AdamW`](super::AdamW), [`RAdam`](super::RAdam) or
/// [`StableAdamW`](super::StableAdamW).
#[derive(Clone, Debug)]
pub struct Adaptive<R> {
    pub(super) rule: R,
    /// Divides by the largest second moment so far.
    pub(super) amsgrad: bool,
    pub(super) settings: Settings,
}

/// State of [`Adaptive`], saved as Burn saves it.
#[derive(Clone, Debug)]
pub struct AdaptiveState<const D: usize> {
    /// The moments.
    pub momentum: AdaptiveMomentumState<D>,
}

record_state!(AdaptiveState { momentum });

impl<R: AdaptiveRule> Lean for Adaptive<R> {
    fn kept_shares(&self) -> Vec<(&'static str, f64)> {
        self.rule.kept_shares().into()
    }

    fn settings_mut(&mut self) -> &mut Settings {
        &mut self.settings
    }
}

impl<R: AdaptiveRule> Optimizer for Adaptive<R> {
    type State<const D: usize> = AdaptiveState<D>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        state: Option<AdaptiveState<D>>,
    ) -> (Tensor<D>, Option<AdaptiveState<D>>) {
        if self.settings.is_only_asked(&tensor, true) {
            return (tensor, None);
        }
        let momentum = state.map(|state| state.momentum);
        let (tensor, momentum) = self.step_moments(lr, tensor, grad, momentum);
        (tensor, Some(AdaptiveState { momentum }))
    }

    fn to_device<const D: usize>(state: AdaptiveState<D>, device: &Device) -> AdaptiveState<D> {
        state.on_device(device)
    }
}

/// Moments of an optimizer, saved as Burn saves them.
#[derive(Clone, Debug)]
pub struct AdaptiveMomentumState<const D: usize> {
    /// Number of steps taken.
    pub time: usize,
    /// Moving average of gradients.
    pub moment_1: Moment<D>,
    /// Moving average of squared gradients.
    pub moment_2: Moment<D>,
    /// Largest second moment so far, with AMSGrad.
    pub max_moment_2: Option<Moment<D>>,
}

record_state!(AdaptiveMomentumState {
    time,
    moment_1,
    moment_2,
    max_moment_2
});

impl<R: AdaptiveRule> Adaptive<R> {
    fn step_moments<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        state: Option<AdaptiveMomentumState<D>>,
    ) -> (Tensor<D>, AdaptiveMomentumState<D>) {
        let (settings, micro_batch) = (&self.settings, self.settings.micro_batch);
        let time = micro_batch.time(state.as_ref().map_or(0, |state| state.time));
        let noise = Some(micro_batch.noise(time));
        let rule = |lr| self.rule.rule(lr, time, micro_batch);
        let (tensor, [moment_1, moment_2], max_moment_2) = if self.amsgrad {
            let states = state.map(|state| {
                let most = state.max_moment_2.unwrap_or_else(|| least(&state.moment_2));
                [state.moment_1, state.moment_2, most]
            });
            let kinds = [Kind::Signed, Kind::Positive, Kind::Positive];
            let rule = AmsGrad(rule(lr));
            let (tensor, states) = settings.step(&rule, kinds, noise, tensor, grad, states);
            let [moment_1, moment_2, most] = states;
            (tensor, [moment_1, moment_2], Some(most))
        } else {
            // A record of a run with AMSGrad keeps its states, as in Burn.
            let (states, max_moment_2) = state
                .map(|state| ([state.moment_1, state.moment_2], state.max_moment_2))
                .unzip();
            let kinds = [Kind::Signed, Kind::Positive];
            let dtype = tensor.dtype();
            let operands = settings.operands(kinds, noise, tensor, grad, states);
            let lr = match micro_batch.moves {
                true => self.rule.lr(lr, time, |measure| mean(&measure, &operands)),
                false => lr,
            };
            let (tensor, states) = settings.apply(&rule(lr), operands);
            (tensor.cast(dtype), states, max_moment_2.flatten())
        };
        let state = AdaptiveMomentumState {
            time,
            moment_1,
            moment_2,
            max_moment_2,
        };
        (tensor, state)
    }
}

/// A largest moment that any other replaces, as none is negative, for a record of a run without
/// AMSGrad.
fn least<const D: usize>(moment: &Moment<D>) -> Moment<D> {
    Moment::Float(moment.to_tensor().zeros_like())
}

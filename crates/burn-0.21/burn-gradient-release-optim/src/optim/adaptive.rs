//! Optimizers that step by a first and a second moment.

use burn::{
    optim::{LearningRate, SimpleOptimizer},
    record::Record,
    tensor::{Tensor, TensorPrimitive, backend::Backend},
};

use lean_arithmetic::optim::{
    Kind,
    rules::{AdaptiveRule, AmsGrad},
};

use super::Lean;
use crate::{
    LeanBackend,
    moment::{Moment, from_float},
    settings::Settings,
    step::mean,
};

/// [`Adam`](super::Adam), [`AdamW`](super::AdamW), [`RAdam`](super::RAdam) or
/// [`StableAdamW`](super::StableAdamW).
#[derive(Clone, Debug)]
pub struct Adaptive<R> {
    pub(crate) rule: R,
    /// Divides by the largest second moment so far.
    pub(super) amsgrad: bool,
    pub(super) settings: Settings,
}

/// State of [`Adaptive`], saved as Burn saves it.
#[derive(Record, Clone, Debug)]
pub struct AdaptiveState<B: Backend> {
    /// The moments.
    pub momentum: AdaptiveMomentumState<B>,
}

impl<R: AdaptiveRule> Lean for Adaptive<R> {
    fn kept_shares(&self) -> Vec<(&'static str, f64)> {
        self.rule.kept_shares().into()
    }

    fn settings_mut(&mut self) -> &mut Settings {
        &mut self.settings
    }
}

impl<B: LeanBackend, R: AdaptiveRule> SimpleOptimizer<B> for Adaptive<R> {
    type State<const D: usize> = AdaptiveState<B>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<B, D>,
        grad: Tensor<B, D>,
        state: Option<AdaptiveState<B>>,
    ) -> (Tensor<B, D>, Option<AdaptiveState<B>>) {
        let momentum = state.map(|state| state.momentum);
        let (tensor, momentum) = self.step_moments(lr, tensor, grad, momentum);
        (tensor, Some(AdaptiveState { momentum }))
    }

    fn to_device<const D: usize>(state: AdaptiveState<B>, device: &B::Device) -> AdaptiveState<B> {
        let momentum = state.momentum.on_device(device);
        AdaptiveState { momentum }
    }
}

/// Moments of an optimizer, saved as Burn saves them.
#[derive(Record, Clone, Debug)]
pub struct AdaptiveMomentumState<B: Backend> {
    /// Number of steps taken.
    pub time: usize,
    /// Moving average of gradients.
    pub moment_1: Moment<B>,
    /// Moving average of squared gradients.
    pub moment_2: Moment<B>,
    /// Largest second moment so far, with AMSGrad.
    pub max_moment_2: Option<Moment<B>>,
}

impl<B: Backend> AdaptiveMomentumState<B> {
    fn on_device(self, device: &B::Device) -> Self {
        Self {
            time: self.time,
            moment_1: self.moment_1.on_device(device),
            moment_2: self.moment_2.on_device(device),
            max_moment_2: self.max_moment_2.map(|moment| moment.on_device(device)),
        }
    }
}

impl<R: AdaptiveRule> Adaptive<R> {
    fn step_moments<B: LeanBackend, const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<B, D>,
        grad: Tensor<B, D>,
        state: Option<AdaptiveMomentumState<B>>,
    ) -> (Tensor<B, D>, AdaptiveMomentumState<B>) {
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
                true => self
                    .rule
                    .lr(lr, time, |measure| mean::<_, _, _, D>(&measure, &operands)),
                false => lr,
            };
            let stepped = settings.apply::<_, _, _, D>(&rule(lr), operands);
            let tensor: Tensor<B, D> = from_float(stepped.weight);
            (tensor.cast(dtype), stepped.states, max_moment_2.flatten())
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
fn least<B: Backend>(moment: &Moment<B>) -> Moment<B> {
    let shape = moment.shape();
    let flat = Tensor::<B, 1>::full([shape.num_elements()], 0.0, &moment.device());
    let TensorPrimitive::Float(flat) = flat.into_primitive() else {
        unreachable!("it was made of floats");
    };
    Moment::Float(B::float_reshape(flat, shape))
}

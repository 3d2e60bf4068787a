//! First and second moments, as Adam, AdamW, RAdam and others have them.

use burn::{
    record::Record,
    tensor::{Tensor, TensorPrimitive, backend::Backend},
};

use lean_arithmetic::optim::{
    Kind,
    rules::{AmsGrad, Update, WithMoments},
};

use crate::{LeanBackend, moment::Moment, settings::Settings};

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
    /// Number of steps taken.
    pub(super) fn steps(state: &Option<Self>) -> usize {
        state.as_ref().map_or(0, |state| state.time)
    }

    pub(super) fn on_device(self, device: &B::Device) -> Self {
        Self {
            time: self.time,
            moment_1: self.moment_1.on_device(device),
            moment_2: self.moment_2.on_device(device),
            max_moment_2: self.max_moment_2.map(|moment| moment.on_device(device)),
        }
    }
}

/// Steps by first and second moments.
pub(super) fn step<B: LeanBackend, U: Update, const D: usize>(
    settings: &Settings,
    rule: WithMoments<U>,
    time: usize,
    amsgrad: bool,
    tensor: Tensor<B, D>,
    grad: Tensor<B, D>,
    state: Option<AdaptiveMomentumState<B>>,
) -> (Tensor<B, D>, AdaptiveMomentumState<B>) {
    let kinds = [Kind::Signed, Kind::Positive];
    let noise = Some(settings.micro_batch.noise(time));
    if amsgrad {
        let states = state.map(|state| {
            let most = state.max_moment_2.unwrap_or_else(|| least(&state.moment_2));
            [state.moment_1, state.moment_2, most]
        });
        let kinds = [Kind::Signed, Kind::Positive, Kind::Positive];
        let (tensor, states) = settings.step(&AmsGrad(rule), kinds, noise, tensor, grad, states);
        let [moment_1, moment_2, most] = states;
        let max_moment_2 = Some(most);
        (
            tensor,
            AdaptiveMomentumState {
                time,
                moment_1,
                moment_2,
                max_moment_2,
            },
        )
    } else {
        // A record of a run with AMSGrad keeps its states, as in Burn.
        let (states, max_moment_2) = state
            .map(|state| ([state.moment_1, state.moment_2], state.max_moment_2))
            .unzip();
        let (tensor, [moment_1, moment_2]) =
            settings.step(&rule, kinds, noise, tensor, grad, states);
        let max_moment_2 = max_moment_2.flatten();
        (
            tensor,
            AdaptiveMomentumState {
                time,
                moment_1,
                moment_2,
                max_moment_2,
            },
        )
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

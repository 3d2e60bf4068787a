//! Adafactor.

use super::super::{
    Factored, WholeTensor, assert_shape,
    factored::{clip_update, root_mean_square},
};
use crate::settings::{amount, expect_in_range, positive, share};

/// Adafactor, by the rule of transformers.
#[derive(Clone, Copy, Debug)]
pub struct Adafactor {
    /// Added to squared gradients.
    pub epsilon: f64,
    /// Lower bound of the root mean square of a parameter, if that scales its learning rate.
    pub least_scale: Option<f64>,
    /// The largest root mean square of an update.
    pub clip_threshold: f64,
    /// The second moment keeps `1 - step^decay_rate` of itself.
    pub decay_rate: f64,
    /// Decay rate of the first moment, if there is one.
    pub beta_1: Option<f64>,
    /// Decoupled weight decay.
    pub weight_decay: f64,
}

/// State of [`Adafactor`].
#[derive(Clone, Debug)]
pub struct AdafactorState<T> {
    /// Number of steps taken.
    pub time: usize,
    /// Moving average of squared gradients.
    pub square: Factored<T>,
    /// Moving average of updates, with a first moment.
    pub moment_1: Option<T>,
}

impl Adafactor {
    /// Checks the settings.
    ///
    /// # Panics
    ///
    /// If a setting is out of range. The message has its name and its value.
    pub fn checked(self) -> Self {
        expect_in_range(
            "Adafactor",
            &[
                amount("epsilon", self.epsilon),
                amount("least_scale", self.least_scale.unwrap_or_default()),
                positive("clip_threshold", self.clip_threshold),
                (
                    "decay_rate",
                    self.decay_rate,
                    self.decay_rate <= 0.0 && self.decay_rate.is_finite(),
                ),
                share("beta_1", self.beta_1.unwrap_or_default()),
                amount("weight_decay", self.weight_decay),
            ],
        );
        self
    }

    /// The weight and the state after a step.
    ///
    /// # Panics
    ///
    /// If the gradient or the state is of another shape than the weight.
    pub fn step<T: WholeTensor>(
        &self,
        lr: f64,
        weight: T,
        grad: T,
        state: Option<AdafactorState<T>>,
    ) -> (T, AdafactorState<T>) {
        let (time, square, moment_1) = match state {
            Some(state) => (state.time + 1, Some(state.square), state.moment_1),
            None => (1, None, None),
        };
        for other in [Some(&grad), moment_1.as_ref()].into_iter().flatten() {
            assert_shape(&other.dims(), &weight.dims());
        }
        let beta_2 = 1.0 - (time as f64).powf(self.decay_rate);
        let squares = grad.clone().square().add_scalar(self.epsilon);
        let square = Factored::update(square, squares, beta_2);

        let update = clip_update(square.normalize(grad), self.clip_threshold);
        // A tensor of one element, which never comes to the host.
        let scale = self
            .least_scale
            .map(|least| root_mean_square(weight.clone()).clamp_min(least));
        let scaled = |update: T, factor: f64| match &scale {
            Some(scale) => update * scale.clone().mul_scalar(factor),
            None => update.mul_scalar(factor),
        };
        let update = scaled(update, lr);
        let (update, moment_1) = match self.beta_1 {
            Some(beta_1) => {
                let new = update.mul_scalar(1.0 - beta_1);
                let moment = match moment_1 {
                    Some(moment) => moment.mul_scalar(beta_1) + new,
                    None => new,
                };
                (moment.clone(), Some(moment))
            }
            None => (update, None),
        };
        let weight = if self.weight_decay == 0.0 {
            weight
        } else {
            let decay = scaled(weight.clone(), lr * self.weight_decay);
            weight - decay
        };
        let state = AdafactorState {
            time,
            square,
            moment_1,
        };
        (weight - update, state)
    }
}

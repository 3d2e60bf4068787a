//! CAME.

use super::super::{Factored, WholeTensor, assert_shape, factored::clip_update};
use crate::settings::{amount, expect_in_range, positive, share};

/// CAME.
#[derive(Clone, Copy, Debug)]
pub struct Came {
    /// Decay rate of the first moment.
    pub beta_1: f64,
    /// Decay rate of the second moment.
    pub beta_2: f64,
    /// Decay rate of the instability.
    pub beta_3: f64,
    /// Added to squared gradients.
    pub epsilon_1: f64,
    /// Added to the squared instability.
    pub epsilon_2: f64,
    /// The largest root mean square of an update.
    pub clip_threshold: f64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
}

/// State of [`Came`].
#[derive(Clone, Debug)]
pub struct CameState<T> {
    /// Moving average of updates.
    pub moment_1: T,
    /// Moving average of squared gradients.
    pub square: Factored<T>,
    /// Moving average of the squared difference between update and first moment, for matrices.
    pub instability: Option<Factored<T>>,
}

impl Came {
    /// Checks the settings.
    ///
    /// # Panics
    ///
    /// If a setting is out of range. The message has its name and its value.
    pub fn checked(self) -> Self {
        expect_in_range(
            "Came",
            &[
                share("beta_1", self.beta_1),
                share("beta_2", self.beta_2),
                share("beta_3", self.beta_3),
                amount("epsilon_1", self.epsilon_1),
                amount("epsilon_2", self.epsilon_2),
                positive("clip_threshold", self.clip_threshold),
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
        state: Option<CameState<T>>,
    ) -> (T, CameState<T>) {
        let (moment_1, square, instability) = match state {
            Some(state) => (Some(state.moment_1), Some(state.square), state.instability),
            None => (None, None, None),
        };
        for other in [Some(&grad), moment_1.as_ref()].into_iter().flatten() {
            assert_shape(&other.dims(), &weight.dims());
        }
        let squares = grad.clone().square().add_scalar(self.epsilon_1);
        let square = Factored::update(square, squares, self.beta_2);
        let update = clip_update(square.normalize(grad), self.clip_threshold);

        let new = update.clone().mul_scalar(1.0 - self.beta_1);
        let moment_1 = match moment_1 {
            Some(moment) => moment.mul_scalar(self.beta_1) + new,
            None => new,
        };
        let (step, instability) = if T::RANK < 2 {
            (moment_1.clone(), None)
        } else {
            let residual = (update - moment_1.clone())
                .square()
                .add_scalar(self.epsilon_2);
            let instability = Factored::update(instability, residual, self.beta_3);
            (instability.normalize(moment_1.clone()), Some(instability))
        };
        let weight = weight.mul_scalar(1.0 - lr * self.weight_decay) - step.mul_scalar(lr);
        let state = CameState {
            moment_1,
            square,
            instability,
        };
        (weight, state)
    }
}

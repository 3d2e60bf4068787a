//! Stochastic gradient descent.

use super::{
    super::{CannotAccumulate, MicroBatch, MomentDecay, Number, Rule},
    CoupledDecay,
};
use crate::settings::{expect_in_range, share};

/// The step without momentum.
#[derive(Clone, Copy, Debug)]
pub struct Descent {
    /// The learning rate.
    pub lr: f64,
    /// Weight decay.
    pub decay: CoupledDecay,
}

impl Descent {
    #[inline(always)]
    fn weight<T: Number>(&self, weight: T, step: T) -> T {
        weight - step.mul_scalar(self.lr)
    }
}

impl Rule<0> for Descent {
    #[inline(always)]
    fn step<T: Number>(&self, weight: T, grad: T, _: Option<[T; 0]>) -> (T, [T; 0]) {
        let grad = self.decay.gradient(&weight, grad);
        (self.weight(weight, grad), [])
    }
}

/// Momentum, as Burn has it.
#[derive(Clone, Copy, Debug)]
pub struct Momentum {
    /// Decay rate of the velocity, as Burn rounds it.
    pub momentum: f64,
    /// The share of a gradient that stays out of the velocity, from the second step on.
    pub dampening: f64,
    /// Whether the step looks ahead.
    pub nesterov: bool,
}

impl Momentum {
    /// Returns the settings if they are in range.
    ///
    /// # Panics
    ///
    /// If a setting is not. The message names it with its value.
    pub fn checked(self) -> Self {
        expect_in_range(
            "SGD",
            &[
                share("momentum", self.momentum),
                share("dampening", self.dampening),
            ],
        );
        self
    }

    /// Checks that gradients of micro-batches can go into a moment of SGD.
    ///
    /// # Errors
    ///
    /// [`CannotAccumulate`].
    pub fn check_accumulating(
        momentum: Option<Self>,
        decay: MomentDecay,
    ) -> Result<(), CannotAccumulate> {
        match momentum {
            None => Err(CannotAccumulate::NoMoment),
            Some(momentum) if momentum.nesterov => decay.steps_with_gradient("SGD with Nesterov"),
            Some(momentum) if momentum.dampening != 0.0 => {
                decay.steps_with_gradient("SGD with dampening, in its first step,")
            }
            Some(_) => Ok(()),
        }
    }

    /// The rule of a step.
    pub fn rule(&self, descent: Descent, micro_batch: MicroBatch) -> HeavyBall {
        HeavyBall {
            descent,
            momentum: micro_batch.kept(self.momentum),
            rest: 1.0 - self.dampening,
            nesterov: self.nesterov,
        }
    }
}

/// The step with momentum.
#[derive(Clone, Copy, Debug)]
pub struct HeavyBall {
    descent: Descent,
    momentum: f64,
    rest: f64,
    nesterov: bool,
}

impl Rule<1> for HeavyBall {
    #[inline(always)]
    fn step<T: Number>(&self, weight: T, grad: T, states: Option<[T; 1]>) -> (T, [T; 1]) {
        let grad = self.descent.decay.gradient(&weight, grad);
        let velocity = match states {
            None => grad.clone(),
            Some([velocity]) => {
                grad.clone().mul_scalar(self.rest) + velocity.mul_scalar(self.momentum)
            }
        };
        let step = if self.nesterov {
            velocity.clone().mul_scalar(self.momentum) + grad
        } else {
            velocity.clone()
        };
        (self.descent.weight(weight, step), [velocity])
    }
}

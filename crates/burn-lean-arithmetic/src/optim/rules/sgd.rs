//! Stochastic gradient descent.

use super::{
    super::{Number, Part, Rule},
    CoupledDecay,
};

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
    fn first<T: Number>(&self, weight: T, grad: T) -> (T, [T; 0]) {
        let grad = self.decay.gradient(&weight, grad);
        (self.weight(weight, grad), [])
    }

    #[inline(always)]
    fn next<T: Number>(&self, weight: T, grad: T, []: [T; 0]) -> (T, [T; 0]) {
        self.first(weight, grad)
    }
}

/// Momentum, as Burn has it.
#[derive(Clone, Copy, Debug)]
pub struct Momentum {
    /// Decay rate of the velocity, as Burn rounds it.
    pub momentum: f64,
    /// The part of a gradient that does not go into the velocity, from the second step on.
    pub dampening: f64,
    /// Whether the step looks ahead.
    pub nesterov: bool,
}

impl Momentum {
    /// The rule of a step.
    pub fn rule(&self, descent: Descent, part: Part) -> HeavyBall {
        HeavyBall {
            descent,
            momentum: part.kept(self.momentum),
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

impl HeavyBall {
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

impl Rule<1> for HeavyBall {
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

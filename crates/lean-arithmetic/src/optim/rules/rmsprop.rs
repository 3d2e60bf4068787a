//! RMSProp.

use super::{
    super::{Number, Rule},
    CoupledDecay,
};
use crate::settings::{amount, expect_in_range, share};

/// Settings and steps that the rules of RMSProp share.
#[derive(Clone, Copy, Debug)]
pub struct Root {
    lr: f64,
    alpha: f64,
    rest: f64,
    momentum: f64,
    epsilon: f64,
    decay: CoupledDecay,
}

impl Root {
    /// Checks the arguments of [`new`](Self::new).
    ///
    /// # Panics
    ///
    /// If a setting is out of range, which is named with its value.
    pub fn expect_in_range(alpha: f32, momentum: f32, epsilon: f32, decay: CoupledDecay) {
        expect_in_range(
            "RMSProp",
            &[
                share("alpha", alpha.into()),
                share("momentum", momentum.into()),
                amount("epsilon", epsilon.into()),
                decay.setting(),
            ],
        );
    }

    /// Rounds the settings as Burn does.
    pub fn new(lr: f64, alpha: f32, momentum: f32, epsilon: f32, decay: CoupledDecay) -> Self {
        Self {
            lr,
            alpha: alpha.into(),
            rest: (1.0 - alpha).into(),
            momentum: momentum.into(),
            epsilon: epsilon.into(),
            decay,
        }
    }

    #[inline(always)]
    fn square<T: Number>(&self, grad: &T, square: Option<T>) -> T {
        let new = grad.clone().square().mul_scalar(self.rest);
        match square {
            Some(square) => square.mul_scalar(self.alpha) + new,
            None => new,
        }
    }

    /// Returns the mean of gradients and the variance.
    #[inline(always)]
    fn spread<T: Number>(&self, grad: &T, mean: Option<T>, square: T) -> [T; 2] {
        let new = grad.clone().mul_scalar(self.rest);
        let mean = match mean {
            Some(mean) => mean.mul_scalar(self.alpha) + new,
            None => new,
        };
        [mean.clone(), square - mean.square()]
    }

    #[inline(always)]
    fn divide<T: Number>(&self, grad: T, variance: T) -> T {
        grad / variance.sqrt().add_scalar(self.epsilon)
    }

    #[inline(always)]
    fn add_to<T: Number>(&self, buf: T, step: T) -> T {
        buf.mul_scalar(self.momentum) + step
    }

    #[inline(always)]
    fn weight<T: Number>(&self, weight: T, step: T) -> T {
        weight - step.mul_scalar(self.lr)
    }
}

/// RMSProp: divides by the root of the mean square.
#[derive(Clone, Copy, Debug)]
pub struct Plain(pub Root);

impl Rule<1> for Plain {
    #[inline(always)]
    fn step<T: Number>(&self, weight: T, grad: T, states: Option<[T; 1]>) -> (T, [T; 1]) {
        let grad = self.0.decay.gradient(&weight, grad);
        let square = self.0.square(&grad, states.map(|[square]| square));
        let step = self.0.divide(grad, square.clone());
        (self.0.weight(weight, step), [square])
    }
}

/// RMSProp with momentum.
#[derive(Clone, Copy, Debug)]
pub struct WithMomentum(pub Root);

impl Rule<2> for WithMomentum {
    #[inline(always)]
    fn step<T: Number>(&self, weight: T, grad: T, states: Option<[T; 2]>) -> (T, [T; 2]) {
        let (square, buf) = states.map(|[square, buf]| (square, buf)).unzip();
        let grad = self.0.decay.gradient(&weight, grad);
        let square = self.0.square(&grad, square);
        let step = self.0.divide(grad, square.clone());
        let step = match buf {
            Some(buf) => self.0.add_to(buf, step),
            None => step,
        };
        (self.0.weight(weight, step.clone()), [square, step])
    }
}

/// RMSProp that divides by the root of the variance.
#[derive(Clone, Copy, Debug)]
pub struct Centered(pub Root);

impl Rule<3> for Centered {
    #[inline(always)]
    fn step<T: Number>(&self, weight: T, grad: T, states: Option<[T; 3]>) -> (T, [T; 3]) {
        let (square, mean) = states.map(|[square, mean, _]| (square, mean)).unzip();
        let grad = self.0.decay.gradient(&weight, grad);
        let square = self.0.square(&grad, square);
        let [mean, variance] = self.0.spread(&grad, mean, square.clone());
        let step = self.0.divide(grad, variance.clone());
        (self.0.weight(weight, step), [square, mean, variance])
    }
}

/// RMSProp with momentum that divides by the root of the variance.
#[derive(Clone, Copy, Debug)]
pub struct CenteredWithMomentum(pub Root);

impl Rule<4> for CenteredWithMomentum {
    #[inline(always)]
    fn step<T: Number>(&self, weight: T, grad: T, states: Option<[T; 4]>) -> (T, [T; 4]) {
        let (old, buf) = states
            .map(|[square, mean, _, buf]| ((square, mean), buf))
            .unzip();
        let (square, mean) = old.unzip();
        let grad = self.0.decay.gradient(&weight, grad);
        let square = self.0.square(&grad, square);
        let [mean, variance] = self.0.spread(&grad, mean, square.clone());
        let step = self.0.divide(grad, variance.clone());
        let step = match buf {
            Some(buf) => self.0.add_to(buf, step),
            None => step,
        };
        let weight = self.0.weight(weight, step.clone());
        (weight, [square, mean, variance, step])
    }
}

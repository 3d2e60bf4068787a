//! The rules of the optimizers, and what changes in them from step to step.

mod adafactor;
mod adagrad;
mod adam;
mod adamw;
mod adan;
mod adaptive;
mod came;
mod decay;
mod lion;
mod radam;
mod rmsprop;
mod sgd;
mod stable_adamw;

pub use adafactor::{Adafactor, AdafactorState};
pub use adagrad::AdaGrad;
pub use adam::{Adam, AdamUpdate};
pub use adamw::{AdamW, AdamWUpdate};
pub use adan::{Adan, Nesterov};
pub use adaptive::{AdaptiveRule, AmsGrad, Factors, Surprise, Update, WithMoments};
pub use came::{Came, CameState};
pub use decay::CoupledDecay;
pub use lion::{Lion, Signed};
pub use radam::{RAdam, Rectified};
pub use rmsprop::{Centered, CenteredWithMomentum, Plain, Root, WithMomentum};
pub use sgd::{Descent, HeavyBall, Momentum};
pub use stable_adamw::{Decayed, StableAdamW};

/// A decay rate to the power of a number of steps.
fn power(beta: f64, time: usize) -> f64 {
    beta.powi(exponent(time))
}

/// Divisor that corrects the bias of a moment, in 32 bits as in Burn's optimizers.
fn correction_as_burn(beta: f32, time: usize) -> f32 {
    1.0 - beta.powi(exponent(time))
}

/// From 2^31 steps on, where Burn's exponents are negative, powers stay what they are: zero.
fn exponent(time: usize) -> i32 {
    i32::try_from(time).unwrap_or(i32::MAX)
}

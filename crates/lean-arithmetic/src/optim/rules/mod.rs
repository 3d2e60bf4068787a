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

/// A decay rate to the power of a number of steps. From 2^31 steps on, where Burn's exponents are
/// negative, it stays what it is: zero.
fn power(beta: f64, time: usize) -> f64 {
    beta.powi(i32::try_from(time).unwrap_or(i32::MAX))
}

//! A pass that runs twice and is the same both times.

use burn::module::{Devices, Module};

use super::random::Seed;
use super::running::Running;

/// Two passes of one training step, for an optimizer that has to see all gradients before it steps
/// with the first. [`ReleaseOptimizer::two_passes`](crate::ReleaseOptimizer::two_passes) is made of
/// this; use it for [passes by hand](crate::ReleaseOptimizer::try_arm_to_measure).
///
/// Both passes draw the same random numbers on the devices of the model, and begin with the same
/// running statistics. Burn's generators can be seeded, and not read: so the passes have a stream
/// of their own, which begins with a number drawn from the stream of the device, and another one
/// comes after them. What a model keeps elsewhere, or draws elsewhere, is not seen.
#[derive(Debug)]
pub struct TwoPasses {
    seed: Option<Seed>,
    devices: Devices,
    running: Running,
}

impl TwoPasses {
    /// Runs the first pass over the model, forward and backward.
    pub fn first<M: Module, R>(model: &M, pass: impl FnOnce() -> R) -> (R, Self) {
        let devices = model.devices();
        let passes = Self {
            seed: devices.first().map(Seed::draw),
            running: Running::of(model),
            devices,
        };
        (passes.run(pass), passes)
    }

    /// Runs the second pass.
    pub fn second<M: Module, R>(&self, model: &M, pass: impl FnOnce() -> R) -> R {
        self.running.restore_shared(model);
        self.run(pass)
    }

    /// Takes back what the passes have done to the running statistics of the model.
    pub fn undo<M: Module>(self, model: &M) {
        self.running.restore_shared(model);
    }

    fn run<R>(&self, pass: impl FnOnce() -> R) -> R {
        match self.seed {
            Some(seed) => seed.run_pass(&self.devices, pass),
            None => pass(),
        }
    }
}

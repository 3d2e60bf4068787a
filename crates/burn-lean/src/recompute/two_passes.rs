//! Two equal passes of one training step.

use burn::module::{Devices, Module};

use super::random::Seed;
use super::running::Running;

/// Two passes of one training step, for an optimizer that needs all gradients before its first
/// step. [`ReleaseOptimizer::two_passes`](crate::ReleaseOptimizer::two_passes) uses it; use it
/// yourself for [passes by hand](crate::ReleaseOptimizer::measure).
///
/// Both passes draw the same random numbers on the devices of the model, and begin with the same
/// running statistics. The state of Burn's generators cannot be read: so the passes have a stream
/// of their own, seeded from the stream of the device, and another stream follows them. State and
/// random numbers that a model keeps elsewhere are not repeated; they make the two losses differ,
/// which `two_passes` refuses. By hand, compare the losses before the second backward pass steps.
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
        self.running.restore(model);
        self.run(pass)
    }

    /// Restores the running statistics of the model from before the passes.
    pub fn undo<M: Module>(self, model: &M) {
        self.running.restore(model);
    }

    fn run<R>(&self, pass: impl FnOnce() -> R) -> R {
        match self.seed {
            Some(seed) => seed.run_pass(&self.devices, pass),
            None => pass(),
        }
    }
}

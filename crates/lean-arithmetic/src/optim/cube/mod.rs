//! One pass over memory on cubecl's devices: a kernel for each rule, made of the rule itself.
//!
//! Two versions of cubecl are two libraries to the compiler, and a kernel is written for one of
//! them. So the same files are compiled once for each, in a module that gives one name to items
//! that the versions name differently.

#[cfg(feature = "cubecl-0-10")]
pub mod cubecl_0_10;
#[cfg(feature = "cubecl-0-11")]
#[cfg_attr(
    feature = "cubecl-0-10",
    expect(clippy::duplicate_mod, reason = "each version has kernels of its own")
)]
pub mod cubecl_0_11;

use super::program::Program;
use super::{Clip, Measure, Noise, Rule};

/// The computation of a kernel in one step.
#[derive(Clone, Debug)]
pub struct Pass {
    program: Program,
    scalars: Vec<f32>,
    is_first: bool,
    noise: Option<Noise>,
}

impl Pass {
    /// The step of a rule. In the first step (`is_first`), states are not read.
    pub fn of_rule<R: Rule<N>, const N: usize>(rule: &R, clip: Clip, is_first: bool) -> Self {
        Self::new(Program::of_rule(rule, clip, is_first), is_first)
    }

    /// The same, with noise for states in 8 bits.
    pub fn rounded(self, noise: Option<Noise>) -> Self {
        Self { noise, ..self }
    }

    /// A measure of gradient and states; of the gradient alone in the first step.
    pub fn of_measure<M: Measure<N>, const N: usize>(
        measure: &M,
        clip: Clip,
        is_first: bool,
    ) -> Self {
        Self::new(Program::of_measure(measure, clip, is_first), is_first)
    }

    fn new((program, scalars): (Program, Vec<f32>), is_first: bool) -> Self {
        Self {
            program,
            scalars,
            is_first,
            noise: None,
        }
    }
}

//! As Burn has it by default: operations are queued, and several make one kernel.
//!
//! Of the edge cases, those are mounted that a queue of operations can break.

use super::{Fused as Inner, MeteredFused as Metered};

/// The step of a parameter may share a kernel with other neighbours than in plain mode, and a tuned
/// sum may be fused in one mode and not in the other: last bits are not the backend's to keep. 6e-8
/// was seen (weight norm). This is a thousandth of what Adam moves a weight by in a step: a stale
/// rate, a lost contribution or a second step are far beyond.
const TOLERANCE: f32 = crate::harness::run::RATE as f32 / 1000.0;

/// How many times the largest gradient a step may take above what the forward pass leaves: the
/// gradient, and the three new buffers of Burn's fused Adam.
const MATRICES: u64 = 4;
/// That multiple where operations are element-wise and many make one kernel, whose buffers all live
/// until it has run.
const ELEMENT_WISE: u64 = 10;

#[path = "../device_memory/mod.rs"]
mod device_memory;
#[cfg(not(only_software))]
#[path = "../edge_cases/fusion.rs"]
mod edge_cases;
#[path = "eight_bit.rs"]
mod eight_bit;
#[path = "../equality.rs"]
mod equality;
#[cfg(not(only_software))]
#[path = "../device_memory/learner.rs"]
mod learner;
#[cfg(not(only_software))]
#[path = "models.rs"]
mod models;
#[path = "one_pass.rs"]
mod one_pass;
#[cfg(not(only_software))]
#[path = "one_pass_with_release.rs"]
mod one_pass_with_release;
#[path = "rounding.rs"]
mod rounding;
#[cfg(not(only_software))]
#[path = "../recompute/scopes.rs"]
mod scopes;
#[cfg(not(only_software))]
#[path = "../device_memory/transformer.rs"]
mod transformer;

#[cfg(only_software)]
#[test]
#[ignore = "many minutes on a driver in software; ALL_ON_WGPU=1 mounts them"]
fn edge_cases_scopes_learner_models_release_in_one_pass() {}

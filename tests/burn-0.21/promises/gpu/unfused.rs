//! Every operation is its own kernel.
//!
//! The edge cases are tested on the processor, to the same bits, and with fusion where that could
//! break them.

use super::{MeteredUnfused as Metered, Unfused as Inner};

/// None: the same kernels run on the same numbers in the same order.
const TOLERANCE: f32 = 0.0;

/// How many times the largest gradient a step may take above what the forward pass leaves: the
/// gradient, and one temporary of Adam's.
const MATRICES: u64 = 2;
/// That multiple where operations are element-wise.
const ELEMENT_WISE: u64 = 2;

#[path = "../device_memory/mod.rs"]
mod device_memory;
#[path = "eight_bit.rs"]
mod eight_bit;
#[path = "../equality.rs"]
mod equality;
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
#[path = "../timeline/device.rs"]
mod timeline;

#[cfg(only_software)]
#[test]
#[ignore = "many minutes on a driver in software; ALL_ON_WGPU=1 mounts them"]
fn scopes_models_release_in_one_pass() {}

//! As Burn has it by default: operations are queued, and several make one kernel.

use burn::backend::Cuda as Inner;

type Metered = burn_device_memory::MeteredCuda;

/// How many times the largest gradient a step may take above what the forward pass leaves: the
/// gradient, and the three new buffers of Burn's fused Adam.
const MATRICES: u64 = 4;
/// The same where operations are element-wise and many make one kernel, whose buffers all live until
/// it has run.
const ELEMENT_WISE: u64 = 10;

#[path = "../device_memory/mod.rs"]
mod device_memory;
#[path = "../edge_cases/mod.rs"]
mod edge_cases;
#[path = "../equality.rs"]
mod equality;

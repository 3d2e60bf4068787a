//! The edge cases that fusion can break.
//!
//! Fusion queues operations, and runs them when a value is read or a tensor is dropped. So it can
//! change when a gradient is added up, which copy of a weight keeps a buffer, what a kernel makes of
//! numbers at the edge of a precision, and which thread runs the queue. The other rooms ask which
//! calls are refused, which rate a step takes, and who owns model and optimizer: the answers come
//! before any operation is queued, and are tested on the processor.

mod bench;
mod contributions;
mod copies;
mod numbers;
mod parts;
mod threads;

use bench::*;

/// Backend below autodiff.
use super::Inner;
use super::TOLERANCE;

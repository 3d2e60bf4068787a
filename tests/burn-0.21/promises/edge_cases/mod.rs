//! Each thing that could go wrong, by name, one room per kind, on the backend of the module above.

mod bench;
mod contributions;
mod copies;
mod mid_run;
mod misuse;
mod numbers;
mod owners;
mod parts;
mod rates;
mod threads;
mod untrained;

use bench::*;

/// Backend below autodiff.
use super::Inner;
/// Equal to the last bit. On a GPU with fusion, where this is mounted again, it is not that.
const TOLERANCE: f32 = 0.0;

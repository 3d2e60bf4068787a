//! What burn-lean promises, one module per promise.

mod harness;
mod smoke;

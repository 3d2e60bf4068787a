//! What burn-lean promises, one module per promise.
#![allow(dead_code, unused_imports)]

mod harness;
mod small;

//! Promises of the optimizers of `burn-gradient-release-optim`.
//!
//! What both Burns promise is in `lean-arithmetic/tests/both`, which is compiled here and, for
//! Burn 0.22, with `burn-lean`. `side` has this Burn's names for it.

#![allow(
    clippy::duplicate_mod,
    reason = "each backend has its own types for the same tests"
)]

mod decorator;
#[macro_use]
mod flex;
mod this_burn;
mod without_pass;

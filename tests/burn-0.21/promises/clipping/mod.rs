//! Clipping by norms, the scale of a loss and gradients that are no numbers: what plain Burn does
//! with all gradients at hand.

pub(crate) mod by_hand;
mod global_norm;
mod half;
mod loss_scaling;
mod non_finite;
mod range;
mod reference;
mod sequences;
mod vector;

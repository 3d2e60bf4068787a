//! Clipping by norms, the scale of a loss and gradients that are not finite: what plain Burn does
//! with all gradients at hand.

pub(crate) mod by_hand;
mod global_norm;
mod groups;
mod loss_scaling;
mod models;
mod non_finite;
mod one_pass;
mod range;
mod reference;
mod sequences;

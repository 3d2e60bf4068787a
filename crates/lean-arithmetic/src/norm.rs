//! The global norm.

/// The global norm of gradients with these squared norms.
///
/// Sums in 64 bits, in the order given. Give them in the order of the model's fields: the order in
/// which gradients complete depends on the model and on recomputation.
pub fn global_norm(squared: impl IntoIterator<Item = f64>) -> f64 {
    squared.into_iter().sum::<f64>().sqrt()
}

/// Factor for gradients of this global norm: `max_norm / (norm + 1e-6)` where that is less than
/// one, as PyTorch's `clip_grad_norm_` has it.
pub fn coefficient_for(max_norm: f64, norm: f64) -> f64 {
    (max_norm / (norm + 1e-6)).min(1.0)
}

/// Factor that takes a norm down to `target`; one if it is not above.
pub fn ratio(target: f64, norm: f64) -> f64 {
    if target < norm { target / norm } else { 1.0 }
}

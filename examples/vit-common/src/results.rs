//! What a finished run reports.

use serde::{Deserialize, Serialize};

/// The results of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Results {
    /// Fraction of the validation images that are classified correctly.
    pub validation_accuracy: f64,
    /// Mean loss of the training batches in the last epoch.
    pub train_loss: f64,
    /// Epochs trained.
    pub epochs: usize,
    /// Peak of the bytes in use, on the heap or on the GPU, beyond those before the model was
    /// built.
    pub peak_bytes: u64,
    /// Peak of the bytes reserved from the GPU; not counted on the heap.
    pub peak_reserved_bytes: Option<u64>,
    /// SHA-256 of the weights.
    pub weights_digest: String,
}

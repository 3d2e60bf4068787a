//! What a finished run reports.

use crate::config::{Mode, VitConfig};
use crate::terminal::mib;
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

impl Results {
    /// The results as text, with the gradients that a run in this mode holds at once.
    pub fn summary(&self, model: &VitConfig, mode: Mode) -> String {
        let size = |bytes: u64| format!("{} MiB", mib(bytes, 2));
        let all = 4 * model.num_params() as u64;
        let gradients = match mode {
            Mode::Plain => size(all),
            Mode::Release => format!(
                "{}, where plain Burn holds {}",
                size(4 * model.largest_param() as u64),
                size(all)
            ),
        };
        let reserved = self.peak_reserved_bytes;
        let reserved =
            reserved.map_or(String::new(), |bytes| format!(", {} reserved", size(bytes)));
        format!(
            "validation accuracy  {:.2} % after {} epochs\npeak memory          {}{reserved}\n\
             gradients at once    {gradients}",
            self.validation_accuracy * 100.0,
            self.epochs,
            size(self.peak_bytes),
        )
    }
}

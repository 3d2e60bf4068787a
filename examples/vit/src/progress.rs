//! The progress of a run, on stderr: a bar where there is a terminal, and a line for each epoch.

use crate::memory::HighWater;
use crate::train::Validation;
use std::io::{self, IsTerminal, Write};
use vit_common::terminal::{mib, note};

const WIDTH: usize = 30;

/// Writes the progress.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    epochs: usize,
    batches: usize,
    has_bar: bool,
}

impl Progress {
    /// Of a run with so many epochs of so many batches.
    pub fn new(epochs: usize, batches: usize) -> Self {
        Self {
            epochs,
            batches,
            has_bar: io::stderr().is_terminal(),
        }
    }

    /// After a batch.
    pub fn batch(&self, epoch: usize, done: usize) {
        if self.has_bar {
            let filled = WIDTH * done / self.batches;
            let bar = format!("{}{}", "#".repeat(filled), ".".repeat(WIDTH - filled));
            let epochs = self.epochs;
            let batches = self.batches;
            // The cursor returns to the start of the line, which the next text overwrites.
            draw(&format!(
                "\repoch {epoch:>3}/{epochs}  [{bar}] {done}/{batches}"
            ));
        }
    }

    /// At the end of several processes: the peak of each, in the order of their ranks.
    pub fn peaks(&self, peaks: &[f64]) {
        let peaks = peaks.iter().map(|bytes| mib(*bytes as u64, 2));
        note(&format!(
            "peak of each process {} MiB",
            peaks.collect::<Vec<_>>().join(", ")
        ));
    }

    /// After the validation of an epoch.
    pub fn epoch(&self, epoch: usize, train_loss: f64, validation: Validation, memory: &HighWater) {
        if self.has_bar {
            draw("\r\x1b[K");
        }
        note(&line(epoch, self.epochs, train_loss, validation, memory));
    }
}

/// Writes part of a line. The terminal may be gone.
fn draw(text: &str) {
    let mut stderr = io::stderr().lock();
    let _ = stderr.write_all(text.as_bytes());
    let _ = stderr.flush();
}

fn line(
    epoch: usize,
    epochs: usize,
    train_loss: f64,
    validation: Validation,
    memory: &HighWater,
) -> String {
    format!(
        "epoch {epoch:>3}/{epochs}  loss {train_loss:.4}  validation loss {:.4}  accuracy {:.2} %  \
         peak {} MiB",
        validation.loss,
        validation.accuracy * 100.0,
        mib(memory.peak().in_use, 2)
    )
}

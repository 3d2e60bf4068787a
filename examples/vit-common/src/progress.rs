//! The progress of a run, on stderr: a bar where there is a terminal, and a line for each epoch.

use crate::terminal::mib;
use lean_run_folder::note;
use std::io::{self, IsTerminal, Write};

const WIDTH: usize = 30;

/// Draws the bar after a batch; the next text overwrites it.
pub fn batch(epoch: usize, epochs: usize, done: usize, batches: usize) {
    if io::stderr().is_terminal() {
        let filled = WIDTH * done / batches.max(1);
        let bar = format!("{}{}", "#".repeat(filled), ".".repeat(WIDTH - filled));
        draw(&format!(
            "\repoch {epoch:>3}/{epochs}  [{bar}] {done}/{batches}"
        ));
    }
}

/// Writes the line of an epoch.
pub fn epoch(epoch: usize, epochs: usize, [train_loss, loss, accuracy]: [f64; 3], peak: u64) {
    if io::stderr().is_terminal() {
        draw("\r\x1b[K");
    }
    note(&format!(
        "epoch {epoch:>3}/{epochs}  loss {train_loss:.4}  validation loss {loss:.4}  accuracy {:.2} %  peak {} MiB",
        accuracy * 100.0,
        mib(peak, 2)
    ));
}

/// Writes the peak of one of several processes.
pub fn peak(rank: usize, bytes: u64) {
    note(&format!("peak of process {rank}: {} MiB", mib(bytes, 2)));
}

/// Writes part of a line. The terminal may be gone.
fn draw(text: &str) {
    let mut stderr = io::stderr().lock();
    let _ = stderr.write_all(text.as_bytes());
    let _ = stderr.flush();
}

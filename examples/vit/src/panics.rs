//! Turns panics of Burn's learner and of its threads into an error.
//!
//! The learner returns no errors: a checkpoint that cannot be read or a full disk is a panic, often of
//! several threads in turn.

use anyhow::{Result, bail};
use burn::train::{ApplicationLoggerInstaller, FileApplicationLoggerInstaller};
use std::panic::{self, AssertUnwindSafe};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

/// Burn's application log, which also records panics. Clones share the first panic.
#[derive(Clone, Debug)]
pub struct Panics {
    log: PathBuf,
    first: Arc<OnceLock<String>>,
}

impl Panics {
    /// Logs to this file.
    pub fn new(log: PathBuf) -> Self {
        Self {
            log,
            first: Arc::default(),
        }
    }

    /// Runs a learner that has `self` for its application logger.
    ///
    /// # Errors
    ///
    /// A thread panicked; the error has the message of the first panic.
    pub fn catch<T>(&self, learner: impl FnOnce() -> T) -> Result<T> {
        let done = panic::catch_unwind(AssertUnwindSafe(learner));
        match (self.first.get(), done) {
            (None, Ok(done)) => Ok(done),
            (first, _) => bail!(
                "the training broke off: {}; {} has more",
                first.map_or("a panic", String::as_str),
                self.log.display()
            ),
        }
    }
}

impl ApplicationLoggerInstaller for Panics {
    fn install(&self) -> Result<(), String> {
        let installed = FileApplicationLoggerInstaller::new(&self.log).install();
        let first = self.first.clone();
        panic::set_hook(Box::new(move |info| {
            // Later panics are consequences of the first.
            let _ = first.set(info.payload_as_str().unwrap_or("a panic").into());
            log::error!("{info}");
        }));
        installed
    }
}

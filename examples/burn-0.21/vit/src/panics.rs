//! Turns panics of Burn's learner and of its threads into an error.
//!
//! The learner returns no errors: a checkpoint that cannot be read or a full disk is a panic, often
//! of several threads in turn.

use crate::terminal;
use anyhow::{Result, anyhow};
use burn::train::{ApplicationLoggerInstaller, FileApplicationLoggerInstaller};
use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::path::PathBuf;
use std::process;
use std::sync::{Arc, OnceLock};
use vit_common::files::CannotWrite;

/// How errors of the system are named in panics, if a file could not be written.
const NO_ROOM: [&str; 4] = [
    "FileTooLarge",
    "QuotaExceeded",
    "ReadOnlyFilesystem",
    "StorageFull",
];

thread_local! {
    /// Whether a panic unwinds this thread.
    static UNWINDS: Cell<bool> = const { Cell::new(false) };
}

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

    /// Runs a learner that has `self` for its application logger, or what comes after it. Until
    /// [`release`](Self::release), a panic outside of it would end the program in silence.
    ///
    /// # Errors
    ///
    /// A thread panicked; the error has the message of the first panic.
    pub fn catch<T>(&self, work: impl FnOnce() -> T) -> Result<T> {
        let done = panic::catch_unwind(AssertUnwindSafe(work));
        UNWINDS.set(false);
        match (self.first.get(), done) {
            (None, Ok(done)) => Ok(done),
            (first, _) => Err(self.error(first.map_or("a panic", String::as_str))),
        }
    }

    /// Lets Rust report panics again.
    pub fn release(self) {
        drop(panic::take_hook());
    }

    fn error(&self, first: &str) -> anyhow::Error {
        let text = format!(
            "the training broke off: {first}; {} has more",
            self.log.display()
        );
        match NO_ROOM.iter().any(|kind| first.contains(kind)) {
            true => CannotWrite(text).into(),
            false => anyhow!("{text}"),
        }
    }

    fn hook(&self) {
        let this = self.clone();
        panic::set_hook(Box::new(move |info| {
            // Later panics are consequences of the first.
            let text = info.payload_as_str().unwrap_or("a panic");
            let first = this.first.get_or_init(|| text.into());
            log::error!("{info}");
            // Burn's threads panic, too, where they are dropped while a panic unwinds: that aborts
            // the process, and nobody would be told why.
            if UNWINDS.replace(true) {
                process::exit(terminal::fail(&this.error(first)).into());
            }
        }));
    }
}

impl ApplicationLoggerInstaller for Panics {
    fn install(&self) -> Result<(), String> {
        // What cannot be opened is a panic of the log.
        self.hook();
        let installed = FileApplicationLoggerInstaller::new(&self.log).install();
        self.hook();
        installed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_after_the_learner_is_an_error_too() {
        let panics = Panics::new(PathBuf::from("experiment.log"));
        panics.hook();
        let before = panics.catch(|| 1);
        let after = panics.catch(|| -> u8 { panic!("told to fail") });
        panics.release();
        assert_eq!(before.unwrap(), 1);
        let text = after.unwrap_err().to_string();
        assert!(text.contains("told to fail"), "{text}");
        assert!(text.contains("experiment.log has more"), "{text}");
    }
}

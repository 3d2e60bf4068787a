//! Ctrl-C: the first ends the run after the batch, the second at once.

#[cfg(unix)]
mod signals;
#[cfg(unix)]
mod terminal;

use crate::stopping::CTRL_C;
use anyhow::{Context, Result};
use burn::train::Interrupter;
use std::process;
use terminal::Terminal;

/// The exit code of a program that Ctrl-C ended.
pub(super) const INTERRUPTED: u8 = 130;

/// Listens for Ctrl-C, also while Burn's terminal UI has the terminal.
pub(super) fn stop(interrupter: Interrupter, shows_tui: bool) -> Result<()> {
    let terminal = match shows_tui {
        true => Some(Terminal::open().context("cannot read the terminal's settings")?),
        false => None,
    };
    if let Some(terminal) = &terminal {
        terminal.keep_ctrl_c()?;
    }
    signals::listen(move || {
        // A second Ctrl-C does not wait for the batch.
        if interrupter.should_stop() {
            if let Some(terminal) = &terminal {
                terminal.restore();
            }
            process::exit(INTERRUPTED.into());
        }
        interrupter.stop(Some(CTRL_C));
    })
    .context("cannot listen for Ctrl-C")
}

#[cfg(not(unix))]
mod signals {
    pub(super) fn listen(stop: impl FnMut() + Send + 'static) -> Result<(), ctrlc::Error> {
        ctrlc::set_handler(stop)
    }
}

/// Only the keys of the UI end the run there.
#[cfg(not(unix))]
mod terminal {
    use std::io;

    pub(super) struct Terminal;

    impl Terminal {
        pub(super) fn open() -> io::Result<Self> {
            Ok(Self)
        }

        pub(super) fn keep_ctrl_c(&self) -> io::Result<()> {
            Ok(())
        }

        pub(super) fn restore(&self) {}
    }
}

//! Ctrl-C: the first ends the run after the batch, the second at once.
//!
//! A closed terminal never ends it at once: the system and the shell may each send a hangup.

#[cfg(unix)]
mod signals;
#[cfg(unix)]
mod terminal;

use crate::stopping::{self, CTRL_C};
use anyhow::{Context, Result};
use burn::train::Interrupter;
use std::mem;
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
    // Counted here: that the run is about to stop need not be for a Ctrl-C.
    let mut was_asked = false;
    signals::listen(move |is_hangup| {
        if !is_hangup && mem::replace(&mut was_asked, true) {
            if let Some(terminal) = &terminal {
                terminal.restore();
            }
            process::exit(INTERRUPTED.into());
        }
        stopping::stop(&interrupter, CTRL_C);
    })
    .context("cannot listen for Ctrl-C")
}

#[cfg(not(unix))]
mod signals {
    pub(super) fn listen(mut stop: impl FnMut(bool) + Send + 'static) -> Result<(), ctrlc::Error> {
        ctrlc::set_handler(move || stop(false))
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

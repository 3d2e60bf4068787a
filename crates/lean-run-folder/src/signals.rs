//! The signals that end a run.

use std::{fs, io, process, thread};

use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
};

use crate::exit::INTERRUPTED;

/// Calls `stop` at Ctrl-C, and where a terminal is closed or a batch system ends the program: the
/// run is to end after its batch. A second Ctrl-C ends the program at once, with the exit code
/// [`INTERRUPTED`]; a second hangup does not, as the system and the shell may each send one.
///
/// Whoever has started the program with SIGHUP ignored, as `nohup` does, wants it to outlive the
/// terminal: then it stays ignored.
///
/// # Errors
///
/// The system allows no handler.
pub fn on_signal(mut stop: impl FnMut() + Send + 'static) -> io::Result<()> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut signals = Signals::new(
        [SIGINT, SIGTERM, SIGHUP]
            .into_iter()
            .filter(|signal| *signal != SIGHUP || !is_ignored(&status, SIGHUP)),
    )?;
    let listen = move || {
        let mut was_asked = false;
        for signal in signals.forever() {
            if signal != SIGHUP && was_asked {
                process::exit(INTERRUPTED.into());
            }
            was_asked |= signal != SIGHUP;
            stop();
        }
    };
    let listener = thread::Builder::new().name("signals".into());
    listener.spawn(listen).map(drop)
}

/// Whether the process with this status ignores a signal. No system but Linux says so in a file,
/// and on others the answer is no.
fn is_ignored(status: &str, signal: i32) -> bool {
    let mut lines = status.lines();
    let ignored = lines.find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_ignored_is_a_mask() {
        let status = "Name:\tvit\nSigBlk:\t0000000000000003\nSigIgn:\t0000000000001001\n";
        assert!(is_ignored(status, SIGHUP) && is_ignored(status, 13));
        assert!(!is_ignored(status, SIGINT) && !is_ignored(status, SIGTERM));
        assert!(!is_ignored("", SIGHUP));
    }
}

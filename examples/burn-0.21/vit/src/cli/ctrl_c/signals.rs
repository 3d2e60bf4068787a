//! The signals that end a run.

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::ffi::c_int;
use std::fs;
use std::io;
use std::thread;

/// Calls `stop` at each Ctrl-C, and where a terminal is closed or a batch system ends the program;
/// tells it whether it is a hangup, as of a terminal.
///
/// Whoever has started the program with SIGHUP ignored, as `nohup` does, wants it to outlive the
/// terminal: then it stays ignored.
pub(super) fn listen(mut stop: impl FnMut(bool) + Send + 'static) -> io::Result<()> {
    let signals = [SIGINT, SIGTERM, SIGHUP].into_iter();
    let mut signals = Signals::new(signals.filter(|it| *it != SIGHUP || !is_ignored(SIGHUP)))?;
    let listen = move || signals.forever().for_each(|signal| stop(signal == SIGHUP));
    thread::Builder::new()
        .name("signals".into())
        .spawn(listen)
        .map(drop)
}

/// Whether this process ignores a signal. No system but Linux says so in a file, and on others the
/// answer is no.
fn is_ignored(signal: c_int) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    is_in(&status, signal)
}

fn is_in(status: &str, signal: c_int) -> bool {
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
        assert!(is_in(status, SIGHUP) && is_in(status, 13));
        assert!(!is_in(status, SIGINT) && !is_in(status, SIGTERM));
        assert!(!is_in("", SIGHUP));
    }
}

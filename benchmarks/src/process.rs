//! Runs each in a separate process, so that none sees what another left in memory.

use anyhow::{Context, Result, bail};
use std::env;
use std::io::Read;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;
use wait_timeout::ChildExt;

/// Keeps glibc from returning memory to the kernel and requesting it again in every step: the page
/// faults would take more time than two modes differ by.
const ALLOCATOR: [(&str, &str); 2] = [
    ("MALLOC_MMAP_THRESHOLD_", "4294967296"),
    ("MALLOC_TRIM_THRESHOLD_", "1099511627776"),
];

/// Runs a process and returns its stdout; `None` if it took longer than `limit` and was killed.
///
/// # Errors
///
/// The process cannot be started, or fails. The error is the one line of its stderr that says why.
pub fn run(command: &mut Command, limit: Duration) -> Result<Option<String>> {
    for (name, value) in ALLOCATOR {
        if env::var_os(name).is_none() {
            command.env(name, value);
        }
    }
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {}", command.get_program().display()))?;
    // Reads both pipes while the process runs: a full pipe would block it.
    let stdout = read(child.stdout.take());
    let stderr = read(child.stderr.take());
    let Some(status) = child.wait_timeout(limit)? else {
        child.kill()?;
        child.wait()?;
        return Ok(None);
    };
    let joined = |text: thread::JoinHandle<String>| text.join().unwrap_or_default();
    let (stdout, stderr) = (joined(stdout), joined(stderr));
    if !status.success() {
        match reason(&stderr) {
            Some(reason) => bail!("{reason}"),
            None => bail!("the process ended with {status}"),
        }
    }
    Ok(Some(stdout))
}

fn read(pipe: Option<impl Read + Send + 'static>) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            let _ = pipe.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// The line that says why a process failed: our own error, the message of a panic, or Python's
/// last.
fn reason(stderr: &str) -> Option<String> {
    let lines = || {
        stderr
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty())
    };
    // The last one: drivers print errors too.
    let own = lines()
        .filter_map(|line| line.strip_prefix("error: "))
        .next_back();
    let panic = || {
        let mut lines = lines();
        lines.find(|line| line.contains("panicked at"))?;
        lines.next()
    };
    let python = || {
        let traceback = stderr.contains("Traceback");
        lines().rfind(|line| traceback && line.contains(": "))
    };
    own.or_else(panic)
        .or_else(python)
        .or_else(|| lines().next_back())
        .map(String::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_failure_is_explained_in_one_line() {
        let failed = |script| {
            let error = run(&mut shell(script), Duration::from_secs(60)).unwrap_err();
            error.to_string()
        };
        assert_eq!(failed("echo 'error: no' >&2; echo more >&2; exit 1"), "no");
        let panicked = "echo \"thread 'main' panicked at a.rs:1:2:\" >&2; echo why >&2; exit 101";
        assert_eq!(failed(panicked), "why");
        let python = "echo Traceback >&2; echo 'OutOfMemoryError: 2 GiB' >&2; exit 1";
        assert_eq!(failed(python), "OutOfMemoryError: 2 GiB");
        assert_eq!(failed("exit 3"), "the process ended with exit status: 3");
    }
}

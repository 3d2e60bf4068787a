//! The HTML viewer in headless Chromium.
//!
//! Without a Chromium these tests count as ignored. Whether there is one is known only when they
//! run, hence libtest-mimic.

#[path = "browser/chromium.rs"]
mod chromium;
#[path = "browser/holders.rs"]
mod holders;
mod synthetic;
#[path = "browser/view.rs"]
mod view;
#[path = "browser/visit.rs"]
mod visit;
#[path = "browser/whole.rs"]
mod whole;

use libtest_mimic::{Arguments, Trial};
use std::process::ExitCode;

/// Functions with their names.
macro_rules! tests {
    ($($test:ident),* $(,)?) => { &[$((stringify!($test), $test)),*] };
}
pub(crate) use tests;

fn main() -> ExitCode {
    let kind = match chromium::find() {
        Some(_) => "",
        None => "skipped: no Chromium; Debian's package is chromium",
    };
    let tests = [whole::TESTS, view::TESTS, holders::TESTS]
        .into_iter()
        .flatten();
    let tests = tests.map(|(name, test)| {
        Trial::test(*name, || {
            test();
            Ok(())
        })
        .with_kind(kind)
        .with_ignored_flag(!kind.is_empty())
    });
    let mut arguments = Arguments::from_args();
    // Two browsers at a time: each waits for frames more than it computes.
    arguments.test_threads = arguments.test_threads.or(Some(2));
    libtest_mimic::run(&arguments, tests.collect()).exit_code()
}

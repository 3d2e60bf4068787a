//! What wants more of the machine than its processor: processes that are started together, and a
//! disk of its own.
//!
//! Counts as ignored where that is missing, which only a harness other than libtest's can decide at
//! run time.

pub(crate) mod processes;
mod small_disk;

use libtest_mimic::{Arguments, Failed, Trial};
use std::process::ExitCode;
use vit_common::launching;
use vit_common::small_disk::SmallDisk;

/// A test and its name.
pub(crate) type Test = (&'static str, fn());

/// Functions with their names.
macro_rules! tests {
    ($($test:ident),* $(,)?) => { &[$((stringify!($test), $test)),*] };
}
pub(crate) use tests;

/// Runs the tests of both programs, and those of one in several processes, and others.
pub(crate) fn main(in_processes: &[Test], others: Vec<Trial>) -> ExitCode {
    let can_launch = cfg!(feature = "mpi") && launching::has_mpirun();
    let can_mount = SmallDisk::can_mount();
    let groups = [
        (processes::TESTS, can_launch),
        (in_processes, can_launch),
        (processes::ON_A_SMALL_DISK, can_launch && can_mount),
        (small_disk::TESTS, can_mount),
    ];
    let mut tests = others;
    for (group, is_possible) in groups {
        tests.extend(
            group
                .iter()
                .map(|(name, test)| trial(name, *test).with_ignored_flag(!is_possible)),
        );
    }
    libtest_mimic::run(&Arguments::from_args(), tests).exit_code()
}

pub(crate) fn trial(name: &str, test: fn()) -> Trial {
    Trial::test(name, move || -> Result<(), Failed> {
        test();
        Ok(())
    })
}

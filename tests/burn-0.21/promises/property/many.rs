//! Many thousand programs, by hand.

use std::ops::Range;

use proptest::test_runner::TestError;

use super::{Verdict, check, drawn};
use crate::harness::prelude::*;

/// A number of the environment.
fn variable(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(
        value
            .parse()
            .unwrap_or_else(|_| panic!("{name}={value} is no number")),
    )
}

/// `RANDOM_PROGRAMS` programs from number `RANDOM_FIRST` on, each `RANDOM_RUNS` times. The first
/// programs that fail are made small; all are counted.
#[test]
#[ignore = "takes as long as it is given; see tests/README.md"]
fn many_random_programs() {
    const SHRUNK: usize = 5;

    let first = variable("RANDOM_FIRST").unwrap_or(0);
    let numbers: Range<u64> = first..first + variable("RANDOM_PROGRAMS").unwrap_or(1000);
    let runs = variable("RANDOM_RUNS").unwrap_or(20) as usize;
    let (mut same, mut nothing, mut off, mut failed) = (0, 0, Vec::new(), Vec::new());
    for number in numbers {
        let shrinks = if failed.len() < SHRUNK {
            drawn::SHRINKS
        } else {
            0
        };
        let verdict = std::cell::Cell::new(Verdict::Same);
        let ran = drawn::run(number, shrinks, |program| {
            verdict.set(check::<Flex>(&program, runs)?);
            Ok(())
        });
        match (ran, verdict.into_inner()) {
            (Ok(true), Verdict::Same) => same += 1,
            (Ok(true), Verdict::LastBits(distance)) => off.push((number, distance)),
            (Ok(false), _) => nothing += 1,
            (Err(TestError::Fail(reason, program)), _) => {
                println!("program {number}: {reason}\n{program:#?}");
                failed.push(number);
            }
            (Err(TestError::Abort(reason)), _) => panic!("program {number}: {reason}"),
        }
    }
    println!("{same} the same, {nothing} that train nothing; off in last bits: {off:?}");
    assert!(failed.is_empty(), "{failed:?}");
}

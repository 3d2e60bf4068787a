//! Whatever the program, the weights are those of plain Burn.
//!
//! Each program is run several times: which graphs Burn's tape merges and forgets is decided by the
//! order of a hash set.

mod program;
mod training;

use std::cell::Cell;
use std::ops::Range;

#[cfg(feature = "ndarray")]
use burn::backend::NdArray;
use proptest::prelude::{TestCaseError, prop_assert_eq, prop_assume};
use proptest::strategy::Strategy;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};

use self::program::{Call, Graph, Op, Operand, Program, Scopes, Step, program};
use self::training::{Reference, Verdict};
use crate::harness::prelude::*;

/// How often a program that fails is tried smaller.
const SHRINKS: u32 = 4096;

/// Tests program number so many, and makes it smaller so often if it fails. Whether it was tested to
/// its end.
fn run_number(
    number: u64,
    shrinks: u32,
    test: impl Fn(Program) -> Result<(), TestCaseError>,
) -> Result<bool, TestError<Program>> {
    let mut seed = [0; 32];
    seed[..8].copy_from_slice(&number.to_le_bytes());
    let config = Config {
        failure_persistence: None,
        max_shrink_iters: shrinks,
        ..Config::default()
    };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let tree = program().new_tree(&mut runner).expect("programs are drawn");
    runner.run_one(tree, test)
}

/// Runs a program that often. How far its last bits were from plain Burn's, if the docs say they may be.
fn check<I: Backend>(program: &Program, runs: usize) -> Result<Verdict, TestCaseError> {
    let reference = Reference::new::<I>(program);
    prop_assume!(reference.moves, "plain Burn trained nothing");
    let mut verdict = Verdict::Same;
    for run in 0..runs {
        let compared = reference.compare::<I>(program);
        match compared.map_err(|fault| TestCaseError::fail(format!("run {run}: {fault}")))? {
            Verdict::Same => {}
            off => verdict = off,
        }
    }
    Ok(verdict)
}

const RUNS: usize = 5;

/// The first programs: the same in each run, so that one that fails is known by its number.
fn check_first<I: Backend>(programs: u64) {
    for number in 0..programs {
        let checked = run_number(number, SHRINKS, |program| {
            let verdict = check::<I>(&program, RUNS)?;
            prop_assert_eq!(verdict, Verdict::Same);
            Ok(())
        });
        match checked {
            Ok(true) => {}
            Ok(false) => panic!("program {number} trains nothing, and so proves nothing"),
            Err(fault) => panic!("program {number}: {fault}"),
        }
    }
}

#[test]
fn random_programs_train_the_same() {
    check_first::<Flex>(24);
}

/// Slower, and of the same engine.
#[cfg(feature = "ndarray")]
#[test]
fn random_programs_train_the_same_on_ndarray() {
    check_first::<NdArray>(16);
}

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
        let shrinks = if failed.len() < SHRUNK { SHRINKS } else { 0 };
        let verdict = Cell::new(Verdict::Same);
        let ran = run_number(number, shrinks, |program| {
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

/// Equal to the last bit, whatever the docs allow.
#[track_caller]
fn check_all_bits(program: &Program) {
    let verdict = check::<Flex>(program, RUNS).expect("the same weights");
    assert_eq!(verdict, Verdict::Same, "{program:?}");
}

/// A training with one graph.
fn training(
    parameters: usize,
    ops: Vec<Op>,
    outputs: Vec<Operand>,
    scopes: Scopes,
    is_armed: bool,
) -> Program {
    let graph = Graph {
        ops,
        outputs,
        shared: false,
        scopes,
    };
    let step = Step {
        graph: 0,
        is_armed,
        call: Call::None,
        discarded: (false, false),
        keeps_values: false,
    };
    Program {
        parameters,
        graphs: vec![graph],
        steps: vec![step; 4],
        recompute: Recompute::None,
    }
}

/// Found among some 18,000 random programs: the first use is in a branch that leads nowhere, higher
/// than the loss itself, of which Burn's tape has no level.
#[test]
fn a_parameter_first_used_above_the_loss() {
    use Operand::Any;

    let ops = vec![
        Op::Matmul(Any(0), Any(0)),
        Op::Unsqueeze(Any(3)),
        Op::Add(Any(2), Any(4)),
        Op::Add(Any(5), Any(1)),
        Op::Tanh(Any(0)),
    ];
    let mut program = training(3, ops, vec![Any(1)], Scopes::None, true);
    program.graphs[0].shared = true;
    check_all_bits(&program);
}

/// The first parameter is used on the tape outside of scopes alone, which the backward pass comes
/// to from two sides: through the scope, and from the loss. Of one order, its uses add up as Burn
/// reaches them.
#[test]
fn what_is_below_a_scope_and_beside_it() {
    use Operand::{Newest, Parameter};

    let ops = vec![
        Op::Matmul(Parameter(0), Parameter(0)),
        Op::Add(Newest(0), Parameter(0)),
        Op::Unsqueeze(Newest(0)),
        Op::Add(Newest(0), Parameter(1)),
        Op::Matmul(Parameter(1), Newest(0)),
    ];
    let scopes = Scopes::Some(vec![(2, false), (1, true)]);
    check_all_bits(&training(2, ops, vec![Parameter(0)], scopes, false));
}

/// Random program number 560, made smaller. What the scope gives is used by an operation that is
/// kept, and by two that are computed again: plain Burn adds up what comes from the first of these,
/// then what comes from the kept one, then the rest.
#[test]
fn a_kept_operation_adds_between_two_that_are_computed_again() {
    use Operand::{Newest, Parameter};

    let ops = vec![
        Op::Matmul(Parameter(0), Parameter(0)),
        Op::Matmul(Newest(0), Newest(0)),
        Op::Matmul(Parameter(1), Newest(0)),
        Op::Add(Parameter(0), Newest(0)),
        Op::Tanh(Newest(2)),
        Op::Multiply(Parameter(0), Newest(0)),
        Op::Add(Newest(4), Newest(0)),
    ];
    let scopes = Scopes::Some(vec![(1, true)]);
    check_all_bits(&Program {
        recompute: Recompute::Automatic,
        ..training(2, ops, vec![Newest(3)], scopes, true)
    });
}

/// Random programs number 580 and 1911, made smaller. What a scope gives is used inside it, too, by
/// an operation whose contribution comes first in plain Burn and last here.
#[test]
fn a_result_that_its_scope_uses_and_others_twice() {
    use Operand::{Any, Newest, Parameter};

    let ops = vec![
        Op::Matmul(Parameter(1), Parameter(1)),
        Op::Matmul(Newest(0), Parameter(0)),
    ];
    let scopes = Scopes::Some(vec![(2, true)]);
    for is_armed in [false, true] {
        let (ops, scopes) = (ops.clone(), scopes.clone());
        check_all_bits(&training(2, ops, vec![Any(2), Any(2)], scopes, is_armed));
    }
}

//! Programs by number: the same one in each run.

use proptest::strategy::Strategy;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

use super::program::{Program, program};

/// How often a program that fails is tried smaller.
pub(super) const SHRINKS: u32 = 4096;

/// Tests program number so many, and makes it smaller so often if it fails. Whether it was tested to
/// its end.
pub(super) fn run(
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

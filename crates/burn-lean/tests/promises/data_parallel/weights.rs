//! The weights of replicas after each step.

use std::num::NonZeroUsize;
use std::sync::Arc;

use burn_lean::{Alone, DataParallel, Replicas, Threads};

use super::reference::{Net, one_process, parallel, share};
use crate::harness::prelude::*;

const STEPS: usize = 6;

/// Numbers of replicas.
const SIZES: std::ops::RangeInclusive<usize> = 1..=4;

/// How replicas train.
#[derive(Clone, Copy, Debug)]
pub(super) struct How {
    pub(super) size: usize,
    is_sharded: bool,
    in_flight: usize,
    pub(super) has_scopes: bool,
}

impl How {
    /// In each way, with so many replicas.
    pub(super) fn all(size: usize) -> impl Iterator<Item = Self> {
        let kinds = [(false, 1), (true, 1), (true, 3)];
        kinds.into_iter().flat_map(move |(is_sharded, in_flight)| {
            [false, true].map(|has_scopes| Self {
                size,
                is_sharded,
                in_flight,
                has_scopes,
            })
        })
    }

    pub(super) fn parallel(self, replicas: Replicas) -> DataParallel {
        let in_flight = NonZeroUsize::new(self.in_flight).expect("one at least");
        parallel(replicas, self.is_sharded).with_max_in_flight(in_flight)
    }
}

/// Trains in threads, and compares each step of each.
pub(super) fn assert_run(
    how: How,
    expected: &[Bits],
    optim: impl Fn() -> ReleaseOptimizer + Sync,
    step: impl Fn(Net, &mut ReleaseOptimizer, usize, usize) -> Net + Sync,
) {
    Threads::run(how.size, |replicas| {
        assert_replica(how, replicas, expected, optim(), &step);
    });
}

/// Trains one of the replicas, and compares each step.
fn assert_replica(
    how: How,
    replicas: Replicas,
    expected: &[Bits],
    optim: ReleaseOptimizer,
    step: impl Fn(Net, &mut ReleaseOptimizer, usize, usize) -> Net,
) -> ReleaseOptimizer {
    let rank = replicas.rank();
    let parallel = how.parallel(replicas);
    let mut model = parallel.broadcast(Net::new()).unwrap();
    let mut optim = optim.with_reduction(Arc::new(parallel));
    for (at, expected) in expected.iter().enumerate() {
        model = step(model, &mut optim, at, rank);
        let what = format!("{how:?}, step {at}, rank {rank}");
        assert_bits(&bits(&model), expected, &what);
    }
    optim
}

fn released() -> ReleaseOptimizer {
    adamw().with_gradient_release()
}

/// One step of a replica with release. What is in flight when backward ends is stepped then.
fn release(how: How, model: Net, optim: &mut ReleaseOptimizer, step: usize, rank: usize) -> Net {
    let loss = model.loss(share(step, rank, how.size), how.has_scopes);
    let model = optim.backward(LR, loss, model);
    let report = optim.last_step().unwrap();
    assert_eq!(report.count(Outcome::Unused), 2, "{report:?}");
    // The first step reduces in an order of its own.
    let at_end = report.count(Outcome::AtEnd);
    assert!(step == 0 || at_end <= how.in_flight, "{report:?}");
    model
}

#[test]
fn replicas_have_the_weights_of_one_process() {
    for size in SIZES {
        let (_, expected) = one_process(&mut adamw(), size, STEPS, 1);
        for how in How::all(size) {
            assert_run(how, &expected, released, |model, optim, step, rank| {
                release(how, model, optim, step, rank)
            });
            // Gradients that exist already are reduced by `step`.
            assert_run(how, &expected, released, |model, optim, step, rank| {
                if step % 3 == 2 {
                    return release(how, model, optim, step, rank);
                }
                let grads = model.grads(share(step, rank, size), how.has_scopes);
                optim.step(LR, model, grads)
            });
        }
    }
}

/// The same in processes that `mpirun` starts.
#[cfg(feature = "mpi")]
#[test]
fn processes_have_the_weights_of_one() {
    let test = "data_parallel::weights::processes_have_the_weights_of_one";
    super::processes::ranks([2, 4], test, |replicas| {
        let size = replicas.size();
        let (_, expected) = one_process(&mut adamw(), size, STEPS, 1);
        for is_sharded in [false, true] {
            let how = How {
                size,
                is_sharded,
                in_flight: 2,
                has_scopes: true,
            };
            // A process joins the others once.
            let replicas = replicas.clone();
            assert_replica(
                how,
                replicas,
                &expected,
                released(),
                |model, optim, step, rank| release(how, model, optim, step, rank),
            );
        }
    });
}

/// Only the step communicates, with the last micro-batch or after it.
#[test]
fn accumulated_gradients() {
    const MICRO: usize = 3;
    let optim = || momentum().with_gradient_release();
    for size in SIZES.skip(1) {
        let (_, expected) = one_process(&mut momentum(), size, STEPS, MICRO);
        for how in How::all(size) {
            assert_run(how, &expected, optim, |model, optim, step, rank| {
                let loss = |at| {
                    let batch = share(step * MICRO + at, rank, size);
                    model.loss(batch, how.has_scopes)
                };
                let last = step % 2 + MICRO - 1;
                (0..last).for_each(|at| optim.accumulate(loss(at), &model));
                match last < MICRO {
                    true => optim.backward(LR, loss(last), model),
                    false => optim.step(LR, model, GradientsParams::new()),
                }
            });
        }
    }
}

/// A replica without others trains as without replicas, and its states are whole.
#[test]
fn one_replica_alone() {
    let (_, expected) = one_process(&mut adamw(), 1, STEPS, 1);
    let replicas = Replicas::new(|| Ok(Alone)).unwrap();
    let how = How {
        size: 1,
        is_sharded: true,
        in_flight: 1,
        has_scopes: true,
    };
    let optim = assert_replica(
        how,
        replicas,
        &expected,
        released(),
        |model, optim, step, rank| release(how, model, optim, step, rank),
    );
    assert!(optim.try_to_record().is_ok());
}

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

/// One step of a replica with release.
fn release(how: How, model: Net, optim: &mut ReleaseOptimizer, step: usize, rank: usize) -> Net {
    let model = optim.arm(LR, model);
    let grads = model.grads(share(step, rank, how.size), how.has_scopes);
    let model = optim.step(LR, model, grads);
    let report = optim.last_step().unwrap();
    assert_eq!(report.count(Outcome::Ordinary), 0, "{report:?}");
    assert_eq!(report.count(Outcome::Unused), 2, "{report:?}");
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
            // What `step` steps with is reduced there: of a model that was not armed, all.
            assert_run(how, &expected, released, |model, optim, step, rank| {
                let is_armed = step % 3 == 2;
                let model = match is_armed {
                    true => optim.arm(LR, model),
                    false => model,
                };
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

/// Only the last micro-batch communicates.
#[test]
fn accumulated_gradients() {
    const MICRO: usize = 3;
    let optim = || momentum().with_gradient_release();
    for size in SIZES.skip(1) {
        let (_, expected) = one_process(&mut momentum(), size, STEPS, MICRO);
        for how in How::all(size) {
            assert_run(how, &expected, optim, |mut model, optim, step, rank| {
                let mut accumulator = ReleaseAccumulator::new();
                for batch in 0..MICRO {
                    let is_last = batch + 1 == MICRO;
                    model = match is_last {
                        true => optim.arm_accumulated(LR, model, accumulator.grads()),
                        false => accumulator.arm(model),
                    };
                    let batch = share(step * MICRO + batch, rank, size);
                    let grads = model.grads(batch, how.has_scopes);
                    match is_last {
                        true => model = optim.step(LR, model, grads),
                        false => accumulator.accumulate(&model, grads),
                    }
                }
                model
            });
        }
    }
}

/// Between backward and `step` a gradient may be on its way. Who reads its weight waits for it.
#[test]
fn a_weight_read_before_step_is_the_new_one() {
    let (_, expected) = one_process(&mut adamw(), 2, 4, 1);
    for is_sharded in [false, true] {
        let how = How {
            size: 2,
            is_sharded,
            in_flight: 4,
            has_scopes: true,
        };
        assert_run(how, &expected, released, |model, optim, step, rank| {
            let model = optim.arm(LR, model);
            let grads = model.loss(share(step, rank, 2), true).backward();
            let copy = bits(&model.clone().materialize());
            assert_bits(&copy, &expected[step], "a copy of before `step`");
            let grads = GradientsParams::from_grads(grads, &model);
            optim.step(LR, model, grads)
        });
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

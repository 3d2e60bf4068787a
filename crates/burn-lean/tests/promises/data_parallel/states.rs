//! Optimizer states: one replica has those of a parameter, and a record has all of them.

use std::sync::Arc;

use burn::module::Module;
use burn::optim::OptimizerRecord;
use burn::tensor::Bytes;
use burn_lean::{
    DataParallel, FirstPass, ReleaseError, ReleaseOptimizer, Replicas, Threads, WithGradientRelease,
};

use super::reference::{Net, mean_grads, one_process, share};
use crate::harness::{Bits, LR, adamw, assert_bits, bits, flex};

fn sharded(replicas: Replicas) -> DataParallel {
    DataParallel::new(replicas).with_sharded_optimizer()
}

fn optim_of(parallel: &DataParallel) -> ReleaseOptimizer {
    adamw()
        .with_gradient_release()
        .with_first_pass(FirstPass::Exact)
        .with_reduction(Arc::new(parallel.clone()))
}

fn train(
    mut model: Net,
    optim: &mut ReleaseOptimizer,
    steps: std::ops::Range<usize>,
    rank: usize,
    size: usize,
) -> Net {
    for step in steps {
        model = optim.arm(LR, model);
        let grads = model.grads(share(step, rank, size), step % 2 == 0);
        model = optim.step(LR, model, grads);
    }
    model
}

/// The model and the record of the first of so many replicas after five steps.
fn five_steps(size: usize) -> (Net, OptimizerRecord) {
    let saved = Threads::run(size, |replicas| {
        let rank = replicas.rank();
        let parallel = sharded(replicas);
        let mut optim = optim_of(&parallel);
        let model = parallel.broadcast(Net::new()).unwrap();
        let model = train(model, &mut optim, 0..5, rank, size);
        let refused = optim.try_to_record().unwrap_err();
        assert_eq!(refused, ReleaseError::Sharded);
        let record = parallel.gather_states(&optim).unwrap();
        // To gather changes nothing.
        let again = parallel.gather_states(&optim).unwrap();
        assert_eq!(again.len(), record.len());
        let Err(refused) = optim.try_into_optimizer() else {
            panic!("a part of the states was handed out");
        };
        assert_eq!(*refused.error(), ReleaseError::Sharded);
        (model, record)
    });
    // Two moments of seven parameters; each is at one replica.
    let all: usize = saved.iter().map(|(_, record)| record.len()).sum();
    let first = saved[0].1.len();
    assert_eq!((first, all - first), (14, 14 - owned(size)));
    saved.into_iter().next().expect("there is a first")
}

/// How many moments the first of so many replicas has itself.
fn owned(size: usize) -> usize {
    let counts = Threads::run(size, |replicas| {
        let rank = replicas.rank();
        let parallel = sharded(replicas);
        let mut optim = optim_of(&parallel);
        let model = parallel.broadcast(Net::new()).unwrap();
        train(model, &mut optim, 0..1, rank, size);
        parallel.gather_states(&optim).unwrap().len()
    });
    14 - counts[1..].iter().sum::<usize>()
}

/// Seven steps of one process, of which the last two have these shares.
fn expected(size: usize) -> Vec<Bits> {
    one_process(&mut adamw(), size, 7, 1).1
}

#[test]
fn a_record_of_replicas_is_plain_burns() {
    for size in [2, 3, 4] {
        let (mut model, record) = five_steps(size);
        let mut optim = adamw().load_record(record);
        for (step, expected) in expected(size).iter().enumerate().skip(5) {
            let grads = mean_grads(&model, size, step, 1);
            model = optim.step(LR, model, grads);
            assert_bits(&bits(&model), expected, "plain Burn goes on");
        }
    }
}

#[test]
fn each_replica_loads_its_share() {
    let size = 3;
    let (model, record) = five_steps(size);
    let bytes = record.into_bytes().unwrap().to_vec();
    let expected = &expected(size)[6];
    for before in [false, true] {
        Threads::run(size, |replicas| {
            let rank = replicas.rank();
            let parallel = sharded(replicas);
            let model = parallel.broadcast(model.clone().fork(&flex())).unwrap();
            let record = OptimizerRecord::from_bytes(Bytes::from_bytes_vec(bytes.clone())).unwrap();
            // Loaded before there is a reduction, or after.
            let mut optim = match before {
                true => adamw()
                    .with_gradient_release()
                    .with_first_pass(FirstPass::Exact)
                    .load_record(record)
                    .with_reduction(Arc::new(parallel.clone())),
                false => optim_of(&parallel).load_record(record),
            };
            let own = parallel.gather_states(&optim).unwrap().len();
            assert!(rank == 0 || own < 14, "rank {rank} has {own} moments");
            let model = train(model, &mut optim, 5..7, rank, size);
            assert_bits(&bits(&model), expected, "a resumed replica");
        });
    }
}

#[test]
#[should_panic = "is in no model that the replicas have compared"]
fn states_of_a_model_that_is_not_known_are_refused() {
    let (_, record) = five_steps(2);
    let bytes = record.into_bytes().unwrap().to_vec();
    Threads::run(2, |replicas| {
        let record = OptimizerRecord::from_bytes(Bytes::from_bytes_vec(bytes.clone())).unwrap();
        optim_of(&sharded(replicas)).load_record(record);
    });
}

//! Optimizer states: one replica has those of a parameter, and a record has all of them.

use std::sync::Arc;

use burn::module::Module;
use burn::optim::OptimizerRecord;
use burn::tensor::Bytes;
use burn_lean::{
    DataParallel, FirstPass, ReleaseError, ReleaseOptimizer, Replicas, SaveStatesError, Threads,
    WithGradientRelease,
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
        let [record_len, again] = [&record, &again].map(|record| {
            let record = record.as_ref();
            record.map(OptimizerRecord::len)
        });
        assert_eq!(again, record_len);
        let Err(refused) = optim.try_into_optimizer() else {
            panic!("a part of the states was handed out");
        };
        assert_eq!(*refused.error(), ReleaseError::Sharded);
        (model, record)
    });
    // Two moments of seven parameters, of which nothing is kept elsewhere.
    let (first, others) = saved.split_first().expect("there is a first");
    assert_eq!(first.1.as_ref().map(OptimizerRecord::len), Some(14));
    assert!(others.iter().all(|(_, record)| record.is_none()));
    let (model, record) = saved.into_iter().next().expect("there is a first");
    (model, record.expect("it was looked at"))
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
            let all = parallel.gather_states(&optim).unwrap();
            assert_eq!(all.map(|all| all.len()), (rank == 0).then_some(14));
            let model = train(model, &mut optim, 5..7, rank, size);
            assert_bits(&bits(&model), expected, "a resumed replica");
        });
    }
}

/// The file is the record, and only the first replica writes one.
#[test]
fn states_are_saved_parameter_by_parameter() {
    let folder = tempfile::tempdir().unwrap();
    for (size, is_sharded) in [(1, true), (2, false), (2, true), (3, true)] {
        let file = |rank| {
            folder
                .path()
                .join(format!("{size}-{is_sharded}-{rank}.bpk"))
        };
        let records = Threads::run(size, |replicas| {
            let rank = replicas.rank();
            let parallel = match is_sharded {
                true => sharded(replicas),
                false => DataParallel::new(replicas),
            };
            let mut optim = optim_of(&parallel);
            let model = parallel.broadcast(Net::new()).unwrap();
            let model = train(model, &mut optim, 0..5, rank, size);
            parallel.save_states(&optim, file(rank)).unwrap();
            let record = parallel.gather_states(&optim).unwrap();
            (model, record)
        });
        assert!((1..size).all(|rank| !file(rank).exists()));
        let (model, record) = records.into_iter().next().expect("there is a first");
        let goes_on = |record: OptimizerRecord| {
            let mut optim = adamw().load_record(record);
            let grads = mean_grads(&model, size, 5, 1);
            bits(&optim.step(LR, model.clone(), grads))
        };
        let saved = OptimizerRecord::load(file(0)).unwrap();
        assert_eq!(saved.len(), 14);
        let expected = goes_on(record.unwrap());
        assert_bits(&goes_on(saved), &expected, "from the file");
        assert_bits(&expected, &self::expected(size)[5], "from the record");
    }
}

/// Each reads its share of the file, or all of it where states are not sharded.
#[test]
fn states_are_loaded_from_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let size = 3;
    let (model, record) = five_steps(size);
    let file = folder.path().join("optim.bpk");
    record.save(&file).unwrap();
    let expected = &expected(size)[6];
    for is_sharded in [true, false] {
        Threads::run(size, |replicas| {
            let rank = replicas.rank();
            let parallel = match is_sharded {
                true => sharded(replicas),
                false => DataParallel::new(replicas),
            };
            let model = parallel.broadcast(model.clone().fork(&flex())).unwrap();
            let optim = optim_of(&parallel);
            let nowhere = folder.path().join("nowhere.bpk");
            assert!(parallel.load_states(optim_of(&parallel), nowhere).is_err());
            let mut optim = parallel.load_states(optim, &file).unwrap();
            let model = train(model, &mut optim, 5..7, rank, size);
            assert_bits(&bits(&model), expected, "a resumed replica");
        });
    }
}

/// A file that cannot be written is the first replica's affair: they train on together.
#[test]
fn replicas_go_on_after_a_file_that_could_not_be_written() {
    let folder = tempfile::tempdir().unwrap();
    let size = 3;
    Threads::run(size, |replicas| {
        let rank = replicas.rank();
        let parallel = sharded(replicas);
        let mut optim = optim_of(&parallel);
        let model = parallel.broadcast(Net::new()).unwrap();
        let model = train(model, &mut optim, 0..5, rank, size);
        let saved = parallel.save_states(&optim, folder.path().join("no folder").join("optim.bpk"));
        match rank {
            0 => assert!(
                matches!(saved, Err(SaveStatesError::File { .. })),
                "{saved:?}"
            ),
            _ => saved.unwrap(),
        }
        let model = train(model, &mut optim, 5..7, rank, size);
        assert_bits(&bits(&model), &expected(size)[6], "trained on");
        parallel
            .save_states(&optim, folder.path().join("optim.bpk"))
            .unwrap();
    });
    let saved = OptimizerRecord::load(folder.path().join("optim.bpk")).unwrap();
    assert_eq!(saved.len(), 14);
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

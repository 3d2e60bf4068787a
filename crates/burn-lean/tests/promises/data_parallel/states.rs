//! Optimizer states: one replica has those of a parameter, and a record has all of them.

use std::sync::Arc;

use burn::tensor::Bytes;
use burn_lean::{DataParallel, ReplicaError, Replicas, SaveStatesError, Threads};

use super::reference::{Net, mean_grads, one_process, parallel, share};
use crate::harness::prelude::*;

/// Two moments of seven parameters.
const STATES: usize = 14;

fn release() -> ReleaseOptimizer {
    adamw().with_gradient_release()
}

fn optim_of(parallel: &DataParallel) -> ReleaseOptimizer {
    release().with_reduction(Arc::new(parallel.clone()))
}

fn train(
    mut model: Net,
    optim: &mut ReleaseOptimizer,
    steps: std::ops::Range<usize>,
    parallel: &DataParallel,
) -> Net {
    let (rank, size) = (parallel.replicas().rank(), parallel.replicas().size());
    for step in steps {
        let loss = model.loss(share(step, rank, size), step % 2 == 0);
        model = optim.backward(LR, loss, model);
    }
    model
}

/// Five steps of a replica.
fn five_steps(replicas: Replicas, is_sharded: bool) -> (Net, ReleaseOptimizer, DataParallel) {
    let parallel = parallel(replicas, is_sharded);
    let mut optim = optim_of(&parallel);
    let model = parallel.broadcast(Net::new()).unwrap();
    let model = train(model, &mut optim, 0..5, &parallel);
    (model, optim, parallel)
}

/// The model and the bytes of the record of so many replicas after five steps.
fn gathered(size: usize) -> (Net, Vec<u8>) {
    let saved = Threads::run(size, |replicas| {
        let (model, optim, parallel) = five_steps(replicas, true);
        (model, parallel.gather_states(&optim).unwrap())
    });
    let (model, record) = saved.into_iter().next().expect("there is a first");
    let record = record.expect("it has the record");
    (model, record.into_bytes().unwrap().to_vec())
}

fn record_of(bytes: &[u8]) -> OptimizerRecord {
    OptimizerRecord::from_bytes(Bytes::from_bytes_vec(bytes.to_vec())).unwrap()
}

/// Seven steps of one process that adds up the gradients.
fn expected(size: usize) -> Vec<Bits> {
    one_process(&mut adamw(), size, 7, 1).1
}

/// Only gathered ones can be saved. To gather changes nothing.
#[test]
fn states_of_one_replica_are_not_handed_out() {
    let gathered = Threads::run(3, |replicas| {
        let (_, optim, parallel) = five_steps(replicas, true);
        assert_eq!(optim.try_to_record().unwrap_err(), ReleaseError::Sharded);
        let states = [(); 2].map(|()| parallel.gather_states(&optim).unwrap());
        let Err(refused) = optim.try_into_optimizer() else {
            panic!("a part of the states was handed out");
        };
        assert_eq!(*refused.error(), ReleaseError::Sharded);
        states.map(|states| states.map(|states| states.len()))
    });
    assert_eq!(gathered, [[Some(STATES); 2], [None; 2], [None; 2]]);
}

/// Written by the first replica, in one file and in one record: plain Burn goes on from either.
#[test]
fn saved_states_are_plain_burns() {
    let folder = tempfile::tempdir().unwrap();
    for (size, is_sharded) in [(1, true), (2, false), (2, true), (3, true), (4, true)] {
        let name = |rank| format!("{size}-{is_sharded}-{rank}.bpk");
        let file = |rank| folder.path().join(name(rank));
        let records = Threads::run(size, |replicas| {
            let (model, optim, parallel) = five_steps(replicas, is_sharded);
            let rank = parallel.replicas().rank();
            parallel.save_states(&optim, file(rank)).unwrap();
            (model, parallel.gather_states(&optim).unwrap())
        });
        assert!((1..size).all(|rank| !file(rank).exists()));
        let (model, record) = records.into_iter().next().expect("there is a first");
        let saved = OptimizerRecord::load(file(0)).unwrap();
        let expected = expected(size);
        for (from, record) in [("record", record.unwrap()), ("file", saved)] {
            assert_eq!(record.len(), STATES);
            let (mut model, mut optim) = (model.clone(), adamw().load_record(record));
            for (step, expected) in expected.iter().enumerate().skip(5) {
                let grads = mean_grads(&model, size, step, 1);
                model = optim.step(LR, model, grads);
                assert_bits(&bits(&model), expected, &format!("{from} of {}", name(0)));
            }
        }
    }
}

/// How replicas come to saved states.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Source {
    RecordBeforeReduction,
    Record,
    File,
}

/// Each keeps its share, of a file it reads no more; or all where states are not sharded.
#[test]
fn replicas_load_what_was_saved() {
    const SIZE: usize = 3;
    let (model, record) = gathered(SIZE);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("optim.bpk");
    record_of(&record).save(&file).unwrap();
    let expected = &expected(SIZE)[6];
    for (source, is_sharded) in [
        (Source::RecordBeforeReduction, true),
        (Source::Record, true),
        (Source::File, true),
        (Source::File, false),
    ] {
        Threads::run(SIZE, |replicas| {
            let rank = replicas.rank();
            let parallel = parallel(replicas, is_sharded);
            let model = parallel.broadcast(model.clone().fork(&flex())).unwrap();
            let mut optim = match source {
                Source::RecordBeforeReduction => release()
                    .load_record(record_of(&record))
                    .with_reduction(Arc::new(parallel.clone())),
                Source::Record => optim_of(&parallel).load_record(record_of(&record)),
                Source::File => {
                    let nowhere = folder.path().join("nowhere.bpk");
                    assert!(parallel.load_states(optim_of(&parallel), nowhere).is_err());
                    parallel.load_states(optim_of(&parallel), &file).unwrap()
                }
            };
            let all = parallel.gather_states(&optim).unwrap();
            assert_eq!(all.map(|all| all.len()), (rank == 0).then_some(STATES));
            let model = train(model, &mut optim, 5..7, &parallel);
            let what = format!("{source:?}, sharded: {is_sharded}");
            assert_bits(&bits(&model), expected, &what);
        });
    }
}

/// An old file on one machine, or that of another model.
#[test]
fn replicas_load_the_same_states_of_the_model() {
    let folder = tempfile::tempdir().unwrap();
    let files = ["new", "old"].map(|name| folder.path().join(name));
    let (model, record) = gathered(2);
    let mut optim = adamw().load_record(record_of(&record));
    optim.to_record().save(&files[1]).unwrap();
    optim.step(LR, model.clone(), mean_grads(&model, 2, 5, 1));
    optim.to_record().save(&files[0]).unwrap();
    for is_sharded in [true, false] {
        Threads::run(2, |replicas| {
            let rank = replicas.rank();
            let parallel = parallel(replicas, is_sharded);
            parallel.broadcast(model.clone().fork(&flex())).unwrap();
            let loaded = parallel.load_states(optim_of(&parallel), &files[rank]);
            let error = loaded.map(drop).unwrap_err();
            assert!(matches!(error, ReplicaError::Differs { .. }), "{error}");
        });
        Threads::run(2, |replicas| {
            let parallel = parallel(replicas, is_sharded);
            let other: Linear = LinearConfig::new(2, 2).init(&flex());
            parallel.broadcast(other).unwrap();
            let loaded = parallel.load_states(optim_of(&parallel), &files[0]);
            let error = loaded.map(drop).unwrap_err();
            let is_unknown = matches!(error, ReplicaError::UnknownParameter { .. });
            assert!(is_unknown, "{error}");
        });
    }
}

/// None of them returns before the file is complete, although the first alone writes it.
#[test]
fn a_file_that_was_saved_is_loaded_at_once() {
    let folder = tempfile::tempdir().unwrap();
    for is_sharded in [false, true] {
        Threads::run(3, |replicas| {
            let (_, optim, parallel) = five_steps(replicas, is_sharded);
            for time in 0..8 {
                let file = folder.path().join(format!("{is_sharded}-{time}.bpk"));
                parallel.save_states(&optim, &file).unwrap();
                let saved = OptimizerRecord::load(&file).unwrap();
                assert_eq!(saved.len(), STATES);
                parallel.load_states(optim_of(&parallel), &file).unwrap();
            }
        });
    }
}

/// A file that one machine does not have: none waits for the other, and they load another together.
#[test]
fn all_replicas_hear_of_a_file_that_cannot_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let [file, nowhere] = ["optim.bpk", "nowhere.bpk"].map(|name| folder.path().join(name));
    for is_sharded in [false, true] {
        let errors = Threads::run(2, |replicas| {
            let rank = replicas.rank();
            let (_, optim, parallel) = five_steps(replicas, is_sharded);
            parallel.save_states(&optim, &file).unwrap();
            let files = [&file, &nowhere];
            let loaded = parallel.load_states(optim_of(&parallel), files[rank]);
            let error = loaded.map(drop).unwrap_err();
            parallel.load_states(optim_of(&parallel), &file).unwrap();
            error.to_string()
        });
        assert!(errors[0].contains("No such file"), "{}", errors[0]);
        assert_eq!(errors[0], errors[1]);
    }
}

/// A file that cannot be written: all hear of it, and train on together.
#[test]
fn replicas_go_on_after_a_file_that_could_not_be_written() {
    const SIZE: usize = 3;
    let folder = tempfile::tempdir().unwrap();
    let (no_folder, file) = (folder.path().join("none"), folder.path().join("optim.bpk"));
    let expected = &expected(SIZE)[6];
    Threads::run(SIZE, |replicas| {
        let (model, mut optim, parallel) = five_steps(replicas, true);
        let saved = parallel.save_states(&optim, no_folder.join("optim.bpk"));
        let error = saved.unwrap_err();
        assert!(matches!(error, SaveStatesError::File { .. }), "{error}");
        assert!(error.to_string().contains("No such file"), "{error}");
        let model = train(model, &mut optim, 5..7, &parallel);
        assert_bits(&bits(&model), expected, "trained on");
        parallel.save_states(&optim, &file).unwrap();
    });
    assert_eq!(OptimizerRecord::load(&file).unwrap().len(), STATES);
}

#[test]
#[should_panic = "is in no model that the replicas have compared"]
fn states_of_a_model_that_is_not_known_are_refused() {
    let (_, record) = gathered(2);
    Threads::run(2, |replicas| {
        optim_of(&parallel(replicas, true)).load_record(record_of(&record));
    });
}

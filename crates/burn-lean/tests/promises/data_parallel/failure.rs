//! A replica that goes another way is named on all of them.

use std::sync::Arc;

use burn_lean::{DataParallel, Replicas, Threads};

use super::reference::parallel;
use crate::harness::prelude::*;

#[derive(Module, Debug)]
struct Pair {
    one: Linear,
    other: Linear,
}

fn pair(width: usize) -> Pair {
    let device = flex();
    let linear = |inputs, outputs| LinearConfig::new(inputs, outputs).init(&device);
    Pair {
        one: linear(4, width),
        other: linear(4, 4),
    }
}

/// What the second replica does otherwise than the others, from the third step on.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Otherwise {
    /// Leaves a layer out.
    Path,
    Rate(f64),
    /// From the first step on: one keeps a share of the states.
    Sharded,
    Ends,
}

/// Trains; the text of what comes of it.
fn train(replicas: Replicas, how: Otherwise) -> String {
    let is_other = replicas.rank() == 1;
    let parallel = parallel(replicas, is_other && how == Otherwise::Sharded);
    let mut model = parallel.broadcast(pair(4)).unwrap();
    let optim = adamw().with_gradient_release();
    let mut optim = optim.with_reduction(Arc::new(parallel));
    for step in 1..6 {
        let is_other = is_other && step == 3;
        if is_other && how == Otherwise::Ends {
            return String::new();
        }
        let rate = match how {
            Otherwise::Rate(rate) if is_other => rate,
            _ => 1e-3,
        };
        let stepped = panic_of(|| {
            let x = numbers::<2>([2, 4], step, &flex());
            let mut loss = model.one.forward(x.clone()).square().mean();
            if !(is_other && how == Otherwise::Path) {
                loss = loss + model.other.forward(x).square().mean();
            }
            optim.backward(rate, loss, model)
        });
        model = match stepped {
            Ok(model) => model,
            Err(text) => {
                // Every call after it says the same.
                let (model, given) = (pair(4), GradientsParams::new());
                let refused = optim.try_step(rate, model, given).unwrap_err();
                let ReleaseError::Reduction { reason } = refused.error() else {
                    panic!("{refused}");
                };
                assert!(text.contains(reason), "{text}, then {reason}");
                return text;
            }
        };
    }
    panic!("nobody has noticed");
}

#[test]
fn a_replica_that_goes_another_way_is_named() {
    let rate = "rank 0, 2: the end of step 3 with rate 1e-3";
    let otherwise: [(Otherwise, &[&str]); 5] = [
        (
            Otherwise::Path,
            &[
                "rank 0, 2: the gradient of other.",
                "in step 3",
                "rank 1: the ",
            ],
        ),
        (
            Otherwise::Rate(2e-3),
            &[rate, "rank 1: the end of step 3 with rate 2e-3"],
        ),
        (
            Otherwise::Rate(0.0),
            &[rate, "rank 1: the end of step 3 with rate 0e0"],
        ),
        (
            Otherwise::Sharded,
            &[
                "rank 0, 2: the gradient of ",
                "rank 1: the gradient of ",
                " in step 1 for rank ",
            ],
        ),
        (Otherwise::Ends, &["rank 1: the end of the training"]),
    ];
    for (how, expected) in otherwise {
        let texts = Threads::run(3, |replicas| train(replicas, how));
        for (rank, text) in texts.iter().enumerate() {
            if rank == 1 && how == Otherwise::Ends {
                continue;
            }
            let begin = format!("rank {rank} of 3: the replicas do not do the same: ");
            for expected in [&[begin.as_str()][..], expected].concat() {
                assert!(text.contains(expected), "{how:?}: {text}");
            }
        }
    }
}

/// A process that leaves in the middle of a step, as its program does that returns an error.
#[cfg(feature = "mpi")]
#[test]
fn a_process_that_leaves_has_the_last_word() {
    let test = "data_parallel::failure::a_process_that_leaves_has_the_last_word";
    let said = super::processes::failing_ranks(3, test, |replicas| {
        let is_leaving = replicas.rank() == 1;
        let text = train(replicas, Otherwise::Ends);
        // The replicas are dropped by now: the one that leaves has taken its leave. With the first
        // process that ends, `mpirun` ends the others.
        match is_leaving {
            true => println!("why: I had to go"),
            false => std::thread::sleep(std::time::Duration::from_secs(1)),
        }
        println!("{text}");
        std::process::exit(1);
    });
    let Some(said) = said else { return };
    assert!(said.contains("why: I had to go"), "{said}");
    assert!(said.contains("rank 1: the end of the training"), "{said}");
}

/// A process that is killed ends all.
#[cfg(feature = "mpi")]
#[test]
fn a_process_that_is_killed() {
    let test = "data_parallel::failure::a_process_that_is_killed";
    let said = super::processes::failing_ranks(3, test, |replicas| {
        if replicas.rank() == 1 {
            let this = std::process::id().to_string();
            let mut kill = std::process::Command::new("sh");
            kill.args(["-c", &format!("sleep 0.2; kill -9 {this}")]);
            #[expect(clippy::zombie_processes, reason = "this process is what it kills")]
            kill.spawn().expect("a system has a shell");
        }
        let parallel = DataParallel::new(replicas);
        let mut model = parallel.broadcast(pair(4)).unwrap();
        let optim = adamw().with_gradient_release();
        let mut optim = optim.with_reduction(Arc::new(parallel));
        for step in 0.. {
            let x = numbers::<2>([2, 4], step, &flex());
            let loss = model.one.forward(x).square().mean();
            model = optim.backward(1e-3, loss, model);
        }
    });
    if let Some(said) = said {
        assert!(said.contains("exited on signal 9"), "{said}");
    }
}

#[test]
fn another_model() {
    type Make = fn(bool) -> Pair;
    let rows: [(Make, &str); 2] = [
        (|is_other| pair(4 + usize::from(is_other)), "[4, 5] F32"),
        (
            |is_other| {
                let Pair { one, other } = pair(4);
                let one = if is_other { one.no_grad() } else { one };
                Pair { one, other }
            },
            "[4, 4] F32, not trained",
        ),
    ];
    for (make, named) in rows {
        let errors = Threads::run(2, |replicas| {
            let model = make(replicas.rank() == 1);
            let parallel = DataParallel::new(replicas);
            parallel.broadcast(model).unwrap_err().to_string()
        });
        for (rank, error) in errors.into_iter().enumerate() {
            let expected = format!(
                "rank {rank} of 2: the replicas do not do the same: rank 0: parameter one.weight \
                 [4, 4] F32; rank 1: parameter one.weight {named}"
            );
            assert_eq!(error, expected);
        }
    }
}

/// Refused by `backward` and by `step`.
#[test]
fn a_parameter_that_nobody_knows() {
    Threads::run(1, |replicas| {
        let parallel = Arc::new(DataParallel::new(replicas));
        let optim = || adamw().with_gradient_release();
        let mut optims = [(); 2].map(|()| optim().with_reduction(parallel.clone()));
        let loss = |model: &Pair| model.one.forward(numbers([2, 4], 0, &flex())).mean();
        let model = pair(4);
        let before = bits(&model);
        let grads = GradientsParams::from_grads(loss(&model).backward(), &model);
        let refused = optims[0].try_step(LR, model, grads).unwrap_err();
        let (model, error) = refused.into_parts();
        assert_error!(error, Reduction, "is in no model that the replicas have");
        let refused = optims[1].try_backward(LR, loss(&model), model).unwrap_err();
        let (model, error) = refused.into_parts();
        assert_error!(error, Reduction, "is in no model that the replicas have");
        assert_eq!(bits(&model), before);
    });
}

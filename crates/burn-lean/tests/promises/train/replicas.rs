//! Replicas that train with the Learner have the weights of one process, which adds up the gradients
//! of their shares.

use std::path::Path;
use std::sync::Arc;

use burn::train::Interrupter;
use burn_lean::train::INTERRUPTED_ELSEWHERE;
use burn_lean::{MixedPrecision, Replicas, Threads};

use super::harness::{
    ByHand, Directory, Mode, Net, OnStep, Run, Training, User, stopping_once_worse,
};
use crate::clipping::by_hand::{clip_global, scale};
use crate::data_parallel::reference::parallel;
use crate::harness::prelude::*;
#[cfg(feature = "safetensors")]
use crate::optim::states_of_file;

const EPOCHS: usize = 4;
/// Batches of all replicas in an epoch.
const ALL: usize = 8;

/// Makes the mean over replicas of a sum, and clips it.
struct Mean {
    size: usize,
    max_norm: Option<f64>,
}

impl ByHand for Mean {
    fn change(&self, model: &Net, grads: &mut GradientsParams) {
        // A power of two: the bits of a quotient.
        scale(model, grads, 1.0 / self.size as f64);
        if let Some(max_norm) = self.max_norm {
            clip_global(model, grads, max_norm);
        }
    }
}

fn training() -> Training {
    Training {
        epochs: EPOCHS,
        batches: ALL,
        ..Training::new(adamw)
    }
}

fn one_process(size: usize, max_norm: Option<f64>) -> Run {
    let mut training = training();
    training.accumulation = Some(size);
    training.model.user.by_hand = Some(Arc::new(Mean { size, max_norm }));
    training.run(Mode::Stock)
}

#[derive(Clone, Copy, Debug)]
struct How {
    is_sharded: bool,
    max_norm: Option<f64>,
}

impl How {
    fn unclipped(is_sharded: bool) -> Self {
        Self {
            is_sharded,
            max_norm: None,
        }
    }

    /// Training of a replica that logs in a folder of its own.
    fn training(self, replicas: Replicas, folder: &Path) -> Training {
        let directory = Directory::at(&folder.join(format!("rank-{}", replicas.rank())));
        let parallel = parallel(replicas, self.is_sharded);
        let mut training = Training {
            replicas: Some((parallel, folder.to_path_buf())),
            has_two_passes: self.max_norm.is_some(),
            directory,
            ..training()
        };
        if let Some(max_norm) = self.max_norm {
            let clipping = NormClipping::GlobalNorm { max_norm };
            training.settings = Arc::new(move |optim| optim.with_norm_clipping(clipping));
        }
        training
    }
}

/// Each replica updates its own running statistics.
fn weights(bits: &Bits) -> Bits {
    let weights = bits.iter().filter(|(path, _)| !path.contains("running"));
    weights.cloned().collect()
}

/// Resumed after two epochs: all from the checkpoint that the first has saved.
#[test]
fn replicas_have_the_weights_of_one_process() {
    for size in [1, 4] {
        for (is_sharded, max_norm) in [(false, None), (true, None), (true, Some(0.5))] {
            let how = How {
                is_sharded,
                max_norm,
            };
            let what = format!("{size} replicas, {how:?}");
            let expected = weights(&one_process(size, max_norm).last);
            let folder = Directory::temporary();
            let ends = Threads::run(size, |replicas| {
                let begun = Training {
                    epochs: EPOCHS / 2,
                    saves: true,
                    ..how.training(replicas.clone(), folder.path())
                };
                begun.run(Mode::Released);
                // The files of the first are complete.
                replicas.meet("the end of the first half").unwrap();
                let resumed = Training {
                    epochs: EPOCHS,
                    saves: true,
                    checkpoint: Some(EPOCHS / 2),
                    ..how.training(replicas, folder.path())
                };
                resumed.run(Mode::Released).last
            });
            for (rank, last) in ends.iter().enumerate() {
                let what = format!("{what}, rank {rank}");
                assert_bits(&weights(last), &expected, &what);
                assert_bits(last, &ends[0], &format!("{what} and the first"));
            }
            let files = folder.checkpoints();
            assert!(files.iter().any(|file| file == "optim-4.bpk"), "{files:?}");
        }
    }
}

/// All stop after the same iteration, and the others say why.
#[test]
fn an_interruption_of_one_stops_all() {
    let how = How::unclipped(false);
    let folder = Directory::temporary();
    let runs = Threads::run(2, |replicas| {
        let rank = replicas.rank();
        let interrupter = Interrupter::new();
        let stop = interrupter.clone();
        let on_step = OnStep(Arc::new(move |step| {
            if rank == 1 && step == 2 {
                stop.stop(Some("enough"));
            }
        }));
        let mut training = how.training(replicas, folder.path());
        training.interrupter = interrupter;
        training.model.user = User {
            on_step,
            ..User::default()
        };
        training.run(Mode::Released)
    });
    let elsewhere = format!("{INTERRUPTED_ELSEWHERE}: enough");
    for (run, reason) in runs.iter().zip([elsewhere.as_str(), "enough"]) {
        assert_eq!(run.losses.len(), 3);
        assert_eq!(run.interrupted.as_deref(), Some(reason));
    }
    assert_bits(&runs[0].last, &runs[1].last, "interrupted");
}

/// At launch, where batches end, and where weights are compared.
#[test]
fn what_a_replica_does_otherwise_is_named() {
    type Change = fn(&mut Training);
    let rows: [(Change, &str); 3] = [
        (
            |training| training.epochs = EPOCHS + 1,
            "rank 0: the setting epochs: 4; rank 1: the setting epochs: 5",
        ),
        (
            // The last batch is that of the second replica.
            |training| training.batches = ALL - 1,
            "rank 1: the end of the batches of epoch 1",
        ),
        (
            |training| training.optim = || AdamWConfig::new().with_weight_decay(0.5).init(),
            "rank 0: parameter input.weight [8, 8] F32, id ",
        ),
    ];
    for (change, named) in rows {
        let folder = Directory::temporary();
        let ends = Threads::run(2, |replicas| {
            let is_second = replicas.rank() == 1;
            let mut training = How::unclipped(false).training(replicas, folder.path());
            if is_second {
                change(&mut training);
            }
            panic_of(|| training.run(Mode::Released)).map(drop)
        });
        for end in ends {
            let text = end.expect_err(named);
            assert!(text.contains(named), "{text}");
        }
    }
}

/// The first validates, and decides for all.
#[test]
fn all_stop_early_together() {
    let how = How::unclipped(true);
    let folder = Directory::temporary();
    let runs = Threads::run(2, |replicas| {
        let training = Training {
            epochs: 9,
            early_stopping: Some(stopping_once_worse()),
            ..how.training(replicas, folder.path())
        };
        training.run(Mode::Released)
    });
    // The first has two batches of validation, too.
    let epochs = runs[1].losses.len() / (ALL / 2);
    assert!((2..9).contains(&epochs), "{epochs} epochs");
    assert_eq!(runs[0].losses.len(), epochs * (ALL / 2 + 2));
    assert_bits(&runs[0].last, &runs[1].last, "stopped early");
}

/// A checkpoint of the Learner with the state of clipping is loaded by a loop of replicas.
#[test]
fn a_loop_of_replicas_goes_on_from_a_checkpoint_of_the_learner() {
    let mut training = training();
    training.saves = true;
    training.settings =
        Arc::new(|optim| optim.with_norm_clipping(NormClipping::AutoClip(AutoClipConfig::new())));
    training.run(Mode::Released);
    let file = training.directory.checkpoint("optim-4.bpk");
    let states = adamw().load_record(OptimizerRecord::load(&file).unwrap());
    let expected = states.to_record().len();
    for is_sharded in [false, true] {
        let found = Threads::run(2, |replicas| {
            let parallel = parallel(replicas, is_sharded);
            // Without the running statistics, which the threads would share.
            let net = &training.model;
            let layers = [&net.input, &net.query, &net.key, &net.value, &net.head];
            let norms = (net.norm.clone(), net.batch_norm.gamma.clone());
            let trained = (
                layers.map(Linear::clone),
                norms,
                net.batch_norm.beta.clone(),
            );
            parallel.verify(&trained).unwrap();
            let optim = adamw().with_gradient_release();
            let optim = optim.with_reduction(Arc::new(parallel.clone()));
            let optim = parallel.load_states(optim, &file).unwrap();
            let loaded = parallel.gather_states(&optim).unwrap();
            let optim = optim.load_record(OptimizerRecord::load(&file).unwrap());
            let again = parallel.gather_states(&optim).unwrap();
            [loaded, again].map(|record| record.map(|record| record.len()))
        });
        assert_eq!(found[0], [Some(expected); 2]);
    }
}

/// All stop before the same step, and the result has the reason.
#[test]
fn a_batch_that_cannot_be_loaded_stops_all() {
    let how = How::unclipped(false);
    let folder = Directory::temporary();
    let runs = Threads::run(2, |replicas| {
        let mut training = how.training(replicas, folder.path());
        // Of the second batch of the second replica.
        training.unreadable = Some(7);
        panic_of(|| training.run(Mode::Released))
    });
    let [Ok(first), Err(second)] = &runs[..] else {
        panic!("{runs:?}");
    };
    assert!(second.contains("no item 7"), "{second}");
    assert_eq!(first.losses.len(), 1);
    let reason = first.interrupted.as_deref().unwrap_or_default();
    assert!(
        reason.starts_with(INTERRUPTED_ELSEWHERE) && reason.contains("no item 7"),
        "{reason}"
    );
}

/// The states of all replicas are saved as those of one process are, in their own types.
#[cfg(feature = "safetensors")]
#[test]
fn sharded_states_are_saved_as_they_are() {
    let mut model = training().model;
    model.head = MixedPrecision::bf16().cast(model.head).unwrap();
    model.user.half = Some(DType::BF16);
    let [expected, found] = [false, true].map(|is_sharded| {
        let folder = Directory::temporary();
        let how = How::unclipped(is_sharded);
        Threads::run(2, |replicas| {
            let mut training = Training {
                epochs: 1,
                saves: true,
                ..how.training(replicas, folder.path())
            };
            training.model = model.clone();
            training.run(Mode::Released);
        });
        states_of_file(&folder.checkpoint("optim-1.bpk"))
    });
    let mut kinds = expected.values().map(|(kind, _)| kind);
    assert!(kinds.any(|kind| kind.contains("BF16")));
    assert!(found == expected);
}

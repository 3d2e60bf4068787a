//! Results of a training run, and how they are compared.

use std::fmt::Display;
use std::fs;

use burn::optim::Optimizer;
use burn::record::Recorder;

use super::{Bin, Directory, Mode, Renderer, Stock, Task, Training};
use crate::harness::weights::readable;
use crate::harness::{Plain, Weights};

/// A run that has ended.
pub(crate) struct Run {
    /// The weights that each training step found.
    pub(crate) found: Vec<Weights>,
    /// The weights of the result.
    pub(crate) last: Weights,
    /// The weights that each call of `optimize` was given, where they are noted.
    pub(crate) given: Vec<Weights>,
    pub(crate) renderer: Renderer,
    pub(crate) directory: Directory,
}

impl Run {
    /// Differences from stock, the first one first, for a run that begins at this step of the stock
    /// run and may end before it.
    pub(crate) fn difference(&self, stock: &Self, first: usize) -> Option<String> {
        let end = first + self.found.len();
        let expected = stock.found.iter().chain([&stock.last]).skip(first);
        let found = self.found.iter().chain([&self.last]);
        if end > stock.found.len() {
            return Some(format!("{end} training steps, not {}", stock.found.len()));
        }
        let step = found.zip(expected).position(|(a, b)| !a.same(b))?;
        Some(format!("weights differ before training step {step}"))
    }

    /// Fails unless every step found the weights that stock found, and ended with its weights.
    #[track_caller]
    pub(crate) fn assert_same(&self, stock: &Self, context: impl Display) {
        stock.assert_trained();
        assert_eq!(self.found.len(), stock.found.len(), "{context}: steps");
        assert_eq!(self.difference(stock, 0), None, "{context}");
    }

    /// Fails unless the run trained anything: the guard against comparing nothing with nothing.
    #[track_caller]
    pub(crate) fn assert_trained(&self) {
        assert!(self.last.finite(), "the run blew up");
        self.last.assert_moved(&self.found[0], "the run");
    }

    /// What [`Bin`] has saved of the optimizer, readable.
    pub(crate) fn optim_record(&self, epoch: usize) -> serde_json::Value {
        type Record =
            <<Stock as Mode>::Optim as Optimizer<super::RegressionModel<Plain>, Plain>>::Record;

        let file = self.directory.checkpoint(&format!("optim-{epoch}"));
        let record: Record = Recorder::<Plain>::load(&Bin::default(), file, &Default::default())
            .expect("the file is whole");
        readable::<Plain, _>(record)
    }

    /// Fails unless both have saved the same model and scheduler, byte for byte, and an optimizer,
    /// which is a hash map, of the same content.
    #[track_caller]
    pub(crate) fn assert_saved_same(&self, stock: &Self, epoch: usize) {
        for part in ["model", "scheduler"] {
            let file = format!("{part}-{epoch}.bin");
            let [found, expected] =
                [self, stock].map(|run| fs::read(run.directory.checkpoint(&file)).expect(&file));
            assert!(found == expected, "{file} differs");
        }
        let optim = self.optim_record(epoch);
        assert_eq!(optim, stock.optim_record(epoch), "optimizer, epoch {epoch}");
        assert!(optim.as_object().is_some_and(|states| !states.is_empty()));
    }
}

/// Trains a part of a run.
pub(crate) type Part<'a> = &'a dyn Fn(&Task, &Training) -> Run;

/// Trains an epoch with each of these in turn, each from the checkpoint of the one before and with
/// a model that has other weights until then. Fails unless they find the weights of a run in one
/// go.
#[track_caller]
pub(crate) fn resumed(task: &Task, training: &Training, parts: &[Part<'_>], whole: &Run) -> Run {
    whole.assert_trained();
    let mut last = None;
    for (done, part) in parts.iter().enumerate() {
        let task = match done {
            0 => task.clone(),
            _ => task.with_other_weights(),
        };
        let run = part(&task, &training.only_epoch(done + 1));
        let batches = training.batches;
        assert_eq!(run.found.len(), batches, "part {done}");
        let difference = run.difference(whole, done * batches);
        assert_eq!(difference, None, "part {done} of {}", parts.len());
        last = Some(run);
    }
    last.expect("there are parts")
}

//! Saving while training waits.

use burn::train::checkpoint::{CheckpointingAction, CheckpointingStrategy};
use burn::train::metric::store::EventStoreClient;

/// A [`CheckpointingStrategy`] whose checkpoints are on disk before the next epoch begins.
///
/// Burn writes a checkpoint on other threads while training goes on. Until it is written, its
/// record holds the weights and states of the last epoch, while steps write new ones. With Adam,
/// this adds up to three times the size of the parameters. Where that is too much, put this around
/// the strategy, as the outermost one.
///
/// If the strategy deletes nothing after it saves, this one deletes epoch 0, which does not exist. A
/// [`Checkpointer`](burn::train::checkpoint::Checkpointer) of your own has to accept that, as Burn's
/// do.
///
/// ```
/// use burn::train::checkpoint::KeepLastNCheckpoints;
/// use burn_lean::train::BlockingCheckpointingStrategy;
///
/// // For `.with_checkpointing_strategy(..)`.
/// let strategy = BlockingCheckpointingStrategy::new(KeepLastNCheckpoints::new(2));
/// # let _ = strategy;
/// ```
#[derive(Clone, Debug)]
pub struct BlockingCheckpointingStrategy<S> {
    strategy: S,
}

impl<S: CheckpointingStrategy> BlockingCheckpointingStrategy<S> {
    /// Saves and deletes what this strategy does.
    pub fn new(strategy: S) -> Self {
        Self { strategy }
    }
}

/// Epochs are counted from 1: there is no such file to delete.
const NO_EPOCH: usize = 0;

impl<S: CheckpointingStrategy> CheckpointingStrategy for BlockingCheckpointingStrategy<S> {
    fn checkpointing(
        &mut self,
        epoch: usize,
        store: &EventStoreClient,
    ) -> Vec<CheckpointingAction> {
        let mut actions = self.strategy.checkpointing(epoch, store);
        // Each of Burn's checkpointing threads takes its next message when it has written the last
        // one, and the sender waits until then.
        if actions.last() == Some(&CheckpointingAction::Save) {
            actions.push(CheckpointingAction::Delete(NO_EPOCH));
        }
        actions
    }
}

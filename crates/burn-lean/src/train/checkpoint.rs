//! Saving while training waits.

use burn::train::checkpoint::{CheckpointingAction, CheckpointingStrategy};
use burn::train::metric::store::EventStoreClient;

/// A [`CheckpointingStrategy`] whose checkpoints are on disk before the next epoch begins.
///
/// Burn writes a checkpoint on other threads while training goes on. Until it is written, its
/// record holds the weights and the optimizer's states of the epoch before, beside those that the
/// steps write: with Adam up to three times the parameters. Where that is too much, put this around
/// the strategy, as the outermost one.
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

/// Epochs are counted from 1.
const NO_EPOCH: usize = 0;

impl<S: CheckpointingStrategy> CheckpointingStrategy for BlockingCheckpointingStrategy<S> {
    fn checkpointing(
        &mut self,
        epoch: usize,
        store: &EventStoreClient,
    ) -> Vec<CheckpointingAction> {
        let mut actions = self.strategy.checkpointing(epoch, store);
        if actions.contains(&CheckpointingAction::Save) {
            // Each of Burn's checkpointing threads takes its next message when it has written the
            // last one, and the sender waits until then. There is no such file to delete.
            actions.push(CheckpointingAction::Delete(NO_EPOCH));
        }
        actions
    }
}

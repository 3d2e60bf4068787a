//! The options of `vit-0-21 train`.

use crate::config::{BackendKind, Checkpointing, Mode, OptimizerKind, Preset};
use crate::model::Pool;
use bytesize::ByteSize;
use clap::Args;
use std::num::{NonZeroU64, NonZeroUsize};
use std::path::PathBuf;

#[derive(Debug, Args)]
pub(super) struct TrainArgs {
    /// Images: `digits` (bundled), `fashion-mnist` (Debian's package), or a folder, either of IDX
    /// files under MNIST's names or with one folder of .png or .jpg images for each class
    /// [default: digits]
    #[arg(long)]
    pub(super) data: Option<String>,
    /// Shape of the model [default: tiny]
    #[arg(long, value_enum)]
    pub(super) preset: Option<Preset>,
    /// Backend; a build has those whose cargo feature is on [default: flex]
    #[arg(long, value_enum)]
    pub(super) backend: Option<BackendKind>,
    /// Run every operation on a GPU separately, instead of fused with its neighbours
    #[arg(long)]
    pub(super) no_fusion: bool,
    /// Resume with fusion a run that started with --no-fusion
    #[arg(long, conflicts_with = "no_fusion", requires = "resume")]
    pub(super) fusion: bool,
    /// Plain Burn or gradient release; the weights are the same [default: release]
    #[arg(long, value_enum)]
    pub(super) mode: Option<Mode>,
    /// What the forward pass keeps for the backward pass [default: none]
    #[arg(long, value_enum)]
    pub(super) checkpointing: Option<Checkpointing>,
    /// Memory for activations with --checkpointing automatic, such as 2GiB: what fits is kept,
    /// instead of recomputed; 0 is no budget [default: no budget, the lowest peak]
    #[arg(long, value_name = "SIZE")]
    pub(super) activation_budget: Option<ByteSize>,
    /// Optimizer; Muon is not among them, as it takes matrices only [default: adamw]
    #[arg(long, value_enum)]
    pub(super) optimizer: Option<OptimizerKind>,
    /// Passes over the training images [default: 20]
    #[arg(long)]
    pub(super) epochs: Option<NonZeroUsize>,
    /// Images in a batch [default: 32]
    #[arg(long)]
    pub(super) batch_size: Option<NonZeroUsize>,
    /// Batches whose gradients add up to one step; an incomplete step at the end of an epoch is
    /// dropped [default: 1]
    #[arg(long, value_name = "BATCHES")]
    pub(super) grads_accumulation: Option<NonZeroUsize>,
    /// Stop after this many epochs without a better validation loss [default: never]
    #[arg(long, value_name = "EPOCHS")]
    pub(super) early_stopping: Option<NonZeroUsize>,
    /// Highest learning rate, after a warm-up over a tenth of the batches and before a cosine decay
    /// to zero [default: 0.002]
    #[arg(long, value_name = "RATE")]
    pub(super) lr: Option<f64>,
    /// Decoupled weight decay of --optimizer adamw, adamw-one-pass or adamw-8bit
    /// [default: 0.05]
    #[arg(long, value_name = "DECAY")]
    pub(super) weight_decay: Option<f64>,
    /// No weight decay on biases, norms and embeddings, as is usual for transformers
    #[arg(long)]
    pub(super) no_decay_on_norms: bool,
    /// Clip the gradients by their global norm: each step takes two backward passes, the first of
    /// which only measures [default: no clipping]
    #[arg(long, value_name = "NORM")]
    pub(super) clip_grad_norm: Option<f64>,
    /// Train in the processes that `mpirun` has started, each on its share of every batch; needs a
    /// build with the feature mpi
    #[arg(long)]
    pub(super) data_parallel: bool,
    /// With --data-parallel: each process has the optimizer states of a part of the parameters
    #[arg(long, requires = "data_parallel")]
    pub(super) shard_optimizer: bool,
    /// With --data-parallel: how long a process waits for the others, which includes the time that
    /// the first one takes to validate and to save [default: 1800]
    #[arg(long, value_name = "SECONDS", requires = "data_parallel")]
    pub(super) timeout: Option<NonZeroU64>,
    /// Probability of dropout [default: 0.1]
    #[arg(long, value_name = "PROBABILITY")]
    pub(super) dropout: Option<f64>,
    /// What the classifier reads [default: class-token]
    #[arg(long, value_enum)]
    pub(super) pool: Option<Pool>,
    /// Width and height of an image [default: those of the data, rounded up to whole patches]
    #[arg(long, value_name = "PIXELS")]
    pub(super) image_size: Option<usize>,
    /// Width and height of a patch [default: the preset's]
    #[arg(long, value_name = "PIXELS")]
    pub(super) patch_size: Option<NonZeroUsize>,
    /// Seed of the weights, of the order of the images and of dropout [default: 42]
    #[arg(long)]
    pub(super) seed: Option<u64>,
    /// Folder for settings, checkpoints, metrics and results
    #[arg(long, value_name = "FOLDER", default_value = "artifacts/vit-0-21")]
    pub(super) artifact_dir: PathBuf,
    /// Continue from the newest checkpoint in --artifact-dir; options default to those of that run,
    /// and only --mode, --backend, --checkpointing, --activation-budget, fusion and the place of
    /// --data may differ
    #[arg(long)]
    pub(super) resume: bool,
    /// Start a new run even if --artifact-dir holds another one
    #[arg(long, conflicts_with = "resume")]
    pub(super) overwrite: bool,
    /// Stop after this many batches, as Ctrl-C does: the current epoch is lost, and --resume
    /// continues after the last complete one
    #[arg(long, value_name = "BATCHES")]
    pub(super) stop_after: Option<NonZeroUsize>,
    /// Record a memory timeline of the third and the fourth batch; `burn-memory` shows the file
    #[arg(long, value_name = "FILE")]
    pub(super) memory_timeline: Option<PathBuf>,
    /// Show one line for each epoch on stderr, also on a terminal: Burn's terminal UI keeps a core
    /// busy
    #[arg(long)]
    pub(super) no_tui: bool,
    /// Write the results to stdout as one line of JSON, and imply --no-tui: validation_accuracy,
    /// train_loss, epochs, peak_bytes, peak_reserved_bytes (null on the CPU), weights_digest
    #[arg(long)]
    pub(super) json: bool,
}

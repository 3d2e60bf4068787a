//! A timeline of the memory of a Burn training: the recorder for Burn 0.21. Its recordings are those
//! of `lean-timeline`, whose program `burn-memory` shows them.
//!
//! The recorder follows every tensor in a few training steps, from the operation that makes it to
//! its last copy. It tells parameters, gradients, the optimizer's state, activations that wait for
//! the backward pass, and temporaries apart.
//!
//! # Record
//!
//! A training needs three changes, which cost next to nothing until a [`Recorder`] is started:
//!
//! - [`Recorded`] around the innermost backend: `Autodiff<Recorded<Flex>>`.
//! - The forward and the backward pass within [`forward`] and [`backward`].
//! - The optimizer with [`.recorded()`](RecordSteps::recorded).
//!
#![cfg_attr(feature = "flex", doc = "```")]
#![cfg_attr(not(feature = "flex"), doc = "```ignore")]
//! use burn::{
//!     backend::{Autodiff, Flex},
//!     nn::{Linear, LinearConfig},
//!     optim::{AdamConfig, GradientsParams, Optimizer},
//!     tensor::{Distribution, Tensor},
//! };
//! use burn_gradient_release_timeline::{RecordSteps, Recorded, Recorder, backward, forward};
//! use burn_gradient_release_timeline::snapshot::Category;
//!
//! type B = Autodiff<Recorded<Flex>>;
//!
//! let device = Default::default();
//! let mut model: Linear<B> = LinearConfig::new(64, 8).init(&device);
//! let mut optimizer = AdamConfig::new().init().recorded();
//!
//! // The third and the fourth step.
//! let recording = Recorder::new("a linear layer").start()?;
//! for _ in 0..4 {
//!     let batch = Tensor::<B, 2>::random([16, 64], Distribution::Default, &device);
//!     let loss = forward(&model, || model.forward(batch).mean());
//!     let grads = backward(|| loss.backward());
//!     let grads = GradientsParams::from_grads(grads, &model);
//!     model = optimizer.step(1e-3, model, grads);
//! }
//! let snapshot = recording.finish()?;
//!
//! let gradients = snapshot.holders.iter().filter(|held| held.category == Category::Gradients);
//! let bytes: Vec<u64> = gradients.map(|held| held.bytes).collect();
//! assert_eq!(bytes, [64 * 8 * 4, 8 * 4].repeat(2));
//! # Ok::<(), burn_gradient_release_timeline::RecordError>(())
//! ```
//!
//! With Burn's learner the passes are in the model's `TrainStep`, and [`Recorder::with_file`] writes
//! the snapshot as soon as the steps are over. With gradient release, call `.recorded()`, then
//! `.with_gradient_release()`.
//!
//! # How it works, and what it costs
//!
//! [`Recorded`] is a backend below `Autodiff`. All operations pass through it: forward, backward and
//! in the optimizer. It reads the identity of each tensor's memory, so that neither a view nor a
//! result in the memory of its operand is counted twice.
//!
//! The purpose of memory follows from what becomes of it, and holds from its allocation on. Tensors
//! that outlive the forward pass are activations, those that the backward pass leaves are gradients,
//! and those that a step leaves beside the parameter are the optimizer's state. Nothing is guessed
//! from sizes or names.
//!
//! No tensor has the workspace of an operation: memory that the operation releases before it returns.
//! With a [`MemoryCounter`], which counts the bytes in use by the allocator or the device, workspaces
//! are in the recording too, and the recording shows how well its bytes add up.
//!
//! During a recording, each operation takes a lock and reads the counter. On a GPU each reading waits
//! for the device, so that [`Sampling`] there is by default where phases begin and end.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

mod backend;
mod recorder;
mod storage;

pub use backend::{RecordableBackend, Recorded};
pub use lean_timeline::{Snapshot, analysis, snapshot};
pub use recorder::{
    MemoryCounter, RecordError, RecordSteps, RecordedOptimizer, RecordedTensor, Recorder,
    Recording, Sampling, backward, forward,
};
pub use storage::{HasStorage, Storage};

//! Where the memory of a Burn training goes: a recorder, and a viewer for what it recorded.
//!
//! Who runs out of memory wants to know who had it. The recorder follows every tensor of a few
//! training steps, from the operation that made it to the moment it was let go of, and says what it
//! was for: a parameter, its gradient, the optimizer's state, an activation that waits for the
//! backward pass, or something for a moment only. The viewer, `burn-memory`, draws it over time,
//! and names the largest holders at the peak.
//!
//! # Record
//!
//! Three things are to be done, and none of them costs anything until a [`Recorder`] is started:
//!
//! - [`Recorded`] goes around the innermost backend: `Autodiff<Recorded<Flex>>`.
//! - The forward and the backward pass are made within [`forward`] and [`backward`].
//! - The optimizer is made with [`.recorded()`](RecordSteps::recorded).
//!
#![cfg_attr(feature = "flex", doc = "```")]
#![cfg_attr(not(feature = "flex"), doc = "```ignore")]
//! use burn::{
//!     backend::{Autodiff, Flex},
//!     nn::{Linear, LinearConfig},
//!     optim::{AdamConfig, GradientsParams, Optimizer},
//!     tensor::{Distribution, Tensor},
//! };
//! use burn_memory_timeline::{RecordSteps, Recorded, Recorder, backward, forward};
//! use burn_memory_timeline::snapshot::Category;
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
//! # Ok::<(), burn_memory_timeline::RecordError>(())
//! ```
//!
//! With Burn's learner the passes are in the model's `TrainStep`, and [`Recorder::with_file`]
//! writes the snapshot as soon as the steps are over. Gradient release needs nothing more:
//! `.recorded()`, then
//! `.with_gradient_release()`.
//!
//! # Where it listens, and what that costs
//!
//! [`Recorded`] is a backend below `Autodiff`: all operations pass through it, forward, backward
//! and in the optimizer, and it asks the tensors below where their bytes lie, so that neither
//! a view nor a result in the place of its operand is counted twice. What memory is *for* follows
//! from what becomes of it, and is said from its beginning: what outlives the forward pass is kept for
//! the backward pass, what that leaves is gradients, what a step leaves beside the parameter is the
//! optimizer's state. Nothing is guessed from sizes or names.
//!
//! What an operation takes for itself and gives back before it returns, no tensor has. With a
//! [`MemoryCounter`], the allocator's or the device's own number, it is in the recording as that
//! operation's, and the recording shows how well it adds up.
//!
//! Recording takes a lock and a look at the allocator for every operation. On a GPU every look
//! waits for the device, so that the usual [`Sampling`] there is where phases begin and end.
//!
//! # Look
//!
//! ```text
//! burn-memory summary plain.json.gz
//! burn-memory html plain.json.gz release.json.gz --output page.html
//! burn-memory svg plain.json.gz release.json.gz --output picture.svg
//! ```
//!
//! The [summary](analysis) also says what releasing gradients would make of a recording of plain
//! Burn.
#![forbid(unsafe_code)]

pub mod analysis;
#[cfg(feature = "recorder")]
mod backend;
#[cfg(feature = "recorder")]
mod recorder;
pub mod snapshot;
#[cfg(feature = "recorder")]
mod storage;
#[cfg(feature = "viewer")]
pub mod viewer;

#[cfg(feature = "recorder")]
pub use backend::{RecordableBackend, Recorded};
#[cfg(feature = "recorder")]
pub use recorder::{
    MemoryCounter, RecordError, RecordSteps, RecordedOptimizer, RecordedTensor, Recorder,
    Recording, Sampling, backward, forward,
};
pub use snapshot::Snapshot;
#[cfg(feature = "recorder")]
pub use storage::{HasStorage, Storage};

//! Weights from and to `*.safetensors` files, a block at a time.
//!
//! For models whose memory is counted. A tensor is read into the place where it stays, and transposed and
//! cast on the way; it is written from there. So reading and writing take a block of half a megabyte more
//! than the model. Burn's [`SafetensorsStore`](burn::store::SafetensorsStore) reads a single file, and has
//! a tensor up to three times meanwhile: as in the file, transposed, and cast; it writes it from two
//! copies. Names and the transposition of linear layers are those of its
//! [`PyTorchToBurnAdapter`](burn::store::PyTorchToBurnAdapter).
//!
//! ```
//! use burn::nn::{Linear, LinearConfig};
//! use burn::tensor::Device;
//! use burn_lean::MixedPrecision;
//! use burn_lean::safetensors::{Weights, save};
//!
//! # let folder = tempfile::tempdir()?;
//! # let folder = folder.path();
//! let device = Device::flex();
//! let model: Linear = LinearConfig::new(8, 4).init(&device);
//! save(&model, folder.join("model.safetensors"), str::to_owned, |_, dtype| dtype)?;
//!
//! let weights = Weights::open(folder)?.with_precision(MixedPrecision::bf16());
//! let model = weights.load(LinearConfig::new(8, 4).init(&device), str::to_owned)?;
//! # let _: Linear = model;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod error;
mod load;
mod names;
#[cfg(feature = "operations")]
mod nf4;
mod read;
mod write;

pub use error::SafetensorsError;
pub use load::{Weights, read_all};
pub use write::save;
#[cfg(feature = "optim")]
pub use write::save_master_weights;

#[cfg(feature = "peft")]
pub(crate) use load::fill;
#[cfg(feature = "peft")]
pub(crate) use names::Place;
#[cfg(feature = "peft")]
pub(crate) use read::tensors_of;
#[cfg(feature = "peft")]
pub(crate) use write::{OwnValues, write};

/// Bytes of a block.
const BLOCK: usize = 1 << 18;

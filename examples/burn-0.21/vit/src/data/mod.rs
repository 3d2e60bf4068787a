//! Images with their labels, as Burn's loaders and the model take them.

mod batch;

pub use batch::{Batch, ImageBatcher, Images, TrainBatcher};
pub use vit_common::data::*;

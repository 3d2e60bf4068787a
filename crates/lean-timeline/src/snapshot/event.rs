//! The parts of `torch.cuda.memory._snapshot()` that are written or read.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

/// An event of a device.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Event<'a> {
    pub(super) action: Cow<'a, str>,
    pub(super) addr: u64,
    pub(super) size: u64,
    #[serde(skip_deserializing)]
    pub(super) stream: u64,
    pub(super) time_us: u64,
    pub(super) frames: Vec<Frame<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) category: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "text")]
    pub(super) user_metadata: Option<Cow<'a, str>>,
    /// Only in our files: the tick of the event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tick: Option<usize>,
    /// Only in our files: memory of no holder, which is in the samples, too.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) is_workspace: bool,
}

/// A text; nothing, if it is something else.
fn text<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Cow<'static, str>>, D::Error> {
    let value = Value::deserialize(from)?;
    Ok(value.as_str().map(|text| text.to_owned().into()))
}

/// A place in a program. In our files the function is a parameter and the file an operation.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Frame<'a> {
    pub(super) filename: Cow<'a, str>,
    pub(super) line: i64,
    pub(super) name: Cow<'a, str>,
}

/// Memory that the allocator has reserved, at the end of the recording.
#[derive(Deserialize)]
pub(super) struct Segment<'a> {
    pub(super) device: usize,
    pub(super) address: u64,
    /// They lie side by side, from `address` on.
    pub(super) blocks: Vec<Block<'a>>,
}

/// A part of a segment, in use or not.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Block<'a> {
    pub(super) size: u64,
    pub(super) requested_size: u64,
    pub(super) state: String,
    pub(super) frames: Vec<Frame<'a>>,
}

/// The state of a block that is in use.
pub(super) const IN_USE: &str = "active_allocated";

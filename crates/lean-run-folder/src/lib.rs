#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

mod checkpoints;
pub mod checksum;
#[cfg(feature = "clap")]
mod command_line;
mod disk;
mod error;
mod exit;
mod folder;
mod learner;
mod lock;
mod run;
mod settings;

pub use checkpoints::Checkpoints;
#[cfg(feature = "clap")]
pub use command_line::{FolderOptions, command_line, given_options};
pub use disk::{folder_of, remove, write_json};
pub use error::{CannotWrite, FolderError, RunError, SettingsError};
pub use exit::{CANNOT_WRITE, FAILURE, fail, note};
pub use folder::RunFolder;
pub use learner::{resume_point, resume_point_of_run};
pub use lock::Lock;
pub use run::{Pending, Run, Start};
pub use settings::{identity, listed, resumed};

/// A file whose name begins so was never finished.
pub const UNFINISHED: &str = "unfinished-";

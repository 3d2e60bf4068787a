//! Parameters that are treated differently: which belong together, and what they are stepped with.

mod either;
mod param_group;
mod paths;

pub use either::{Either, JoinError};
pub use param_group::{ParamGroup, ParamGroupError};

//! Parameters that are treated differently: by group, and by what they are stepped with.

mod param_group;

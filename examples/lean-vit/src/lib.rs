//! A vision transformer on Burn 0.22, trained plainly or with gradient release.

#![forbid(unsafe_code)]

pub mod model;
mod release;

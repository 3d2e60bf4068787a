//! Compiles and runs the code of the workspace's README and docs, as documentation tests.

#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;

/// The code of the docs for Burn 0.21: see `build.rs`.
#[cfg(doctest)]
mod pages {
    include!(concat!(env!("OUT_DIR"), "/pages.rs"));
}

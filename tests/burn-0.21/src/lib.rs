//! Compiles and runs the code of the docs for Burn 0.21, as documentation tests.

/// See `build.rs`.
#[cfg(doctest)]
mod pages {
    include!(concat!(env!("OUT_DIR"), "/pages.rs"));
}

//! Compiles and runs the code of the workspace's README and docs, as documentation tests.

#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/gradient-accumulation.md")]
struct GradientAccumulation;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/custom-operations.md")]
struct CustomOperations;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/recomputing-activations.md")]
struct RecomputingActivations;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/optimizers.md")]
struct Optimizers;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/groups-and-clipping.md")]
struct GroupsAndClipping;

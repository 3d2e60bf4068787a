//! Training that fits, for Burn 0.22 and later: gradient release and recomputed activations.

#![forbid(unsafe_code)]

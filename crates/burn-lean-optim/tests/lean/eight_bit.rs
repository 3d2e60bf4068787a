//! Moments in 8 bits.

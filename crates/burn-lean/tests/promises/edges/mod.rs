//! Unusual models and unusual calls: what plain Burn does, or a refusal that has changed nothing.

mod early;
mod models;
mod parts;
mod refused;
mod sequences;

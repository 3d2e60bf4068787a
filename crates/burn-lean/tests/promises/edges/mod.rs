//! Unusual models and unusual calls: what plain Burn does, or a refusal that has changed nothing.

mod calls;
mod frozen;
mod models;
mod moments;
mod sequences;

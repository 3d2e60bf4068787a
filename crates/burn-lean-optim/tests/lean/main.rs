//! Promises of the optimizers of `burn-lean-optim`.

mod accumulation;
mod arithmetic;
mod bf16;
mod eight_bit;
mod exact;
mod harness;
mod in_place;
mod noise;
mod reference;
mod settings;

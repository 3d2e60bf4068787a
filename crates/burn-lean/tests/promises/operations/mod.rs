//! Operations that keep little: their numbers are those of Burn's, and so are their gradients.

mod activations;
mod attention;
mod cross_entropy;
mod dropout;
mod embedding;
mod feed_forward;
mod half;
mod harness;
mod ignored_tokens;
mod linear;
mod lora;
mod memory;
mod modules;
mod nf4;
mod norms;
mod quantized;
mod rotary;
mod tape;
mod threads;

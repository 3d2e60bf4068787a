//! Time of an operation, forward and backward: Burn's, that of burn-lean, and PyTorch's.
//!
//! ```sh
//! cargo run --release -p benchmarks --example operations -- python3
//! RAYON_NUM_THREADS=1 cargo run --release -p benchmarks --example operations -- python3
//! ```
//!
//! The shapes are those of ViT-S/16 at batch 8, and of a vocabulary of 32,000 with 1024 tokens.
//! Printed are medians in milliseconds, and the time of burn-lean's over that of each other. Without
//! a Python that has PyTorch, its column is empty.

use anyhow::{Context, Result, ensure};
use benchmarks::results::median;
use burn_0_22::nn as burn_nn;
use burn_0_22::nn::loss::CrossEntropyLossConfig;
use burn_0_22::tensor::{Device, Distribution, Int, Tensor, activation, module};
use burn_lean::operations::{self, linear_cross_entropy, nn as lean_nn};
use std::collections::HashMap;
use std::env;
use std::process::Command;
use std::thread::available_parallelism;
use std::time::Instant;

const ROUNDS: usize = 15;

/// An operation, and the sum of its result.
type Operation = Box<dyn Fn() -> Tensor<1>>;

fn main() -> Result<()> {
    let threads = match env::var("RAYON_NUM_THREADS") {
        Ok(threads) => threads.parse()?,
        Err(_) => available_parallelism()?.get(),
    };
    let python = env::args().nth(1);
    let pytorch = python.map(|python| pytorch(&python, threads)).transpose()?;
    let pytorch = pytorch.unwrap_or_default();
    println!("{threads} threads");
    println!("ms                    Burn  burn-lean   PyTorch   over Burn   over PyTorch");
    let device = Device::flex().autodiff();
    for (name, burn, lean) in pairs(&device) {
        let (burn, lean) = times(&*burn, &*lean);
        let pytorch = pytorch.get(name).copied().unwrap_or(f64::NAN);
        let ratios = [lean / burn, lean / pytorch];
        println!(
            "{name:<16}{burn:>10.2}{lean:>11.2}{pytorch:>10.2}{:>12.2}{:>15.2}",
            ratios[0], ratios[1]
        );
    }
    Ok(())
}

fn random<const D: usize>(shape: [usize; D], device: &Device) -> Tensor<D> {
    Tensor::random(shape, Distribution::Default, device).require_grad()
}

/// The operation of a module, of Burn's and of burn-lean's, on an input of this shape.
macro_rules! modules {
    ($name:literal, $device:ident, $shape:expr, $config:ident($($size:expr),*)) => {{
        let input = random($shape, $device);
        let burn = burn_nn::$config::new($($size),*).init($device);
        let lean = lean_nn::$config::new($($size),*).init($device);
        let of_lean = input.clone();
        let burn: Operation = Box::new(move || burn.forward(input.clone()).sum());
        let lean: Operation = Box::new(move || lean.forward(of_lean.clone()).sum());
        ($name, burn, lean)
    }};
}

/// Two functions of the same tensors.
macro_rules! functions {
    ($name:literal, [$($input:ident),*], $burn:expr, $lean:expr) => {{
        let inputs = ($($input.clone(),)*);
        let burn: Operation = Box::new(move || $burn($($input.clone()),*).sum());
        let ($($input,)*) = inputs;
        let lean: Operation = Box::new(move || $lean($($input.clone()),*).sum());
        ($name, burn, lean)
    }};
}

fn pairs(device: &Device) -> Vec<(&'static str, Operation, Operation)> {
    let tokens = [8, 197, 384];
    let scores = random([8, 6, 197, 197], device);
    let hidden = random([8, 197, 1536], device);
    let [query, key, value] = [(); 3].map(|()| random([8, 6, 197, 64], device));
    let (states, head) = (random([1024, 384], device), random([384, 32_000], device));
    let targets = Tensor::<1, Int>::arange(0..1024, device);
    let loss = CrossEntropyLossConfig::new().init(device);
    let of_lean = loss.clone();
    vec![
        modules!("linear", device, tokens, LinearConfig(384, 1536)),
        functions!("gelu", [hidden], activation::gelu, operations::gelu),
        modules!("swiglu", device, tokens, SwiGluConfig(384, 1536)),
        modules!("layer_norm", device, tokens, LayerNormConfig(384)),
        modules!("rms_norm", device, tokens, RmsNormConfig(384)),
        functions!(
            "softmax",
            [scores],
            |scores| activation::softmax::<4>(scores, 3),
            |scores| operations::softmax::<4>(scores, 3)
        ),
        functions!(
            "attention",
            [query, key, value],
            |query, key, value| module::attention(
                query,
                key,
                value,
                None,
                None,
                Default::default()
            ),
            |query, key, value| operations::attention(
                query,
                key,
                value,
                None,
                None,
                Default::default()
            )
        ),
        functions!(
            "head and loss",
            [states, head, targets],
            |states: Tensor<2>, head, targets| loss.forward(states.matmul(head), targets),
            |states, head, targets| linear_cross_entropy(&of_lean, states, head, None, targets)
        ),
    ]
}

/// The medians of both, which run in turn.
fn times(burn: &dyn Fn() -> Tensor<1>, lean: &dyn Fn() -> Tensor<1>) -> (f64, f64) {
    let mut times = [Vec::new(), Vec::new()];
    for round in 0..=ROUNDS {
        for (operation, times) in [burn, lean].iter().zip(&mut times) {
            let start = Instant::now();
            operation().backward();
            // The first one asks the system for memory.
            if round > 0 {
                times.push(start.elapsed().as_secs_f64() * 1e3);
            }
        }
    }
    let [burn, lean] = times.map(|times| median(&times).unwrap_or(f64::NAN));
    (burn, lean)
}

/// The milliseconds of each of PyTorch's operations.
fn pytorch(python: &str, threads: usize) -> Result<HashMap<String, f64>> {
    let program = include_str!("../pytorch/operations.py");
    let mut command = Command::new(python);
    command.args(["-c", program, &threads.to_string(), &ROUNDS.to_string()]);
    let output = command
        .output()
        .with_context(|| format!("cannot run {python}"))?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "PyTorch was not measured: {error}");
    let lines = String::from_utf8(output.stdout)?;
    let time = |line: &str| {
        let (name, time) = line.split_once(": ").context("no time")?;
        Ok((name.to_owned(), time.parse()?))
    };
    lines.lines().map(time).collect()
}

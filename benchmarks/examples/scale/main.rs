//! The time of a data parallel step: measured with 1, 2 and 4 replicas, and predicted for them and
//! for more from the parts of one.
//!
//! ViT-S/16 on Flex, Adam, each replica on one thread. Starts `mpirun`:
//!
//! ```sh
//! MALLOC_MMAP_THRESHOLD_=4294967296 MALLOC_TRIM_THRESHOLD_=1099511627776 RAYON_NUM_THREADS=1 \
//!     cargo run --release -p benchmarks --features mpi --example scale -- 1 7
//! ```
//!
//! The arguments are the batch size of a replica and the number of steps.

mod worker;

use anyhow::{Context, Result, ensure};
use benchmarks::scale::{Network, Step};
use burn_gradient_release_data_parallel::{Alone, Mpi, Replicas};
use std::env;
use std::process::Command;
use worker::Measured;

/// Set in the processes that train.
const WORKER: &str = "BENCHMARKS_SCALE_WORKER";

/// Numbers of replicas that are predicted without measuring.
const MANY: [usize; 8] = [8, 16, 32, 64, 128, 256, 512, 1024];

fn main() -> Result<()> {
    let mut arguments = env::args().skip(1).map(|number| number.parse::<usize>());
    let batch_size = arguments.next().transpose()?.unwrap_or(1);
    let steps = arguments.next().transpose()?.unwrap_or(7);
    match env::var(WORKER).as_deref() {
        Ok("alone") => return worker::run(Replicas::new(|| Ok(Alone))?, batch_size, steps),
        Ok(_) => return worker::run(Replicas::new(Mpi::initialize)?, batch_size, steps),
        Err(_) => {}
    }

    let cores = std::thread::available_parallelism()?.get();
    let alone = start(1, 1, batch_size, steps)?;
    let two = start(2, 1, batch_size, steps)?;
    let four = start(4, 1, batch_size, steps)?;
    let network = two.network.context("two processes measure the network")?;
    let parameters: u64 = alone
        .replica
        .gradients
        .iter()
        .map(|gradient| gradient.bytes)
        .sum();
    println!(
        "ViT-S/16, batch {batch_size} for each replica, one thread each, {cores} cores; {} gradients, {:.1} MB",
        alone.replica.gradients.len(),
        parameters as f64 / 1e6
    );
    println!(
        "between two processes: {:.0} us a message, {:.2} GB/s",
        network.latency * 1e6,
        network.bandwidth / 1e9
    );
    println!(
        "{:>8} {:>12} {:>12} {:>12} {:>12}",
        "replicas", "measured, s", "predicted", "waits, s", "predicted"
    );
    for (ranks, measured) in [(1, &alone), (2, &two), (4, &four)] {
        // Processes that share a core compute in turn.
        let slowed = alone.replica.slowed((ranks as f64 / cores as f64).max(1.0));
        let predicted = slowed.step(&network, ranks, 1);
        row(ranks, Some(measured.step), predicted);
    }
    let fast = Network {
        latency: 5e-6,
        bandwidth: 10e9,
    };
    println!("predicted for a core each, on such a network, and on one of 5 us and 10 GB/s:");
    let base = alone.replica.step(&network, 1, 1).seconds;
    for of_a_machine in [1, 8] {
        println!("{of_a_machine} on a machine:");
        println!(
            "{:>8} {:>12} {:>12} {:>12} {:>12}",
            "replicas", "step, s", "efficiency", "step, s", "efficiency"
        );
        for ranks in MANY.into_iter().filter(|ranks| ranks % of_a_machine == 0) {
            let [slow, fast] = [network, fast].map(|network| {
                let step = alone.replica.step(&network, ranks, of_a_machine);
                step.seconds
            });
            println!(
                "{ranks:>8} {slow:>12.3} {:>12.2} {fast:>12.3} {:>12.2}",
                base / slow,
                base / fast
            );
        }
    }

    let both_cores = start(1, cores, 2 * batch_size, steps)?;
    let images = (2 * batch_size) as f64;
    println!(
        "per image: one process with {cores} threads and batch {images} {:.3} s, two with one each {:.3} s, of which \
         {:.0} % waiting",
        both_cores.step.seconds / images,
        two.step.seconds / images,
        100.0 * two.step.waiting / two.step.seconds
    );
    Ok(())
}

fn row(ranks: usize, measured: Option<Step>, predicted: Step) {
    let [seconds, waiting] = match measured {
        Some(step) => [step.seconds, step.waiting].map(|number| format!("{number:.3}")),
        None => [String::new(), String::new()],
    };
    println!(
        "{ranks:>8} {seconds:>12} {:>12.3} {waiting:>12} {:>12.3}",
        predicted.seconds, predicted.waiting
    );
}

/// Trains in so many processes, and returns what the first has measured.
fn start(processes: usize, threads: usize, batch_size: usize, steps: usize) -> Result<Measured> {
    let this = env::current_exe()?;
    let mut command = match processes {
        1 => Command::new(this),
        _ => {
            let mut command = Command::new("mpirun");
            command.args([
                "--oversubscribe",
                "--bind-to",
                "none",
                "-n",
                &processes.to_string(),
            ]);
            command.arg(this);
            command
        }
    };
    let output = command
        .args([batch_size.to_string(), steps.to_string()])
        .env(
            WORKER,
            if processes == 1 {
                "alone"
            } else {
                "one of several"
            },
        )
        .env("RAYON_NUM_THREADS", threads.to_string())
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        .output()
        .context("mpirun cannot be started")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{processes} processes failed:\n{said}"
    );
    let line = String::from_utf8(output.stdout)?;
    serde_json::from_str(&line).with_context(|| format!("not what a process prints: {line}"))
}

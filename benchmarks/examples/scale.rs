//! The time of a data parallel step with 1, 2 and 4 replicas, and how long of it a replica waits for
//! gradients: ViT-S/16 on Flex, Adam, each replica on one thread. Starts `mpirun`:
//!
//! ```sh
//! MALLOC_MMAP_THRESHOLD_=4294967296 MALLOC_TRIM_THRESHOLD_=1099511627776 \
//!     cargo run --release -p benchmarks --features mpi --example scale -- 1 7
//! ```
//!
//! The arguments are the batch size of a replica and the number of steps.

use anyhow::{Context, Result, ensure};
use benchmarks::results::median;
use benchmarks::shape::Shape;
use burn::backend::{Autodiff, Flex};
use burn::module::ParamId;
use burn::optim::{AdamConfig, GradientsParams, Optimizer};
use burn::tensor::ops::FloatTensor;
use burn_gradient_release::{
    GradientReduction, GradientRelease, PendingGradient, Recipients, ReductionError,
    WithGradientRelease,
};
use burn_gradient_release_data_parallel::{Alone, DataParallel, Mpi, Replicas};
use std::env;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use vit_0_21::data::Batch;
use vit_0_21::model::Vit;
use vit_common::config::Preset;

type B = GradientRelease<Autodiff<Flex>>;

/// Set in the processes that train: how many they are.
const WORKER: &str = "BENCHMARKS_SCALE_WORKER";

fn main() -> Result<()> {
    let mut arguments = env::args().skip(1).map(|number| number.parse::<usize>());
    let batch_size = arguments.next().transpose()?.unwrap_or(1);
    let steps = arguments.next().transpose()?.unwrap_or(7);
    match env::var(WORKER).as_deref() {
        Ok("1") => return train(Replicas::new(|| Ok(Alone))?, batch_size, steps),
        Ok(_) => return train(Replicas::new(Mpi::initialize)?, batch_size, steps),
        Err(_) => {}
    }
    println!(
        "ViT-S/16, batch {batch_size} for each replica, one thread each; medians of {steps} steps"
    );
    println!("{:>8} {:>8} {:>8}", "replicas", "step, s", "waits, s");
    for replicas in [1, 2, 4] {
        println!("{replicas:>8} {}", start(replicas, batch_size, steps)?);
    }
    Ok(())
}

/// Trains in so many processes, and returns what the first prints.
fn start(replicas: usize, batch_size: usize, steps: usize) -> Result<String> {
    let replicas = replicas.to_string();
    let this = env::current_exe()?;
    let mut command = Command::new("mpirun");
    command.args(["--oversubscribe", "--bind-to", "none", "-n", &replicas]);
    if replicas == "1" {
        command = Command::new(&this);
    } else {
        command.arg(&this);
    }
    let output = command
        .args([batch_size.to_string(), steps.to_string()])
        .env(WORKER, &replicas)
        .env("RAYON_NUM_THREADS", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        .output()
        .context("mpirun cannot be started")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{replicas} processes failed:\n{said}"
    );
    Ok(String::from_utf8(output.stdout)?.trim_end().into())
}

/// Trains, and prints on the first process the medians of a step's seconds, and of those it waited.
fn train(replicas: Replicas, batch_size: usize, steps: usize) -> Result<()> {
    let parallel = DataParallel::new(replicas);
    let config = Preset::Small.imagenet();
    let seed = parallel.replicas().rank() as u64;
    let batch = Shape::Vit(config.clone())
        .batches(batch_size, 1, seed)
        .remove(0);
    let batch = Batch::of(batch.pixels, batch.shape, batch.labels, &Default::default());
    let mut model = parallel.broadcast(Vit::<B>::new(&config, &Default::default()))?;
    let waited = Waited::default();
    let mut optim = AdamConfig::new()
        .init()
        .with_gradient_release()
        .with_reduction(Arc::new(Timed {
            parallel: parallel.clone(),
            waited: waited.clone(),
        }));
    let (mut seconds, mut waits) = (Vec::new(), Vec::new());
    // The first step makes the states.
    for step in 0..=steps {
        parallel.replicas().meet("the next step")?;
        waited.take();
        let begin = Instant::now();
        model = optim.arm(1e-4, model);
        let loss = model.forward_classification(batch.clone()).loss;
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        model = optim.step(1e-4, model, grads);
        if step > 0 {
            seconds.push(begin.elapsed().as_secs_f64());
            waits.push(waited.take().as_secs_f64());
        }
    }
    if parallel.replicas().is_first() {
        let [seconds, waits] = [seconds, waits].map(|all| median(&all).unwrap_or(f64::NAN));
        println!("{seconds:>8.3} {waits:>8.3}");
    }
    Ok(())
}

/// How long a replica has waited for gradients to arrive.
#[derive(Clone, Debug, Default)]
struct Waited(Arc<Mutex<Duration>>);

impl Waited {
    fn add(&self, time: Duration) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) += time;
    }

    fn take(&self) -> Duration {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Data parallel, with a clock.
struct Timed {
    parallel: DataParallel,
    waited: Waited,
}

impl GradientReduction<Flex> for Timed {
    fn begin(
        &self,
        param: ParamId,
        grad: FloatTensor<Flex>,
        recipients: Recipients,
    ) -> Result<Box<dyn PendingGradient<Flex>>, ReductionError> {
        let pending = GradientReduction::<Flex>::begin(&self.parallel, param, grad, recipients)?;
        let waited = self.waited.clone();
        Ok(Box::new(TimedPending { pending, waited }))
    }

    fn end_step(&self, learning_rate: f64) -> Result<(), ReductionError> {
        GradientReduction::<Flex>::end_step(&self.parallel, learning_rate)
    }
}

struct TimedPending {
    pending: Box<dyn PendingGradient<Flex>>,
    waited: Waited,
}

impl PendingGradient<Flex> for TimedPending {
    fn wait(self: Box<Self>) -> Result<Option<FloatTensor<Flex>>, ReductionError> {
        let begin = Instant::now();
        let grad = self.pending.wait();
        self.waited.add(begin.elapsed());
        grad
    }
}

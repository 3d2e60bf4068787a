//! One of the processes that train.

use anyhow::Result;
use benchmarks::results::LossChunk;
use benchmarks::scale::{Gradient, Network, Replica, Step};
use benchmarks::workload::Workload;
use burn::backend::{Autodiff, Flex};
use burn::module::{Module, Param, ParamId};
use burn::optim::{AdamConfig, GradientsParams, Optimizer};
use burn::tensor::ops::FloatTensor;
use burn::tensor::{Tensor, TensorMetadata};
use burn_gradient_release::{
    GradientReduction, GradientRelease, PendingGradient, Recipients, ReductionError,
    WithGradientRelease,
};
use burn_gradient_release_data_parallel::{DataParallel, Replicas};
use serde::{Deserialize, Serialize};
use std::sync::{Arc, Mutex};
use std::time::Instant;
use vit_0_21::config::Preset;
use vit_0_21::model::VitConfig;

type B = GradientRelease<Autodiff<Flex>>;

/// What a process has measured.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Measured {
    /// The median step, and how long it waited.
    pub(crate) step: Step,
    /// Its parts.
    pub(crate) replica: Replica,
    /// What is between two processes; none if there is one.
    pub(crate) network: Option<Network>,
}

/// What happens in a step, and when.
#[derive(Clone, Debug, Default)]
struct Clock(Arc<Mutex<Vec<Event>>>);

#[derive(Clone, Copy, Debug)]
enum Event {
    /// A gradient is complete.
    Complete(u64, Instant),
    /// A replica waits for one to arrive.
    Wait(Instant, Instant),
}

impl Clock {
    fn note(&self, event: Event) {
        self.0.lock().expect("nothing panics here").push(event);
    }

    fn take(&self) -> Vec<Event> {
        std::mem::take(&mut self.0.lock().expect("nothing panics here"))
    }
}

/// Data parallel, with a clock.
struct Timed {
    parallel: DataParallel,
    clock: Clock,
}

impl GradientReduction<Flex> for Timed {
    fn begin(
        &self,
        param: ParamId,
        grad: FloatTensor<Flex>,
        recipients: Recipients,
    ) -> Result<Box<dyn PendingGradient<Flex>>, ReductionError> {
        let bytes = grad.shape().num_elements() * grad.dtype().size();
        self.clock
            .note(Event::Complete(bytes as u64, Instant::now()));
        let pending = GradientReduction::<Flex>::begin(&self.parallel, param, grad, recipients)?;
        Ok(Box::new(TimedPending {
            pending,
            clock: self.clock.clone(),
        }))
    }

    fn end_step(&self, learning_rate: f64) -> Result<(), ReductionError> {
        GradientReduction::<Flex>::end_step(&self.parallel, learning_rate)
    }
}

struct TimedPending {
    pending: Box<dyn PendingGradient<Flex>>,
    clock: Clock,
}

impl PendingGradient<Flex> for TimedPending {
    fn wait(self: Box<Self>) -> Result<Option<FloatTensor<Flex>>, ReductionError> {
        let begin = Instant::now();
        let grad = self.pending.wait();
        self.clock.note(Event::Wait(begin, Instant::now()));
        grad
    }
}

/// Trains, and prints what was measured on the first process.
pub(crate) fn run(replicas: Replicas, batch_size: usize, steps: usize) -> Result<()> {
    let parallel = DataParallel::new(replicas);
    let network = match parallel.replicas().size() {
        2 => Some(network(&parallel)?),
        _ => None,
    };
    let config = Preset::Small.config(224, 3, 1000);
    let seed = parallel.replicas().rank() as u64;
    let batch = config.batches(batch_size, 1, seed).remove(0);
    let mut model = parallel.broadcast(Workload::init::<B>(&config, false, &Default::default()))?;
    let clock = Clock::default();
    let optim = AdamConfig::new().init().with_gradient_release();
    let mut optim = optim.with_reduction(Arc::new(Timed {
        parallel: parallel.clone(),
        clock: clock.clone(),
    }));
    let mut measured = Vec::new();
    // The first step makes the states.
    for step in 0..=steps {
        parallel.replicas().meet("the next step")?;
        let begin = Instant::now();
        model = optim.arm(1e-4, model);
        let loss = <VitConfig as Workload>::loss::<B>(
            &model,
            batch.clone(),
            LossChunk::WHOLE,
            &Default::default(),
        );
        let forward = begin.elapsed().as_secs_f64();
        let backward = Instant::now();
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        model = optim.step(1e-4, model, grads);
        let seconds = begin.elapsed().as_secs_f64();
        let (replica, waiting) = parts(forward, backward, &clock.take());
        if step > 0 {
            measured.push((Step { seconds, waiting }, replica));
        }
    }
    measured.sort_by(|(one, _), (other, _)| one.seconds.total_cmp(&other.seconds));
    let (step, replica) = measured.swap_remove(measured.len() / 2);
    if parallel.replicas().is_first() {
        let measured = Measured {
            step,
            replica,
            network,
        };
        println!("{}", serde_json::to_string(&measured)?);
    }
    Ok(())
}

/// The parts of a step, and how long it waited.
///
/// A gradient is sent off once the one before has arrived and was stepped with: what is between a
/// gradient and the wait for it is computed for the next one, and what is between that wait and the
/// next gradient is its step.
fn parts(forward: f64, backward: Instant, events: &[Event]) -> (Replica, f64) {
    let seconds = |from: Instant, to: Instant| to.duration_since(from).as_secs_f64();
    let mut gradients: Vec<Gradient> = Vec::new();
    let mut waiting = 0.0;
    let mut sent = backward;
    let mut arrived = backward;
    let mut compute = 0.0;
    for event in events {
        match *event {
            Event::Complete(bytes, at) => {
                match gradients.last_mut() {
                    Some(before) => before.step = seconds(arrived, at),
                    None => compute = seconds(backward, at),
                }
                gradients.push(Gradient {
                    bytes,
                    compute,
                    step: 0.0,
                });
                sent = at;
            }
            Event::Wait(begin, end) => {
                waiting += seconds(begin, end);
                compute = seconds(sent, begin);
                arrived = end;
            }
        }
    }
    // The step of the last one is part of the end.
    let end = compute + arrived.elapsed().as_secs_f64();
    let replica = Replica {
        forward,
        gradients,
        end,
    };
    (replica, waiting)
}

/// Measures messages, and bytes.
fn network(parallel: &DataParallel) -> Result<Network> {
    const ROUNDS: u32 = 200;
    const BYTES: usize = 32 << 20;

    #[derive(Module, Debug)]
    struct Probe<B: burn::tensor::backend::Backend> {
        probe: Param<Tensor<B, 1>>,
    }

    let data = Tensor::<Flex, 1>::zeros([BYTES / size_of::<f32>()], &Default::default());
    let probe = Probe {
        probe: Param::initialized(ParamId::new(), data),
    };
    let probe = parallel.broadcast(probe)?;
    let begin = Instant::now();
    for _ in 0..ROUNDS {
        // A name, and a byte.
        parallel.replicas().any("a probe", false)?;
    }
    let latency = begin.elapsed().as_secs_f64() / f64::from(2 * ROUNDS);
    let mut seconds = Vec::new();
    for _ in 0..5 {
        let grad = probe.probe.val().into_primitive().tensor();
        let begin = Instant::now();
        let reduction: &dyn GradientReduction<Flex> = parallel;
        let pending = reduction.begin(probe.probe.id, grad, Recipients::All);
        let mean: Option<FloatTensor<Flex>> = pending
            .and_then(|pending| pending.wait())
            .map_err(|error| anyhow::anyhow!("{error}"))?;
        drop(mean);
        seconds.push(begin.elapsed().as_secs_f64());
    }
    seconds.sort_by(f64::total_cmp);
    let unlimited = Network {
        latency,
        bandwidth: f64::INFINITY,
    };
    let of_bytes = seconds[2] - unlimited.reduce(BYTES as u64, 2, 1);
    Ok(Network {
        latency,
        bandwidth: BYTES as f64 / of_bytes.max(1e-9),
    })
}

//! A replica that goes another way, or ends.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use burn::tensor::ops::FloatTensor;
use burn_gradient_release::{GradientReduction, PendingGradient, Recipients, ReductionError};
use burn_gradient_release_data_parallel::{DataParallel, Replicas};

use crate::harness::prelude::*;
use crate::harness::ranks::failing_ranks;

/// How long it may take until all processes are gone.
const AT_MOST: Duration = Duration::from_secs(10);

#[derive(Module, Debug)]
struct Pair<B: Backend> {
    one: Linear<B>,
    other: Linear<B>,
}

fn pair() -> Pair<R> {
    let linear = || LinearConfig::new(4, 4).init(&Default::default());
    Pair {
        one: linear(),
        other: linear(),
    }
}

/// Trains; `used` says which layers, by rank and step.
fn train(replicas: Replicas, used: fn(usize, u64) -> [bool; 2], at_step: fn(usize, u64)) {
    let rank = replicas.rank();
    let parallel = DataParallel::new(replicas);
    let device = Default::default();
    let mut model = parallel.broadcast(pair()).unwrap();
    let optim = AdamConfig::new().init().with_gradient_release();
    let mut optim = optim.with_reduction(Arc::new(parallel));
    for step in 0..50 {
        model = optim.arm(1e-3, model);
        let x: Tensor<R, 2> = noise(step, [2, 4], &device);
        let [one, other] = used(rank, step);
        let mut loss = Tensor::<R, 1>::zeros([1], &device);
        if one {
            loss = loss + model.one.forward(x.clone()).square().mean();
        }
        if other {
            loss = loss + model.other.forward(x).square().mean();
        }
        at_step(rank, step);
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        model = optim.step(1e-3, model, grads);
    }
}

fn fails_in_time(test: &str, body: fn(Replicas)) -> Option<String> {
    let begun = Instant::now();
    let said = failing_ranks(3, test, body)?;
    assert!(begun.elapsed() < AT_MOST, "{:?}\n{said}", begun.elapsed());
    Some(said)
}

#[test]
fn another_path_through_the_model_is_named_on_every_rank() {
    let test = "mpi::failure::another_path_through_the_model_is_named_on_every_rank";
    let said = fails_in_time(test, |replicas| {
        train(
            replicas,
            |rank, step| [true, (rank, step) != (1, 3)],
            |_, _| {},
        );
    });
    let Some(said) = said else { return };
    for part in [
        "rank 0, 2: the gradient of other.",
        "rank 1: the gradient of one.",
        "in step 4",
    ] {
        assert!(said.contains(part), "{part}\n{said}");
    }
}

#[test]
fn a_gradient_less_is_named() {
    let test = "mpi::failure::a_gradient_less_is_named";
    let said = fails_in_time(test, |replicas| {
        train(
            replicas,
            |rank, step| [(rank, step) != (2, 3), true],
            |_, _| {},
        );
    });
    let Some(said) = said else { return };
    assert!(said.contains("in step 4"), "{said}");
    assert!(
        said.contains("rank 2: the end of step 4 with rate 1e-3"),
        "{said}"
    );
}

#[test]
fn a_panic_ends_all() {
    let said = fails_in_time("mpi::failure::a_panic_ends_all", |replicas| {
        train(
            replicas,
            |_, _| [true; 2],
            |rank, step| assert!((rank, step) != (1, 5), "told to fail"),
        );
    });
    let Some(said) = said else { return };
    assert!(said.contains("told to fail"), "{said}");
}

/// When a process is killed.
#[derive(Clone, Copy, PartialEq)]
enum Moment {
    Forward,
    Backward,
    Reduction,
    Optimizer,
    Finish,
}

/// Ends this process as an operating system does that has no memory left.
fn kill_this_if(is_now: bool) {
    if is_now {
        let this = std::process::id().to_string();
        let kill = std::process::Command::new("kill")
            .args(["-9", &this])
            .status();
        kill.expect("a system has kill");
        std::thread::sleep(AT_MOST);
    }
}

/// Data parallel, until its process is killed.
#[derive(Clone)]
struct Killed {
    parallel: DataParallel,
    at: Option<Moment>,
    begun: Arc<AtomicUsize>,
}

impl GradientReduction<Flex> for Killed {
    fn begin(
        &self,
        param: ParamId,
        grad: FloatTensor<Flex>,
        recipients: Recipients,
    ) -> Result<Box<dyn PendingGradient<Flex>>, ReductionError> {
        // In the middle of a backward pass.
        let is_now = self.begun.fetch_add(1, Ordering::Relaxed) == 9;
        kill_this_if(is_now && self.at == Some(Moment::Backward));
        let pending = GradientReduction::<Flex>::begin(&self.parallel, param, grad, recipients);
        kill_this_if(is_now && self.at == Some(Moment::Reduction));
        pending
    }

    fn end_step(
        &self,
        learning_rate: f64,
        other_rates: &HashMap<ParamId, f64>,
    ) -> Result<(), ReductionError> {
        let is_late = self.begun.load(Ordering::Relaxed) > 9;
        kill_this_if(is_late && self.at == Some(Moment::Finish));
        GradientReduction::<Flex>::end_step(&self.parallel, learning_rate, other_rates)
    }
}

fn train_until(moment: Moment, replicas: Replicas) {
    let at = (replicas.rank() == 1).then_some(moment);
    let parallel = DataParallel::new(replicas);
    let start = Start::new::<Mlp>(Size::Small).model::<Mlp, R>();
    let mut model = parallel.broadcast(start).unwrap();
    let begun = Arc::<AtomicUsize>::default();
    let (steps, is_victim) = (begun.clone(), at == Some(Moment::Optimizer));
    let hooked = Hooked::with_hook(move |_, rate| {
        kill_this_if(is_victim && steps.load(Ordering::Relaxed) > 9);
        rate
    });
    let optim = ReleaseOptimizer::from(hooked);
    let mut optim = optim.with_reduction(Arc::new(Killed {
        parallel,
        at,
        begun: begun.clone(),
    }));
    for step in 0..50 {
        model = optim.arm(1e-3, model);
        let loss = Mlp::loss::<R>(&model, Size::Small, step);
        kill_this_if(at == Some(Moment::Forward) && begun.load(Ordering::Relaxed) > 9);
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        model = optim.step(1e-3, model, grads);
    }
}

/// A test for each moment: what it runs in other processes is chosen by its name.
macro_rules! ends_all {
    ($($test:ident: $moment:ident,)*) => {$(
        #[test]
        fn $test() {
            let test = concat!("mpi::failure::", stringify!($test));
            let said = fails_in_time(test, |replicas| train_until(Moment::$moment, replicas));
            if let Some(said) = said {
                assert!(said.contains("exited on signal 9"), "{said}");
            }
        }
    )*};
}

ends_all! {
    killed_in_forward: Forward,
    killed_in_backward: Backward,
    killed_in_a_reduction: Reduction,
    killed_in_the_optimizer: Optimizer,
    killed_at_the_end_of_a_step: Finish,
}

#[test]
fn leaving_early_is_named() {
    let said = fails_in_time("mpi::failure::leaving_early_is_named", |replicas| {
        if replicas.rank() == 1 {
            let parallel = DataParallel::new(replicas);
            parallel.broadcast(pair()).unwrap();
            return;
        }
        train(replicas, |_, _| [true; 2], |_, _| {});
    });
    let Some(said) = said else { return };
    assert!(said.contains("rank 1: the end of the training"), "{said}");
}

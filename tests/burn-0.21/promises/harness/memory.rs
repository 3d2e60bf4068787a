//! Peak memory of one training step, measured where nothing else allocates.

use std::process::Command;

use burn::backend::{Flex, autodiff::checkpoint::strategy::NoCheckpointing};
use burn::module::{AutodiffModule, Module, ModuleVisitor, Param};
use burn::optim::adaptor::OptimizerAdaptor;
use burn::optim::{AdamConfig, GradientsParams, LearningRate, Optimizer, SimpleOptimizer};
use burn::record::Record;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Tensor, ops::Device};
use burn_gradient_release::{ReleaseOptimizer, WithGradientRelease};

use super::models::{Scenario, Size};
use super::run::{RATE, Start, outcomes, trainable};
use super::{Plain, Release, Weights};
use crate::ALLOCATIONS;

/// Set in the process that measures.
const ALONE: &str = "PROMISES_MEASURE_ALONE";

/// What Adam may hold besides its state while it updates one parameter: a temporary of the
/// parameter's size. (The gradient is counted on its own.)
const TEMPORARIES: usize = 1;

/// Nodes of the tape, names, thread pools: everything that is no tensor of weight size.
const SLACK: usize = 192 * 1024;

/// Runs `body` in a process of its own, in which `test` is the only test. Other tests run on
/// other threads of this process, and their allocations would be counted as ours.
pub(crate) fn alone(test: &str, body: fn()) {
    if std::env::var_os(ALONE).is_some() {
        return body();
    }
    let this = std::env::current_exe().expect("a test has a path");
    let output = Command::new(this)
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(ALONE, "1")
        .output()
        .expect("a test can be run again");
    let text = String::from_utf8_lossy(&output.stdout);
    print!("{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "the measuring process failed");
    // A misspelt name runs no test and succeeds.
    assert!(text.contains("1 passed"), "{test} did not run");
}

/// Bytes in use at the points that matter, over what was in use before the run.
#[derive(Clone, Copy, Debug)]
struct Step {
    after_forward: usize,
    peak: usize,
}

/// The last of three steps: by then the optimizer's state exists.
fn measure<M, B, O>(
    mut model: M,
    optim: &mut O,
    arm: fn(&mut O, M) -> M,
    loss: impl Fn(&M, u64) -> Tensor<B, 1>,
    floor: usize,
) -> (Step, Vec<u64>)
where
    B: AutodiffBackend,
    M: AutodiffModule<B>,
    O: Optimizer<M, B>,
{
    let mut digests = Vec::new();
    let mut measured = Step {
        after_forward: 0,
        peak: 0,
    };
    for step in 0..3 {
        ALLOCATIONS.reset_peak_usage();
        model = arm(optim, model);
        let loss = loss(&model, step);
        let after_forward = ALLOCATIONS.current_usage() - floor;
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        model = optim.step(RATE, model, grads);
        let peak = ALLOCATIONS.peak_usage() - floor;
        measured = Step {
            after_forward,
            peak,
        };
        digests.push(Weights::of::<B, _>(&model).digest());
    }
    (measured, digests)
}

/// The lowest peak that stepping inside backward can have: an optimizer that has Adam's state and
/// lets every gradient go at once.
#[derive(Clone)]
struct Discard;

/// A state as big as Adam's.
#[derive(Record, Clone)]
struct DiscardState<B: Backend, const D: usize> {
    first: Tensor<B, D>,
    second: Tensor<B, D>,
}

impl<B: Backend> SimpleOptimizer<B> for Discard {
    type State<const D: usize> = DiscardState<B, D>;

    fn step<const D: usize>(
        &self,
        _: LearningRate,
        tensor: Tensor<B, D>,
        grad: Tensor<B, D>,
        state: Option<Self::State<D>>,
    ) -> (Tensor<B, D>, Option<Self::State<D>>) {
        let state = state.unwrap_or_else(|| DiscardState {
            first: grad.zeros_like(),
            second: grad.zeros_like(),
        });
        (tensor, Some(state))
    }

    fn to_device<const D: usize>(state: Self::State<D>, _: &Device<B>) -> Self::State<D> {
        state
    }
}

/// Bytes of all parameters, and of the largest.
pub(crate) fn parameter_bytes<B: Backend, M: Module<B>>(model: &M) -> (usize, usize) {
    struct Bytes(usize, usize);

    impl<B: Backend> ModuleVisitor<B> for Bytes {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            let bytes = param.shape().num_elements() * size_of::<f32>();
            self.0 += bytes;
            self.1 = self.1.max(bytes);
        }
    }

    let mut bytes = Bytes(0, 0);
    model.visit(&mut bytes);
    (bytes.0, bytes.1)
}

/// Bytes that the peak is compared with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Bound {
    /// The peak of [`Discard`], plus one gradient and Adam's temporary.
    Discarding,
    /// That, and what is there after the forward pass plus one gradient and Adam's temporary. Holds
    /// where backward itself needs next to nothing; attention and copies of transposed weights are
    /// some MiB, which `Discard` has as well.
    Formula,
}

/// Numbers and memory of the same steps: the weights are plain Burn's, and the peak is what is
/// there after the forward pass, plus one gradient, plus what Adam needs for one parameter.
pub(crate) fn saves<S: Scenario>(against: Bound) {
    type P = Plain<Flex, NoCheckpointing>;
    type R = Release<Flex, NoCheckpointing>;
    let size = Size::Large;
    let start = Start::new::<S>(size);

    let plain = |floor: usize| {
        let mut optim = AdamConfig::new().init::<P, S::Model<P>>();
        let model = start.model::<S, P>();
        measure(
            model,
            &mut optim,
            |_, model| model,
            |m, n| S::loss::<P>(m, size, n),
            floor,
        )
    };
    let release = |floor: usize| {
        let model = start.model::<S, R>();
        let parameters = trainable::<R, _>(&model);
        let mut optim = AdamConfig::new()
            .init::<R, S::Model<R>>()
            .with_gradient_release();
        let result = measure(
            model,
            &mut optim,
            |optim, model| optim.arm(RATE, model),
            |m, n| S::loss::<R>(m, size, n),
            floor,
        );
        let [released, late, ..] = outcomes(&optim.last_step().expect("steps were taken"));
        assert_eq!(released + late, parameters);
        result
    };
    let discard = |floor: usize| {
        let adaptor: OptimizerAdaptor<Discard, S::Model<R>, R> = OptimizerAdaptor::from(Discard);
        let mut optim: ReleaseOptimizer<_, _, _> = adaptor.with_gradient_release();
        let model = start.model::<S, R>();
        measure(
            model,
            &mut optim,
            |optim, model| optim.arm(RATE, model),
            |m, n| S::loss::<R>(m, size, n),
            floor,
        )
    };

    // Thread pools and caches come into being once, and belong to none of the runs.
    plain(0);
    release(0);
    let (plain, expected) = plain(ALLOCATIONS.current_usage());
    let (release, weights) = release(ALLOCATIONS.current_usage());
    let (discard, _) = discard(ALLOCATIONS.current_usage());

    assert_eq!(weights, expected, "weights differ from plain Burn's");

    let (total, largest) = parameter_bytes::<P, _>(&start.model::<S, P>());
    let ideal = discard.peak + largest;
    let bound = ideal + TEMPORARIES * largest + SLACK;
    let analytic = release.after_forward + largest + TEMPORARIES * largest + SLACK;
    let mib = |bytes: usize| bytes as f64 / (1 << 20) as f64;
    println!(
        "P {:.2}, largest {:.2}; after forward: plain {:.2}, release {:.2}; peak: plain {:.2}, \
         release {:.2}, discard {:.2}; bounds {:.2} and {:.2} MiB",
        mib(total),
        mib(largest),
        mib(plain.after_forward),
        mib(release.after_forward),
        mib(plain.peak),
        mib(release.peak),
        mib(discard.peak),
        mib(bound),
        mib(analytic),
    );
    assert!(release.peak <= bound, "over the ideal");
    let mut highest = bound;
    if against == Bound::Formula {
        assert!(
            release.peak <= analytic,
            "over what forward leaves and one gradient"
        );
        highest = bound.max(analytic);
    }
    assert!(
        plain.peak > highest,
        "the bounds would not notice a release that is none"
    );
}

//! Peak memory of one training step, measured where nothing else allocates.

use burn::optim::LearningRate;
use burn::record::Record;
use burn::tensor::ops::Device;

use super::process::{name_of, only};
use crate::harness::prelude::*;

/// Set in the process that measures.
const ALONE: &str = "PROMISES_MEASURE_ALONE";

/// What Adam may hold besides its state while it updates one parameter: a temporary of the
/// parameter's size. (The gradient is counted on its own.)
const TEMPORARIES: usize = 1;

/// Nodes of the tape, names, thread pools: everything that is no tensor of weight size.
const SLACK: usize = 192 * 1024;

/// Runs `body`, a closure of the test itself, in a process that runs this test alone. Other tests
/// run on other threads of this process, and their allocations would be counted as ours.
pub(crate) fn alone(body: impl FnOnce()) {
    if std::env::var_os(ALONE).is_some() {
        return body();
    }
    let test = name_of(&body);
    let output = only(test).env(ALONE, "1").output();
    let output = output.expect("a test can be run again");
    let text = String::from_utf8_lossy(&output.stdout);
    print!("{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "the measuring process failed");
    // A name that is not a test's runs no test and succeeds.
    assert!(text.contains("1 passed"), "{test} did not run");
}

/// A training, measured in its last step.
pub(crate) struct Measured {
    /// Bytes after the forward pass, over what was in use before the model was there.
    after_forward: usize,
    /// The most bytes, over the same.
    pub(crate) peak: usize,
    /// A number after each step that stands for all weights.
    pub(crate) weights: Vec<u64>,
}

/// Trains a model for so many steps, and hands its optimizer back. From the second step on, the
/// states of the optimizer exist.
pub(crate) fn measured<M, B, O>(
    steps: u64,
    make: impl FnOnce() -> (M, O),
    arm: impl Fn(&mut O, M) -> M,
    loss: impl Fn(&M, u64) -> Tensor<B, 1>,
) -> (Measured, O)
where
    B: AutodiffBackend,
    M: AutodiffModule<B>,
    O: Optimizer<M, B>,
{
    let floor = ALLOCATIONS.current_usage();
    let (mut model, mut optim) = make();
    let mut measured = Measured {
        after_forward: 0,
        peak: 0,
        weights: Vec::new(),
    };
    for step in 0..steps {
        ALLOCATIONS.reset_peak_usage();
        model = arm(&mut optim, model);
        let loss = loss(&model, step);
        measured.after_forward = ALLOCATIONS.current_usage() - floor;
        let grads = gradients(&model, loss);
        model = optim.step(RATE, model, grads);
        measured.peak = ALLOCATIONS.peak_usage() - floor;
        measured.weights.push(Weights::of(&model).digest());
    }
    (measured, optim)
}

pub(crate) fn mib(bytes: usize) -> f64 {
    bytes as f64 / (1 << 20) as f64
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

/// A training with release, each step armed.
fn released<S: Scenario, O: SimpleOptimizer<Flex> + 'static>(
    start: &Start,
    optim: OptimizerAdaptor<O, S::Model<R>, R>,
    steps: u64,
) -> (Measured, ReleaseOptimizer<O, S::Model<R>, R>) {
    measured::<S::Model<R>, R, ReleaseOptimizer<O, _, _>>(
        steps,
        || (start.model::<S, R>(), optim.with_gradient_release()),
        |optim, model| optim.arm(RATE, model),
        |model, step| S::loss::<R>(model, start.size(), step),
    )
}

/// Numbers and memory of the same steps: the weights are plain Burn's, and the peak is what is
/// there after the forward pass, plus one gradient, plus what Adam needs for one parameter.
pub(crate) fn saves<S: Scenario>(against: Bound) {
    let size = Size::Large;
    let start = Start::new::<S>(size);

    let release = |steps| {
        let parameters = trainable::<R, _>(&start.model::<S, R>());
        let (measured, optim) = released::<S, _>(&start, AdamConfig::new().init(), steps);
        let [released, late, ..] = outcomes(&optim.last_step().expect("steps were taken"));
        assert_eq!(released + late, parameters);
        measured
    };

    // Thread pools and caches come into being once, and belong to none of the runs.
    release(1);
    let make = || (start.model::<S, P>(), AdamConfig::new().init());
    let loss = |model: &_, step| S::loss::<P>(model, size, step);
    let plain = measured::<S::Model<P>, P, _>(2, make, |_, model| model, loss).0;
    let release = release(2);
    let (discard, _) = released::<S, _>(&start, OptimizerAdaptor::from(Discard), 2);

    assert_eq!(
        release.weights, plain.weights,
        "weights differ from plain Burn's"
    );

    let (total, largest) = parameter_bytes::<P, _>(&start.model::<S, P>());
    let ideal = discard.peak + largest;
    let bound = ideal + TEMPORARIES * largest + SLACK;
    let analytic = release.after_forward + largest + TEMPORARIES * largest + SLACK;
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

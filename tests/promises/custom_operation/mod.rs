//! Operations with a backward of one's own, brought to gradient release by `ReleaseTensor::apply`.
//!
//! The first is the example of Burn's book: a matrix product, a bias and ReLU in one node. The
//! others are what such an operation may also do: several nodes, an operand that gets no gradient,
//! an operand handed through.

mod operations;

use burn::backend::Flex;
use burn::backend::autodiff::checkpoint::strategy::{
    BalancedCheckpointing, CheckpointStrategy, NoCheckpointing,
};
use burn::module::{Module, Param};
use burn::optim::{AdamConfig, GradientsParams, Optimizer};
use burn::tensor::Tensor;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn_gradient_release::{ReleaseBackend, StepReport, WithGradientRelease};

use self::operations::{
    EVENTS, Event, FusedOps, Matrix, fused, fused_transposed, gated, note, second,
};
use crate::harness::noise::reseed;
use crate::harness::run::{RATE, assert_run_released, trainable};
use crate::harness::scopes;
use crate::harness::weights::{load, save};
use crate::harness::{Hooked, Plain, Recipe, Release, Weights, noise};

const STEPS: u64 = 6;
const WIDTH: usize = 8;

/// Layers of weight and bias.
#[derive(Module, Debug)]
struct Net<B: Backend> {
    weights: Vec<Param<Tensor<B, 2>>>,
    biases: Vec<Param<Tensor<B, 1>>>,
}

impl<B: Backend> Net<B> {
    fn new(layers: usize) -> Self {
        let device = B::Device::default();
        let weights = (0..layers).map(|_| Param::from_tensor(noise(0, [WIDTH, WIDTH], &device)));
        let biases = (0..layers).map(|_| Param::from_tensor(noise(0, [WIDTH], &device)));
        Self {
            weights: weights.collect(),
            biases: biases.collect(),
        }
    }

    fn weight(&self, layer: usize) -> Matrix<B> {
        self.weights[layer].val()
    }

    /// The parameter as a row: a view of it.
    fn bias(&self, layer: usize) -> Matrix<B> {
        self.biases[layer].val().unsqueeze()
    }
}

/// What is made of the fused operations.
trait Loss {
    const LAYERS: usize;

    fn forward<B: FusedOps>(net: &Net<B>, x: Matrix<B>) -> Matrix<B>;

    fn loss<B: FusedOps>(net: &Net<B>, step: u64) -> Tensor<B, 1> {
        let device = B::Device::default();
        let x = Self::forward(net, noise(step, [4, WIDTH], &device));
        let target = noise::<B, 2>(step + 1000, x.dims(), &device);
        (x - target).square().mean()
    }
}

/// First weights of a loss's model, for any backend.
fn start<L: Loss>() -> Vec<u8> {
    save(reseed::<Plain, _>(Net::new(L::LAYERS), 7))
}

fn net<L: Loss, B: Backend>(start: &[u8]) -> Net<B> {
    load::<B, _>(Net::new(L::LAYERS), start, &Default::default())
}

fn plain<L: Loss, B: FusedOps + AutodiffBackend>(
    start: &[u8],
    recipe: &impl Recipe,
) -> Vec<Weights> {
    let mut net = net::<L, B>(start);
    let mut optim = recipe.make::<B, Net<B>>();
    let steps = (0..STEPS).map(|step| {
        let grads = GradientsParams::from_grads(L::loss(&net, step).backward(), &net);
        net = optim.step(RATE, net.clone(), grads);
        Weights::of::<B, _>(&net)
    });
    steps.collect()
}

fn release<L: Loss, B: FusedOps + ReleaseBackend>(
    start: &[u8],
    recipe: &impl Recipe,
) -> (Vec<Weights>, Vec<StepReport>) {
    let mut net = net::<L, B>(start);
    let mut optim = recipe.make::<B, Net<B>>().with_gradient_release();
    let mut weights = Vec::new();
    let mut reports = Vec::new();
    for step in 0..STEPS {
        net = optim.arm(RATE, net);
        let grads = GradientsParams::from_grads(L::loss(&net, step).backward(), &net);
        net = optim.step(RATE, net, grads);
        weights.push(Weights::of::<B, _>(&net));
        reports.push(optim.last_step().expect("a step was taken"));
    }
    (weights, reports)
}

/// The gradients without arming, by parameter.
fn gradients<L: Loss, B: FusedOps + AutodiffBackend>(start: &[u8]) -> Vec<Vec<u8>> {
    let net = net::<L, B>(start);
    let grads = L::loss(&net, 0).backward();
    let bytes = |grad: burn::tensor::TensorData| grad.as_bytes().to_vec();
    let weights = net.weights.iter().map(|weight| {
        let grad = weight.val().grad(&grads).expect("used");
        bytes(grad.into_data())
    });
    let biases = net.biases.iter().map(|bias| {
        let grad = bias.val().grad(&grads).expect("used");
        bytes(grad.into_data())
    });
    weights.chain(biases).collect()
}

/// Plain Burn's weights after each step, plain Burn's gradients, and every parameter released.
#[track_caller]
fn same<L: Loss, C: CheckpointStrategy>() {
    let start = start::<L>();
    let recipe = AdamConfig::new();
    let first = net::<L, Plain>(&start);
    let expected = plain::<L, Plain<Flex, C>>(&start, &recipe);
    let (weights, reports) = release::<L, Release<Flex, C>>(&start, &recipe);
    for (step, (weights, expected)) in weights.iter().zip(&expected).enumerate() {
        weights.assert_same(expected, format!("after step {step}"));
    }
    weights[0].assert_moved(&Weights::of::<Plain, _>(&first), "release");
    assert_run_released(&reports, trainable::<Plain, _>(&first));
    assert!(
        gradients::<L, Release<Flex, C>>(&start) == gradients::<L, Plain<Flex, C>>(&start),
        "gradients without arming"
    );
}

/// Two layers, the first weight used once more above, the second through a view.
struct TwoLayers;

impl Loss for TwoLayers {
    const LAYERS: usize = 2;

    fn forward<B: FusedOps>(net: &Net<B>, x: Matrix<B>) -> Matrix<B> {
        let x = fused(x, net.weight(0), net.bias(0)).tanh();
        let x = x.matmul(net.weight(0)).tanh();
        fused(x, net.weight(1).transpose(), net.bias(1))
    }
}

#[test]
fn the_fused_operation_of_burns_book() {
    same::<TwoLayers, NoCheckpointing>();
    same::<TwoLayers, BalancedCheckpointing>();
}

/// Every use of a parameter is an operand of the fused operation, one twice in the same.
struct UsedTwice;

impl Loss for UsedTwice {
    const LAYERS: usize = 2;

    fn forward<B: FusedOps>(net: &Net<B>, x: Matrix<B>) -> Matrix<B> {
        let x = fused(x, net.weight(0), net.bias(0)).tanh();
        let x = fused(x, net.weight(1), net.bias(1)).tanh();
        let square = fused(net.weight(1), net.weight(1), net.bias(0));
        fused(x, net.weight(0), net.bias(1)).matmul(square)
    }
}

#[test]
fn a_parameter_used_twice() {
    same::<UsedTwice, NoCheckpointing>();
    same::<UsedTwice, BalancedCheckpointing>();
}

/// The transpose is a node inside the operation.
struct SeveralNodes;

impl Loss for SeveralNodes {
    const LAYERS: usize = 3;

    fn forward<B: FusedOps>(net: &Net<B>, x: Matrix<B>) -> Matrix<B> {
        let x = fused_transposed(x, net.weight(0), net.bias(0)).tanh();
        let x = fused_transposed(x, net.weight(1).transpose(), net.bias(1)).tanh();
        fused_transposed(x, net.weight(2), net.bias(2))
    }
}

#[test]
fn an_operation_of_several_nodes() {
    same::<SeveralNodes, NoCheckpointing>();
    same::<SeveralNodes, BalancedCheckpointing>();
}

/// The gate is higher on the tape than the operation that it is an operand of.
struct GateFromAbove;

impl Loss for GateFromAbove {
    const LAYERS: usize = 2;

    fn forward<B: FusedOps>(net: &Net<B>, x: Matrix<B>) -> Matrix<B> {
        let below = gated(x.clone(), net.weight(0), Matrix::ones_like(&x));
        let between = below.tanh().matmul(net.weight(1)) + net.bias(0);
        let gate = between.clone().tanh().exp();
        between + gated(x, net.weight(1), gate) + net.bias(1)
    }
}

#[test]
fn an_operand_that_gets_no_gradient() {
    same::<GateFromAbove, NoCheckpointing>();
    same::<GateFromAbove, BalancedCheckpointing>();
}

/// The gate is computed from a tensor whose gradient comes from a scope alone: nothing else in its part
/// of the tape gets a gradient, and nothing there is as high as the gate.
struct GateFromBelowAScope;

impl Loss for GateFromBelowAScope {
    const LAYERS: usize = 3;

    fn forward<B: FusedOps>(net: &Net<B>, x: Matrix<B>) -> Matrix<B> {
        let below = scopes::block(|| x.clone().matmul(net.weight(0)).tanh() + net.bias(0));
        let kept = below.clone() * 2.0;
        let gate = kept.clone() * below.tanh().exp().tanh();
        scopes::block(|| {
            let mut high = x.matmul(net.weight(1)) + net.bias(1);
            for _ in 0..8 {
                high = high.tanh();
            }
            let high = high * kept.clone();
            let low = kept.sin();
            gated(high + low, net.weight(2), gate) + net.bias(2)
        })
    }
}

#[test]
fn an_operand_of_a_scope_that_gets_no_gradient() {
    scopes::in_use(|| {
        same::<GateFromBelowAScope, NoCheckpointing>();
        same::<GateFromBelowAScope, BalancedCheckpointing>();
    });
}

/// The operation returns an operand, which is then used far below the other operand.
struct ParameterHandedThrough;

impl Loss for ParameterHandedThrough {
    const LAYERS: usize = 2;

    fn forward<B: FusedOps>(net: &Net<B>, x: Matrix<B>) -> Matrix<B> {
        let above = fused(x.clone(), net.weight(0), net.bias(0));
        let above = above.tanh().matmul(net.weight(1)).tanh();
        let handed = second(above.clone(), net.weight(1));
        above + fused(x, handed, net.bias(1))
    }
}

/// The operation on a view of a parameter.
struct ViewHandedThrough;

impl Loss for ViewHandedThrough {
    const LAYERS: usize = 2;

    fn forward<B: FusedOps>(net: &Net<B>, x: Matrix<B>) -> Matrix<B> {
        let above = fused(x.clone(), net.weight(0), net.bias(0)).tanh();
        let handed = second(above.clone(), net.weight(1).transpose());
        above + fused(x, handed, net.bias(1))
    }
}

#[test]
fn an_operand_handed_through() {
    same::<ParameterHandedThrough, NoCheckpointing>();
    same::<ParameterHandedThrough, BalancedCheckpointing>();
    same::<ViewHandedThrough, NoCheckpointing>();
    same::<ViewHandedThrough, BalancedCheckpointing>();
}

/// What happens in the second of two steps of a loss.
fn events<L: Loss>() -> Vec<Event> {
    type R = Release;
    let recipe = Hooked::with_hook(|_, rate| {
        note(Event::Step);
        rate
    });
    let mut net = net::<L, R>(&start::<L>());
    let mut optim = recipe.make::<R, Net<R>>().with_gradient_release();
    for step in 0..2 {
        EVENTS.take();
        net = optim.arm(RATE, net);
        let grads = GradientsParams::from_grads(L::loss(&net, step).backward(), &net);
        net = optim.step(RATE, net, grads);
    }
    EVENTS.take()
}

/// Weights as they are, and through a view.
struct Chain;

impl Loss for Chain {
    const LAYERS: usize = 3;

    fn forward<B: FusedOps>(net: &Net<B>, x: Matrix<B>) -> Matrix<B> {
        let x = fused(x, net.weight(0), net.bias(0)).tanh();
        let x = fused(x, net.weight(1).transpose(), net.bias(1)).tanh();
        fused(x, net.weight(2), net.bias(2))
    }
}

#[test]
fn operands_are_stepped_before_the_layer_below_runs_backward() {
    use Event::{Backward, Step};
    same::<Chain, NoCheckpointing>();
    let layer = [Backward, Step, Step];
    assert_eq!(events::<Chain>(), [layer, layer, layer].concat());
}

/// A node inside may use a parameter as low as at the bottom of the tape: nothing tells.
#[test]
fn operands_of_several_nodes_are_stepped_at_the_end() {
    use Event::{Backward, Step};
    let expected = [vec![Backward; 3], vec![Step; 6]].concat();
    assert_eq!(events::<SeveralNodes>(), expected);
}

//! Operations with a backward of one's own, brought to gradient release by `ReleaseTensor::apply`.
//!
//! The first is the example of Burn's book: a matrix product, a bias and ReLU in one node. The
//! others are what such an operation may also do: several nodes, an operand that gets no gradient,
//! an operand handed through.

use std::cell::RefCell;

use burn::backend::Flex;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::{
    BalancedCheckpointing, CheckpointStrategy, NoCheckpointing,
};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind, binary, broadcast_shape};
use burn::backend::autodiff::{Autodiff, NodeId};
use burn::module::{Module, Param};
use burn::optim::{AdamConfig, GradientsParams, Optimizer};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::ops::{ActivationOps, FloatTensor, FloatTensorOps};
use burn::tensor::{Shape, Tensor, TensorMetadata, TensorPrimitive};
use burn_gradient_release::{
    GradientRelease, ReleaseBackend, ReleaseTensor, StepReport, WithGradientRelease,
};

use crate::harness::noise::reseed;
use crate::harness::run::{RATE, assert_run_released, trainable};
use crate::harness::weights::{load, save};
use crate::harness::{Hooked, Plain, Recipe, Release, Weights, noise};

const STEPS: u64 = 6;
const WIDTH: usize = 8;

/// Burn's backend, extended by operations.
trait FusedOps: Backend {
    /// `relu(lhs × rhs + bias)` as one node.
    fn fused_matmul_add_relu(
        lhs: FloatTensor<Self>,
        rhs: FloatTensor<Self>,
        bias: FloatTensor<Self>,
    ) -> FloatTensor<Self>;

    /// The same with `rhs` transposed: two nodes.
    fn fused_transposed(
        lhs: FloatTensor<Self>,
        rhs: FloatTensor<Self>,
        bias: FloatTensor<Self>,
    ) -> FloatTensor<Self>;

    /// `(lhs × rhs) * gate` as one node, which gives `gate` no gradient.
    fn gated(
        lhs: FloatTensor<Self>,
        rhs: FloatTensor<Self>,
        gate: FloatTensor<Self>,
    ) -> FloatTensor<Self>;

    /// `rhs` as it is: no node.
    fn second(lhs: FloatTensor<Self>, rhs: FloatTensor<Self>) -> FloatTensor<Self>;
}

impl FusedOps for Flex {
    fn fused_matmul_add_relu(
        lhs: FloatTensor<Self>,
        rhs: FloatTensor<Self>,
        bias: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        // A kernel of one's own would be called here.
        Self::relu(Self::float_add(Self::float_matmul(lhs, rhs), bias))
    }

    fn fused_transposed(
        lhs: FloatTensor<Self>,
        rhs: FloatTensor<Self>,
        bias: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        Self::fused_matmul_add_relu(lhs, Self::float_transpose(rhs), bias)
    }

    fn gated(
        lhs: FloatTensor<Self>,
        rhs: FloatTensor<Self>,
        gate: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        Self::float_mul(Self::float_matmul(lhs, rhs), gate)
    }

    fn second(_: FloatTensor<Self>, rhs: FloatTensor<Self>) -> FloatTensor<Self> {
        rhs
    }
}

impl<B: FusedOps, C: CheckpointStrategy> FusedOps for Autodiff<B, C> {
    fn fused_matmul_add_relu(
        lhs: FloatTensor<Self>,
        rhs: FloatTensor<Self>,
        bias: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        #[derive(Debug)]
        struct FusedMatmulAddRelu;

        #[derive(Clone, Debug)]
        struct State<B: Backend> {
            lhs: NodeId,
            rhs: NodeId,
            output: FloatTensor<B>,
            bias: Shape,
        }

        impl<B: Backend> Backward<B, 3> for FusedMatmulAddRelu {
            type State = State<B>;

            fn backward(
                self,
                ops: Ops<State<B>, 3>,
                grads: &mut Gradients,
                checkpointer: &mut Checkpointer,
            ) {
                note(Event::Backward);
                let grad = grads.consume::<B>(&ops.node);
                let grad = B::relu_backward(ops.state.output, grad);
                let lhs: FloatTensor<B> = checkpointer.retrieve_node_output(ops.state.lhs);
                let rhs: FloatTensor<B> = checkpointer.retrieve_node_output(ops.state.rhs);
                let (lhs_shape, rhs_shape) = (lhs.shape(), rhs.shape());
                let [lhs_node, rhs_node, bias_node] = ops.parents;
                if let Some(node) = lhs_node {
                    let lhs = B::float_matmul(grad.clone(), B::float_transpose(rhs));
                    grads.register::<B>(node.id, broadcast_shape::<B>(lhs, &lhs_shape));
                }
                if let Some(node) = rhs_node {
                    let rhs = B::float_matmul(B::float_transpose(lhs), grad.clone());
                    grads.register::<B>(node.id, broadcast_shape::<B>(rhs, &rhs_shape));
                }
                if let Some(node) = bias_node {
                    grads.register::<B>(node.id, broadcast_shape::<B>(grad, &ops.state.bias));
                }
            }
        }

        match FusedMatmulAddRelu
            .prepare::<C>([lhs.node.clone(), rhs.node.clone(), bias.node.clone()])
            .compute_bound()
            .stateful()
        {
            OpsKind::Tracked(mut prep) => {
                let (lhs_id, rhs_id) = (prep.checkpoint(&lhs), prep.checkpoint(&rhs));
                let shape = bias.primitive.shape();
                let output = B::fused_matmul_add_relu(lhs.primitive, rhs.primitive, bias.primitive);
                let state = State {
                    lhs: lhs_id,
                    rhs: rhs_id,
                    output: output.clone(),
                    bias: shape,
                };
                prep.finish(state, output)
            }
            OpsKind::UnTracked(prep) => prep.finish(B::fused_matmul_add_relu(
                lhs.primitive,
                rhs.primitive,
                bias.primitive,
            )),
        }
    }

    fn fused_transposed(
        lhs: FloatTensor<Self>,
        rhs: FloatTensor<Self>,
        bias: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        Self::fused_matmul_add_relu(lhs, Self::float_transpose(rhs), bias)
    }

    fn gated(
        lhs: FloatTensor<Self>,
        rhs: FloatTensor<Self>,
        gate: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        #[derive(Debug)]
        struct Gated;

        impl<B: Backend> Backward<B, 2> for Gated {
            type State = (NodeId, NodeId, FloatTensor<B>);

            fn backward(
                self,
                ops: Ops<Self::State, 2>,
                grads: &mut Gradients,
                checkpointer: &mut Checkpointer,
            ) {
                let (lhs, rhs, gate) = ops.state;
                let lhs = checkpointer.retrieve_node_output(lhs);
                let rhs = checkpointer.retrieve_node_output(rhs);
                let gated = |grad| B::float_mul(grad, gate.clone());
                binary::<B, _, _>(
                    ops.parents,
                    ops.node,
                    grads,
                    |grad| B::float_matmul(gated(grad), B::float_transpose(rhs)),
                    |grad| B::float_matmul(B::float_transpose(lhs), gated(grad)),
                );
            }
        }

        match Gated
            .prepare::<C>([lhs.node.clone(), rhs.node.clone()])
            .compute_bound()
            .stateful()
        {
            OpsKind::Tracked(mut prep) => {
                let (lhs_id, rhs_id) = (prep.checkpoint(&lhs), prep.checkpoint(&rhs));
                let state = (lhs_id, rhs_id, gate.primitive.clone());
                let output = B::gated(lhs.primitive, rhs.primitive, gate.primitive);
                prep.finish(state, output)
            }
            OpsKind::UnTracked(prep) => {
                prep.finish(B::gated(lhs.primitive, rhs.primitive, gate.primitive))
            }
        }
    }

    fn second(_: FloatTensor<Self>, rhs: FloatTensor<Self>) -> FloatTensor<Self> {
        rhs
    }
}

impl<B: FusedOps, C: CheckpointStrategy> FusedOps for GradientRelease<Autodiff<B, C>> {
    fn fused_matmul_add_relu(
        lhs: FloatTensor<Self>,
        rhs: FloatTensor<Self>,
        bias: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        ReleaseTensor::apply([lhs, rhs, bias], |[lhs, rhs, bias]| {
            Autodiff::<B, C>::fused_matmul_add_relu(lhs, rhs, bias)
        })
    }

    fn fused_transposed(
        lhs: FloatTensor<Self>,
        rhs: FloatTensor<Self>,
        bias: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        ReleaseTensor::apply([lhs, rhs, bias], |[lhs, rhs, bias]| {
            Autodiff::<B, C>::fused_transposed(lhs, rhs, bias)
        })
    }

    fn gated(
        lhs: FloatTensor<Self>,
        rhs: FloatTensor<Self>,
        gate: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        ReleaseTensor::apply([lhs, rhs, gate], |[lhs, rhs, gate]| {
            Autodiff::<B, C>::gated(lhs, rhs, gate)
        })
    }

    fn second(lhs: FloatTensor<Self>, rhs: FloatTensor<Self>) -> FloatTensor<Self> {
        ReleaseTensor::apply([lhs, rhs], |[lhs, rhs]| Autodiff::<B, C>::second(lhs, rhs))
    }
}

type Matrix<B> = Tensor<B, 2>;

fn matrix<B: Backend>(tensor: FloatTensor<B>) -> Matrix<B> {
    Tensor::from_primitive(TensorPrimitive::Float(tensor))
}

fn float<B: Backend>(tensor: Matrix<B>) -> FloatTensor<B> {
    tensor.into_primitive().tensor()
}

fn fused<B: FusedOps>(lhs: Matrix<B>, rhs: Matrix<B>, bias: Matrix<B>) -> Matrix<B> {
    matrix(B::fused_matmul_add_relu(
        float(lhs),
        float(rhs),
        float(bias),
    ))
}

fn fused_transposed<B: FusedOps>(lhs: Matrix<B>, rhs: Matrix<B>, bias: Matrix<B>) -> Matrix<B> {
    matrix(B::fused_transposed(float(lhs), float(rhs), float(bias)))
}

fn gated<B: FusedOps>(lhs: Matrix<B>, rhs: Matrix<B>, gate: Matrix<B>) -> Matrix<B> {
    matrix(B::gated(float(lhs), float(rhs), float(gate)))
}

fn second<B: FusedOps>(lhs: Matrix<B>, rhs: Matrix<B>) -> Matrix<B> {
    matrix(B::second(float(lhs), float(rhs)))
}

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

    /// As a row: a view of the parameter.
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

/// The same with a view of a parameter.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// The fused operation ran backward.
    Backward,
    /// A parameter was stepped.
    Step,
}

thread_local! {
    /// What happened, in its order.
    static EVENTS: RefCell<Vec<Event>> = const { RefCell::new(Vec::new()) };
}

fn note(event: Event) {
    EVENTS.with_borrow_mut(|events| events.push(event));
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

//! Operations with a backward of one's own, brought to gradient release by `ReleaseTensor::apply`.
//!
//! The first is the example of Burn's book: a matrix product, a bias and ReLU in one node. The
//! others are what such an operation may also do: several nodes, an operand that gets no gradient,
//! an operand handed through.

mod operations;

use self::operations::{
    EVENTS, Event, FusedOps, Matrix, fused, fused_transposed, gated, note, second,
};
use crate::harness::noise::reseed;
use crate::harness::prelude::*;

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

/// The gradients without arming, by parameter.
fn gradients<L: Loss, B: FusedOps + AutodiffBackend>(start: &[u8]) -> Vec<TensorData> {
    let net = net::<L, B>(start);
    let grads = L::loss(&net, 0).backward();
    let weights = net.weights.iter().map(|weight| {
        let grad = weight.val().grad(&grads).expect("used");
        grad.into_data()
    });
    let biases = net.biases.iter().map(|bias| {
        let grad = bias.val().grad(&grads).expect("used");
        grad.into_data()
    });
    weights.chain(biases).collect()
}

/// Plain Burn's weights after each step, plain Burn's gradients, and every parameter released;
/// also with Burn's own recomputing.
#[track_caller]
fn same<L: Loss>() {
    same_with::<L, NoCheckpointing>();
    same_with::<L, BalancedCheckpointing>();
}

#[track_caller]
fn same_with<L: Loss, C: CheckpointStrategy>() {
    let start = start::<L>();
    let recipe = AdamConfig::new();
    let model = net::<L, Plain<Flex, C>>(&start);
    let parameters = trainable::<Plain<Flex, C>, _>(&model);
    let expected = run::ordinary(model, &mut recipe.init(), STEPS, &L::loss);
    let model = net::<L, Release<Flex, C>>(&start);
    let mut optim = recipe.init().with_gradient_release();
    let (given, reports) = run::armed(model, &mut optim, STEPS, &L::loss);
    assert_same_steps(&given.steps, &expected.steps, "release");
    given.steps[0].assert_moved(&given.first, "release");
    assert_run_released(&reports, parameters);
    assert_eq!(
        gradients::<L, Release<Flex, C>>(&start),
        gradients::<L, Plain<Flex, C>>(&start),
        "without arming"
    );
}

/// A test for each model of the fused operations: so many layers, and what is made of them.
macro_rules! same {
    ($($(#[$doc:meta])* $test:ident: $layers:expr, |$net:ident, $x:ident| $forward:expr;)*) => {
        $(
            $(#[$doc])*
            #[test]
            fn $test() {
                struct Case;

                impl Loss for Case {
                    const LAYERS: usize = $layers;

                    fn forward<B: FusedOps>($net: &Net<B>, $x: Matrix<B>) -> Matrix<B> {
                        $forward
                    }
                }

                same::<Case>();
            }
        )*
    };
}

same! {
    /// Two layers, the first weight used once more above, the second through a view.
    the_fused_operation_of_burns_book: 2, |net, x| {
        let x = fused(x, net.weight(0), net.bias(0)).tanh();
        let x = x.matmul(net.weight(0)).tanh();
        fused(x, net.weight(1).transpose(), net.bias(1))
    };

    /// Every use of a parameter is an operand of the fused operation, one twice in the same.
    a_parameter_used_twice: 2, |net, x| {
        let x = fused(x, net.weight(0), net.bias(0)).tanh();
        let x = fused(x, net.weight(1), net.bias(1)).tanh();
        let square = fused(net.weight(1), net.weight(1), net.bias(0));
        fused(x, net.weight(0), net.bias(1)).matmul(square)
    };

    /// The gate is higher on the tape than the operation that it is an operand of.
    an_operand_that_gets_no_gradient: 2, |net, x| {
        let below = gated(x.clone(), net.weight(0), Matrix::ones_like(&x));
        let between = below.tanh().matmul(net.weight(1)) + net.bias(0);
        let gate = between.clone().tanh().exp();
        between + gated(x, net.weight(1), gate) + net.bias(1)
    };

    /// The gate is computed from a tensor whose gradient comes from a scope alone: nothing else in
    /// its part of the tape gets a gradient, and nothing there is as high as the gate.
    an_operand_of_a_scope_that_gets_no_gradient: 3, |net, x| {
        let below = checkpoint(|| x.clone().matmul(net.weight(0)).tanh() + net.bias(0));
        let kept = below.clone() * 2.0;
        let gate = kept.clone() * below.tanh().exp().tanh();
        checkpoint(|| {
            let mut high = x.matmul(net.weight(1)) + net.bias(1);
            for _ in 0..8 {
                high = high.tanh();
            }
            let high = high * kept.clone();
            let low = kept.sin();
            gated(high + low, net.weight(2), gate) + net.bias(2)
        })
    };

    /// The operation returns an operand, which is then used far below the other operand.
    a_parameter_handed_through: 2, |net, x| {
        let above = fused(x.clone(), net.weight(0), net.bias(0));
        let above = above.tanh().matmul(net.weight(1)).tanh();
        let handed = second(above.clone(), net.weight(1));
        above + fused(x, handed, net.bias(1))
    };

    /// The operation on a view of a parameter.
    a_view_handed_through: 2, |net, x| {
        let above = fused(x.clone(), net.weight(0), net.bias(0)).tanh();
        let handed = second(above.clone(), net.weight(1).transpose());
        above + fused(x, handed, net.bias(1))
    };
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
    same::<SeveralNodes>();
}

/// The operation on an activation, above a weight with several uses.
struct ActivationHandedThrough;

impl Loss for ActivationHandedThrough {
    const LAYERS: usize = 1;

    fn forward<B: FusedOps>(net: &Net<B>, x: Matrix<B>) -> Matrix<B> {
        let layer = |y: Matrix<B>, _| y.matmul(net.weight(0)).tanh() + net.bias(0);
        let y = (0..4).fold(x.clone(), layer);
        second(x, y).tanh()
    }
}

/// The order of the contributions is known below it, too.
#[test]
fn an_operand_handed_through_where_activations_are_recomputed() {
    type L = ActivationHandedThrough;

    let (start, recipe) = (start::<L>(), AdamConfig::new());
    let expected = run::ordinary(net::<L, Plain>(&start), &mut recipe.init(), STEPS, &L::loss);
    for recompute in [Recompute::Automatic, Recompute::Budget(u64::MAX)] {
        let optim = recipe.init().with_gradient_release();
        let mut optim = optim.with_recompute(recompute);
        let (given, _) = run::armed(net::<L, Release>(&start), &mut optim, STEPS, &L::loss);
        assert_same_steps(&given.steps, &expected.steps, format!("{recompute:?}"));
    }
}

/// What happens in the second of two steps of a loss.
fn events<L: Loss>() -> Vec<Event> {
    type R = Release;
    let recipe = Hooked::with_hook(|_, rate| {
        note(Event::Step);
        rate
    });
    let mut optim = recipe.make::<R, Net<R>>().with_gradient_release();
    // The last forward pass empties the list.
    let loss = |net: &Net<R>, step| {
        EVENTS.take();
        L::loss(net, step)
    };
    run::armed(net::<L, R>(&start::<L>()), &mut optim, 2, &loss);
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
    same::<Chain>();
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

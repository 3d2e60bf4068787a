//! Differences in the last bits that [`StepReport::is_plain`] does not report, as docs/exactness.md
//! lists them.

use burn::tensor::activation::softmax;
use burn::tensor::module::{avg_pool2d, conv2d};
use burn::tensor::ops::{AvgPoolOptions, ConvOptions};

use super::*;
use crate::scopes::forward;

#[derive(Module, Debug)]
struct Net {
    weights: Vec<Param<Tensor<2>>>,
    kernel: Param<Tensor<4>>,
}

impl Net {
    fn new(device: &Device) -> Self {
        let weight = |_| Param::from_tensor(Tensor::zeros([8, 8], device));
        Self {
            weights: (0..4).map(weight).collect(),
            kernel: Param::from_tensor(Tensor::zeros([4, 3, 3, 3], device)),
        }
    }

    fn product(&self, x: Tensor<2>, at: usize) -> Tensor<2> {
        x.matmul(self.weights[at].val())
    }
}

fn input(step: usize) -> Tensor<2> {
    numbers([8, 8], step, &flex())
}

fn one_convolution_on_three_scales(net: &Net, step: usize, _: bool) -> Tensor<1> {
    let half = |x: Tensor<4>| avg_pool2d(x, AvgPoolOptions::new([2, 2]));
    let loss = |x: Tensor<4>| {
        let options = ConvOptions::new([1, 1], [1, 1], [1, 1], 1);
        let x = conv2d(x, net.kernel.val(), None, options);
        x.tanh().square().mean()
    };
    let large = numbers::<4>([2, 3, 16, 16], step, &flex());
    let medium = half(large.clone());
    let small = half(medium.clone());
    loss(medium) + loss(large) + loss(small)
}

/// As many nodes between the parameters, in another order.
fn two_passes_in_turns(net: &Net, step: usize, _: bool) -> Tensor<1> {
    let x = net.product(input(step), 0).tanh();
    let deep = (0..10).fold(x.clone(), |x, _| x.tanh());
    let (to_weight, other) = match step.is_multiple_of(2) {
        true => (deep, x.clone()),
        false => (x.clone(), deep),
    };
    let other = other.square().mean();
    let of_weight = net.product(to_weight, 1).tanh().square().mean();
    of_weight + other + x.exp().mean()
}

fn a_scope_that_begins_with_a_view(net: &Net, step: usize, again: bool) -> Tensor<1> {
    let x = net.product(net.weights[0].val(), 1);
    let x = forward(net, x, again, |_: &Net, x: Tensor<2>| x.transpose().tanh());
    x.matmul(input(step)).square().mean()
}

fn a_parameter_as_input_and_in_the_module(net: &Net, step: usize, again: bool) -> Tensor<1> {
    type Inputs = (Tensor<2>, Tensor<2>);
    let inputs = (input(step), net.weights[0].val());
    let run = |net: &Net, (x, weight): Inputs| {
        let x = net.product(x.matmul(weight).tanh(), 0);
        net.product(x.tanh(), 0).tanh()
    };
    forward(net, inputs, again, run).square().mean()
}

fn inputs_in_another_order(net: &Net, step: usize, again: bool) -> Tensor<1> {
    type Inputs = (Tensor<2>, Tensor<2>, Tensor<2>);
    let x = net.product(input(step), 3).tanh();
    let [query, key, value] = [0, 1, 2].map(|at| net.product(x.clone(), at));
    let run = |_: &Net, (value, key, query): Inputs| {
        let scores = softmax(query.matmul(key.transpose()), 1);
        scores.matmul(value).tanh()
    };
    let inputs = (value, key, query);
    forward(net, inputs, again, run).square().mean()
}

/// A sum of three gradients or more in another order differs in its last bit. At this rate, that moves
/// a few weights to the next number of f32, which is up to 1.2e-7 of the largest one away.
#[test]
fn differences_that_are_not_reported_are_of_last_bits() {
    type Loss = fn(&Net, usize, bool) -> Tensor<1>;
    const RATE: f64 = 0.25;
    let programs: [(&str, Loss); 5] = [
        ("three scales", one_convolution_on_three_scales),
        ("two passes", two_passes_in_turns),
        ("a view", a_scope_that_begins_with_a_view),
        ("input and module", a_parameter_as_input_and_in_the_module),
        ("order of inputs", inputs_in_another_order),
    ];
    for (name, loss) in programs {
        // Not Adam, which makes a step of any size of a gradient that is all rounding.
        let sgd = || SgdConfig::new().init();
        let (mut plain, mut plain_optim) = (seeded(&flex(), Net::new), sgd());
        let (mut net, mut optim) = (seeded(&flex(), Net::new), sgd().with_gradient_release());
        for step in 0..4 {
            let grads = loss(&plain, step, false).backward();
            let grads = GradientsParams::from_grads(grads, &plain);
            plain = plain_optim.step(RATE, plain, grads);
            net = optim.arm(RATE, net);
            let grads = loss(&net, step, true).backward();
            let grads = GradientsParams::from_grads(grads, &net);
            net = optim.step(RATE, net, grads);
            let distance = distance(&bits(&net), &bits(&plain));
            assert!(distance <= 2e-7, "{name}: {distance:e} after step {step}");
        }
    }
}

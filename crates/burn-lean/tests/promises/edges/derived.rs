//! Functions of parameters alone, whose backward runs early.

use burn_lean::derived;

use crate::harness::prelude::*;
use crate::heap::peak_of;

type Weights = Vec<Param<Tensor<2>>>;

fn weights(count: usize, width: usize) -> Weights {
    let weight = |at| Param::from_tensor(numbers([width, width], at + 1, &flex()) * 0.2);
    (0..count).map(weight).collect()
}

fn transposed(weight: Tensor<2>) -> Tensor<2> {
    weight.transpose()
}

/// Each way, with plain Burn's in the same place.
type Forward = fn(&Weights, Tensor<2>, bool) -> Tensor<2>;

fn one(is_early: bool, weight: &Param<Tensor<2>>) -> Tensor<2> {
    match is_early {
        true => derived(weight.val(), transposed),
        false => transposed(weight.val()),
    }
}

fn product(is_early: bool, weights: &Weights) -> Tensor<2> {
    let [a, b] = [0, 1].map(|at| weights[at].val());
    let product = |(a, b): (Tensor<2>, Tensor<2>)| a.matmul(b.tanh());
    match is_early {
        true => derived((a, b), product),
        false => product((a, b)),
    }
}

fn several_layers(weights: &Weights, x: Tensor<2>, is_early: bool) -> Tensor<2> {
    let layer = |x: Tensor<2>, weight| x.matmul(one(is_early, weight)).tanh();
    weights.iter().fold(x, layer)
}

const WAYS: [(&str, Forward); 6] = [
    ("one parameter", several_layers),
    ("several parameters", |weights, x, is_early| {
        x.matmul(product(is_early, weights))
            .matmul(weights[2].val())
    }),
    ("a result that is used twice", |weights, x, is_early| {
        let weight = product(is_early, weights);
        let x = x.matmul(weight.clone()).tanh();
        x.matmul(weight).matmul(weights[2].val())
    }),
    ("one of them is used elsewhere", |weights, x, is_early| {
        let x = x
            .matmul(weights[2].val())
            .matmul(one(is_early, &weights[0]));
        x.tanh().matmul(product(is_early, weights))
    }),
    ("within a scope", |weights, x, is_early| {
        let x = x.matmul(one(is_early, &weights[2]));
        let weights = weights[..2].to_vec();
        let run = move |weights: &Weights, x| several_layers(weights, x, is_early);
        checkpoint(&weights, x, run)
    }),
    ("through a scope", |weights, x, is_early| {
        let layer: Weights = weights[..1].to_vec();
        let input = (x, product(is_early, weights));
        checkpoint(
            &layer,
            input,
            |layer: &Weights, (x, weight): (Tensor<2>, Tensor<2>)| {
                x.matmul(weight).tanh().matmul(layer[0].val())
            },
        )
        .matmul(weights[2].val())
    }),
];

fn loss(forward: Forward, weights: &Weights, step: usize, is_early: bool) -> Tensor<1> {
    let x = numbers([3, 4], step, &flex());
    forward(weights, x, is_early).square().mean()
}

#[test]
fn the_weights_are_plain_burns() {
    for (name, forward) in WAYS {
        let (mut plain, mut plain_optim) = (weights(3, 4), adamw());
        let (mut model, mut optim) = (weights(3, 4), adamw().with_gradient_release());
        for step in 0..4 {
            plain = plain_step(plain, &mut plain_optim, |model| {
                loss(forward, model, step, false)
            });
            model = release_step(model, &mut optim, |model| loss(forward, model, step, true));
            assert_bits(
                &bits(&model),
                &bits(&plain),
                &format!("{name}, step {step}"),
            );
            let report = optim.last_step().unwrap().clone();
            assert_released(&[report], name);
        }
    }
}

/// Also of a part of a model, whose other parameters are in no optimizer.
#[test]
fn without_release() {
    for (name, forward) in WAYS {
        let model = weights(3, 4);
        let grads = |is_early| {
            let grads = loss(forward, &model, 1, is_early).backward();
            [0, 1, 2].map(|at| bits_of(model[at].grad(&grads).unwrap()))
        };
        let expected = grads(false);
        assert_eq!(grads(true), expected, "{name}");

        let mut optim = adamw().with_gradient_release();
        let value = loss(forward, &model, 1, true);
        let part = optim.stepping(LR, model[1].clone());
        let (part, grads) = burn_lean::backward(value, part);
        for at in [0, 2] {
            let found = bits_of(model[at].grad(&grads).unwrap());
            assert_eq!(found, expected[at], "{name}");
        }
        let plain_grads = loss(forward, &model, 1, false).backward();
        let of_part = GradientsParams::from_grads(plain_grads, &model[1]);
        let plain = adamw().step(LR, model[1].clone(), of_part);
        assert_eq!(bits(&part), bits(&plain), "{name}");
    }
}

/// The parameters are as if it had not been computed.
#[test]
fn a_loss_that_does_not_use_it() {
    let model = weights(3, 4);
    let mut optim = adamw().with_gradient_release();
    let unused = derived(model[0].val(), transposed);
    let constant = derived(model[1].val().inner(), transposed);
    assert!(unused.is_tracked() && !constant.is_tracked());
    let loss = |model: &Weights| model[2].val().square().mean();
    let plain = plain_step(model.clone(), &mut adamw(), loss);
    let model = release_step(model, &mut optim, loss);
    assert_eq!(bits(&model), bits(&plain));
    assert_eq!(optim.last_step().unwrap().count(Outcome::Unused), 2);
}

#[test]
fn a_parameter_that_is_captured_is_refused() {
    let [a, b] = [0, 1].map(|at| weights(2, 4)[at].val());
    let run = || derived(a.clone(), move |a: Tensor<2>| a.matmul(b.clone()));
    assert_panics(run, "is not among its parameters");
}

/// Layers whose weights are `[output, input]`, as PyTorch has them.
#[test]
fn transposed_weights_take_no_more_memory() {
    const LAYERS: usize = 24;
    const WIDTH: usize = 128;
    const WEIGHT: usize = 4 * WIDTH * WIDTH;
    alone(|| {
        let peak = |layer: fn(&Param<Tensor<2>>) -> Tensor<2>| {
            let sgd = SgdConfig::new().init();
            let (mut model, mut optim) = (weights(LAYERS, WIDTH), sgd.with_gradient_release());
            let mut peak = 0;
            for step in 0..2 {
                let x = numbers([1, WIDTH], step, &flex());
                let run = |x: Tensor<2>, weight| x.matmul(layer(weight)).tanh();
                let loss = model.iter().fold(x, run).square().mean();
                (model, peak) = peak_of(|| optim.backward(LR, loss, model));
            }
            peak
        };
        let untransposed = peak(|weight| weight.val());
        let early = peak(|weight| one(true, weight));
        let late = peak(|weight| one(false, weight));
        println!("{untransposed} untransposed, {early} early, {late} late");
        // All gradients at once.
        assert!(late > (LAYERS - 1) * WEIGHT, "{late}");
        // A gradient as it comes, and transposed.
        assert!(early <= untransposed + WEIGHT, "{early}, {untransposed}");
    });
}

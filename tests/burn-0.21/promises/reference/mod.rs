//! A reference that is not Burn: the weights that PyTorch gets, by `make.py` in this folder.

use burn_gradient_release::ReleaseBackend;

use crate::harness::prelude::*;

/// Lines of the optimizer's name, the step, and the weights after it.
const WEIGHTS: &str = include_str!("weights.csv");

const STEPS: usize = 20;

/// The reference has 64 bits for a number and Burn 32, which is 6e-8 of a number near one, in each
/// of a few dozen operations between the weights of one step and those of the next. Adam's
/// correction `1 - 0.999^t` loses most: 3e-5 of itself in the second step, hence 1e-7 of a weight
/// at a rate of 0.01. Over twenty steps, a few of these add up.
const TOLERANCE: f64 = 2e-6;

/// Numbers in [-1, 1) that 32 bits hold exactly: the formula of `make.py`.
fn pattern<B: Backend, const D: usize>(seed: usize, shape: [usize; D]) -> Tensor<B, D> {
    let values: Vec<f32> = (0..shape.iter().product())
        .map(|place| (37 * place + 11 * seed + place * place) % 64)
        .map(|value| value as f32 / 32.0 - 1.0)
        .collect();
    Tensor::from_data(TensorData::new(values, shape), &Default::default())
}

/// The model of `make.py`. The middle layer is used twice.
#[derive(Module, Debug)]
struct Model<B: Backend> {
    first: Layer<B>,
    middle: Layer<B>,
    last: Layer<B>,
}

#[derive(Module, Debug)]
struct Layer<B: Backend> {
    weight: Param<Tensor<B, 2>>,
    bias: Param<Tensor<B, 1>>,
}

impl<B: Backend> Layer<B> {
    fn new(seed: usize, shape: [usize; 2]) -> Self {
        Self {
            weight: Param::from_tensor(pattern(seed, shape)),
            bias: Param::from_tensor(pattern(seed + 1, [shape[1]])),
        }
    }

    fn forward(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        x.matmul(self.weight.val()) + self.bias.val().unsqueeze()
    }
}

impl<B: AutodiffBackend> Model<B> {
    fn new() -> Self {
        Self {
            first: Layer::new(0, [3, 3]),
            middle: Layer::new(2, [3, 3]),
            last: Layer::new(4, [3, 2]),
        }
    }

    fn loss(&self, step: usize) -> Tensor<B, 1> {
        let x = self.first.forward(pattern(100 + step, [4, 3])).tanh();
        let x = self.middle.forward(x).tanh();
        let x = self.middle.forward(x).tanh();
        let target = pattern(200 + step, [4, 2]);
        (self.last.forward(x) - target).square().mean()
    }

    /// In the order of the reference.
    fn weights(&self) -> Vec<f64> {
        let layers = [&self.first, &self.middle, &self.last];
        layers
            .into_iter()
            .flat_map(|layer| [layer.weight.val().into_data(), layer.bias.val().into_data()])
            .flat_map(|data| data.iter::<f64>().collect::<Vec<_>>())
            .collect()
    }
}

/// The weights after every step, by the reference.
fn expected(optimizer: &str) -> Vec<Vec<f64>> {
    WEIGHTS
        .lines()
        .filter_map(|line| line.strip_prefix(optimizer)?.strip_prefix(','))
        .enumerate()
        .map(|(step, line)| {
            let mut values = line.split(',');
            assert_eq!(values.next(), Some(step.to_string().as_str()), "in order");
            values
                .map(|value| value.parse().expect("a number"))
                .collect()
        })
        .collect()
}

/// Trains with release, and fails where a weight is not the reference's.
fn follows_pytorch<R: Recipe, B: ReleaseBackend>(optimizer: &str, rate: f64, recipe: &R) {
    let expected = expected(optimizer);
    assert_eq!(expected.len(), STEPS);
    let mut model = Model::<B>::new();
    let first = model.weights();
    let mut optim = recipe.make::<B, Model<B>>().with_gradient_release();
    let mut reports = Vec::new();
    let mut furthest = 0.0f64;
    for (step, expected) in expected.iter().enumerate() {
        model = armed_step(rate, model, &mut optim, |model| model.loss(step));
        reports.push(optim.last_step().expect("a step was taken").clone());
        let given = model.weights();
        assert_eq!(given.len(), expected.len());
        for (place, (given, expected)) in given.iter().zip(expected).enumerate() {
            let distance = (given - expected).abs();
            furthest = furthest.max(distance);
            assert!(
                distance <= TOLERANCE,
                "{optimizer}, step {step}, weight {place}: {given} is not PyTorch's {expected}"
            );
        }
    }
    println!("{optimizer}: never further than {furthest:e}");
    // The least of twenty steps of training; a reference that stood still would be met by chance.
    let moved = first
        .iter()
        .zip(model.weights())
        .map(|(a, b)| (a - b).abs());
    assert!(moved.fold(0.0, f64::max) > 0.1, "nothing was trained");
    assert_run_released(&reports, 6);
}

#[test]
fn weights_are_pytorchs() {
    let momentum = MomentumConfig::new().with_dampening(0.0);
    let sgd = SgdConfig::new()
        .with_momentum(Some(momentum))
        .with_weight_decay(Some(WeightDecayConfig::new(0.01)));
    follows_pytorch::<_, Release>("sgd", 0.05, &sgd);
    let adam = AdamConfig::new().with_epsilon(1e-8);
    follows_pytorch::<_, Release>("adam", 0.01, &adam);
    let adamw = AdamWConfig::new().with_epsilon(1e-8).with_weight_decay(0.1);
    follows_pytorch::<_, Release>("adamw", 0.01, &adamw);
}

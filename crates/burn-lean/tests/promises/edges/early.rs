//! [`EarlyGradients`]: weights that reach their operation by way of others.

use burn::module::Lora;
use burn_lean::{EarlyGradient, EarlyGradients};

use crate::harness::prelude::*;
use crate::harness::zero_linear;
use crate::heap::peak_of;

type Weights = Vec<Param<Tensor<2>>>;

fn weights_on(device: &Device) -> Weights {
    let weight = |at| Param::from_tensor(numbers([4, 4], at, device) * 0.2);
    (1..4).map(weight).collect()
}

fn weights() -> Weights {
    weights_on(&flex())
}

fn transposed(weight: &Param<Tensor<2>>) -> Tensor<2> {
    weight.val().transpose()
}

fn product(weights: &[Param<Tensor<2>>]) -> Tensor<2> {
    weights[0].val().matmul(weights[1].val().tanh())
}

fn several_layers(weights: &Weights, x: Tensor<2>) -> Tensor<2> {
    let layer = |x: Tensor<2>, weight| x.matmul(transposed(weight)).tanh();
    weights.iter().fold(x, layer)
}

type Forward = fn(&Weights, Tensor<2>) -> Tensor<2>;

/// No weight has three uses: the last bit of a third addition is not promised.
const WAYS: [(&str, Forward); 6] = [
    ("one parameter", several_layers),
    ("several parameters", |weights, x| {
        x.matmul(product(weights)).matmul(weights[2].val())
    }),
    ("a result that is used twice", |weights, x| {
        let weight = product(weights);
        let x = x.matmul(weight.clone()).tanh();
        x.matmul(weight).matmul(weights[2].val())
    }),
    ("one of them is used elsewhere", |weights, x| {
        let x = x.matmul(weights[2].val()).matmul(transposed(&weights[0]));
        x.tanh().matmul(product(weights))
    }),
    ("within a scope", |weights, x| {
        let x = x.matmul(transposed(&weights[2]));
        checkpoint(&weights[..2].to_vec(), x, several_layers)
    }),
    ("through a scope", |weights, x| {
        let layer: Weights = weights[..1].to_vec();
        let input = (x, product(weights));
        let run = |layer: &Weights, (x, weight): (Tensor<2>, Tensor<2>)| {
            x.matmul(weight).tanh().matmul(layer[0].val())
        };
        checkpoint(&layer, input, run).matmul(weights[2].val())
    }),
];

fn loss(forward: Forward, weights: &Weights, step: usize) -> Tensor<1> {
    let x = numbers([3, 4], step, &weights[0].device());
    forward(weights, x).square().mean()
}

/// Also with Burn's own recomputation, which computes views of weights again.
#[test]
fn the_weights_are_plain_burns() {
    let devices = [flex(), flex().gradient_checkpointing()];
    for ((name, forward), device) in WAYS
        .iter()
        .flat_map(|way| devices.each_ref().map(|on| (*way, on)))
    {
        let (mut plain, mut plain_optim) = (weights_on(device), adamw());
        let mut optim = adamw().with_gradient_release();
        let mut model = weights_on(device).apply_reparameterization(EarlyGradients);
        for step in 0..4 {
            plain = plain_step(plain, &mut plain_optim, |model| loss(forward, model, step));
            model = release_step(model, &mut optim, |model| loss(forward, model, step));
            assert_bits(&bits(&model), &bits(&plain), &format!("{name}, {step}"));
            assert_released(&[optim.last_step().unwrap().clone()], name);
        }
    }
}

/// Also of a part of a model, whose other parameters are in no optimizer.
#[test]
fn without_release() {
    for (name, forward) in WAYS {
        let plain = weights();
        let model = plain.clone().apply_reparameterization(EarlyGradients);
        let grads = |model: &Weights| {
            let grads = loss(forward, model, 1).backward();
            [0, 1, 2].map(|at| bits_of(model[at].base().grad(&grads).unwrap()))
        };
        let expected = grads(&plain);
        assert_eq!(grads(&model), expected, "{name}");

        let mut optim = adamw().with_gradient_release();
        let value = loss(forward, &model, 1);
        let part = optim.stepping(LR, model[1].clone());
        let (part, grads) = burn_lean::backward(value, part);
        for at in [0, 2] {
            let found = bits_of(model[at].base().grad(&grads).unwrap());
            assert_eq!(found, expected[at], "{name}");
        }
        let plain_grads = loss(forward, &plain, 1).backward();
        let of_part = GradientsParams::from_grads(plain_grads, &plain[1]);
        let plain = adamw().step(LR, plain[1].clone(), of_part);
        assert_eq!(bits(&part), bits(&plain), "{name}");
    }
}

/// What a program does with a model between two steps.
#[test]
fn it_stays_with_the_model() {
    let device = flex();
    let plain = plain(&[0]);
    let early = |model: Small| model.apply_reparameterization(EarlyGradients);
    let record = plain.0.clone().into_record().into_bytes().unwrap();
    assert_eq!(
        early(plain.0.clone()).into_record().into_bytes().unwrap(),
        record,
        "a file does not tell"
    );
    let load = |model: Small| {
        let record = ModuleRecord::from_bytes(record.clone()).unwrap();
        numbered(model).load_record(record)
    };
    type Change<'a> = &'a dyn Fn(Small) -> Small;
    let changes: [(&str, Change); 6] = [
        ("cloned", &|model| model.clone()),
        ("moved", &|model| model.fork(&device)),
        ("loaded", &load),
        ("validated and trained on", &|model| model.valid().train()),
        ("frozen and thawed", &|model| model.freeze().unfreeze()),
        ("taken off", &|model| model.materialize()),
    ];
    for (name, change) in changes {
        println!("{name}");
        let model = change(early(plain.0.clone()));
        let is_early = model.tied.reparameterization::<EarlyGradient>();
        assert_eq!(is_early.is_some(), name != "taken off", "{name}");
        let mut optim = plain.1.clone().with_gradient_release();
        assert_goes_on(model, &mut optim, plain.clone());
    }
}

/// Burn's own backward, a graph that is dropped, a model without autodiff, a frozen one.
#[test]
fn each_use_for_itself() {
    let model = weights().apply_reparameterization(EarlyGradients);
    let used = model[0].val();
    assert!(used.is_tracked() && !used.is_require_grad());
    assert!(model[0].is_require_grad() && model[0].base().is_require_grad());
    drop(used);
    assert!(!model[0].valid().val().is_tracked());
    assert!(!model[0].clone().no_grad().val().is_tracked());
    let mut optim = adamw().with_gradient_release();
    let loss = |model: &Weights| model[2].val().square().mean();
    let unused = several_layers(&model, numbers([3, 4], 1, &flex()));
    let plain = plain_step(weights(), &mut adamw(), loss);
    let model = release_step(model, &mut optim, loss);
    assert_eq!(bits(&model), bits(&plain));
    assert_eq!(optim.last_step().unwrap().count(Outcome::Unused), 2);
    drop(unused);
}

const LAYERS: usize = 24;
const WIDTH: usize = 128;
const WEIGHT: usize = 4 * WIDTH * WIDTH;

/// The peak of a second step above what is there before, and how many gradients were late.
fn peak<M: Module>(model: M, loss: impl Fn(&M, usize) -> Tensor<1>) -> (usize, usize) {
    let mut optim = SgdConfig::new().init().with_gradient_release();
    let model = optim.backward(LR, loss(&model, 0), model);
    let loss = loss(&model, 1);
    let (model, peak) = peak_of(|| optim.backward(LR, loss, model));
    let late = optim.last_step().unwrap().late().count();
    drop(model);
    (peak, late)
}

/// Each way with it, and without.
fn peaks<M: Module>(
    model: impl Fn() -> M,
    loss: impl Fn(&M, usize) -> Tensor<1>,
) -> [(usize, usize); 2] {
    let early = peak(model().apply_reparameterization(EarlyGradients), &loss);
    let peaks = [early, peak(model(), &loss)];
    println!("(peak, late): {peaks:?}");
    peaks
}

fn layers(width: usize) -> Vec<Linear> {
    let layer = |_| zero_linear(width, width, &flex());
    numbered((0..LAYERS).map(layer).collect())
}

/// Burn's `Linear` with a batch of one, and with a time that is a multiple of 32.
#[test]
fn linear_layers_over_a_sequence() {
    alone(|| {
        let loss = |shape: [usize; 3]| {
            move |model: &Vec<Linear>, step| {
                let x = numbers(shape, step, &flex());
                // More operations than uses of parameters, which keep nothing.
                let run =
                    |x: Tensor<3>, layer: &Linear| (0..12).fold(layer.forward(x), |x, _| x * 1.01);
                model.iter().fold(x, run).square().mean()
            }
        };
        for shape in [[1, 5, WIDTH], [2, 32, WIDTH]] {
            let [(early, few), (late, many)] = peaks(|| layers(WIDTH), loss(shape));
            // All gradients at once; activations go meanwhile.
            let inputs = LAYERS * 4 * shape.iter().product::<usize>();
            assert!(late + inputs > LAYERS * WEIGHT, "{late}");
            assert_eq!(many, 2 * LAYERS);
            // The gradient of a layer: a product for each sequence, their sum, and the old weight.
            let tape = 100 << 10;
            assert!(early < (3 + 2 * shape[0]) * WEIGHT + tape, "{early}");
            assert_eq!(few, 1, "the weight of the first layer");
        }
    });
}

/// Layers whose weights are `[output, input]`, as PyTorch has them.
#[test]
fn transposed_weights_take_no_more_memory() {
    alone(|| {
        let matrices = || -> Weights {
            let layers = layers(WIDTH).into_iter();
            layers.map(|layer| layer.weight).collect()
        };
        let run = |weight: fn(&Param<Tensor<2>>) -> Tensor<2>| {
            move |model: &Weights, step| {
                let x = numbers([1, WIDTH], step, &flex());
                let layer = |x: Tensor<2>, of| x.matmul(weight(of)).tanh();
                model.iter().fold(x, layer).square().mean()
            }
        };
        let [(untransposed, _), _] = peaks(matrices, run(Param::val));
        let [(early, few), (late, many)] = peaks(matrices, run(transposed));
        assert!(late > (LAYERS - 1) * WEIGHT, "{late}");
        // A gradient as it comes, and transposed.
        assert!(early <= untransposed + WEIGHT, "{early}, {untransposed}");
        assert_eq!([few, many], [1, LAYERS]);
    });
}

/// Burn adds the product of the factors to the frozen base, and keeps the sum: so much can only be saved by
/// who makes none.
#[test]
fn adapters() {
    let model = || numbered_from(layers(8).apply_lora(Lora::new(2, 4.0)), 500);
    let train = |mut model: Vec<Linear>| {
        let mut optim = adamw().with_gradient_release();
        for step in 0..3 {
            model = release_step(model, &mut optim, |model| {
                let x = numbers([3, 8], step, &flex());
                let run = |x: Tensor<2>, layer: &Linear| layer.forward(x).tanh();
                model.iter().fold(x, run).square().mean()
            });
        }
        (bits(&model), optim.last_step().unwrap().late().count())
    };
    let (plain, late) = train(model());
    let (early, few) = train(model().apply_reparameterization(EarlyGradients));
    assert_eq!(early, plain);
    assert_eq!([few, late], [2, 2 * LAYERS]);
}

//! Shapes, types, numbers and counts that are unusual.

use burn::nn::Initializer;
use burn::tensor::{FloatDType, activation};

use crate::harness::Named;
use crate::harness::prelude::*;

fn sgd() -> ModuleOptimizer {
    SgdConfig::new().init()
}

fn adam() -> ModuleOptimizer {
    AdamConfig::new().init()
}

const OPTIMS: [Named; 2] = [("AdamW", adamw), ("SGD", sgd)];

/// Shape, type and bytes of each parameter.
fn bytes<M: Module>(model: &M) -> Vec<(Vec<usize>, DType, Vec<u8>)> {
    #[derive(Default)]
    struct Bytes(Vec<(Vec<usize>, DType, Vec<u8>)>);
    impl ModuleVisitor for Bytes {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let data = param.val().into_data();
            let shape = param.val().dims().to_vec();
            self.0.push((shape, data.dtype(), data.as_bytes().to_vec()));
        }
    }
    let mut bytes = Bytes::default();
    model.visit(&mut bytes);
    bytes.0
}

/// Trains both ways and compares every byte, also of a copy. Returns what the last step did.
fn same<M: Module>(
    optims: &[Named],
    start: &M,
    loss: impl Fn(&M, usize) -> Tensor<1>,
) -> StepReport {
    let mut last = StepReport::default();
    for (name, optim) in optims {
        let (mut plain, mut model) = (start.clone(), start.clone());
        let (mut plain_optim, mut release) = (optim(), optim().with_gradient_release());
        for step in 0..4 {
            let (copy, before) = (model.clone(), bytes(&plain));
            plain = plain_step(plain, &mut plain_optim, |model| loss(model, step));
            model = release_step(model, &mut release, |model| loss(model, step));
            let what = format!("{name}, step {step}");
            assert_eq!(bytes(&model), bytes(&plain), "{what}");
            assert_eq!(bytes(&copy), before, "{what}: a copy");
            assert_ne!(bytes(&model), before, "{what} changes nothing");
        }
        last = release.last_step().unwrap().clone();
    }
    last
}

fn zeros<const D: usize>(shape: [usize; D]) -> Param<Tensor<D>> {
    Param::from_tensor(Tensor::zeros(shape, &flex()))
}

#[test]
fn parameters_of_one_element() {
    let model = numbered((zeros([1]), zeros([1, 1]), zeros([1, 1, 1, 1, 1])));
    let optims = [OPTIMS[0], OPTIMS[1], ("Adam", adam as fn() -> _)];
    let report = same(&optims, &model, |(one, tall, deep), step| {
        let x = numbers::<2>([3, 1], step, &flex()).matmul(tall.val());
        let x = x * one.val().unsqueeze() + deep.val().reshape([1, 1]);
        x.square().mean()
    });
    assert_eq!(report.count(Outcome::Released), 3);
}

/// Where plain Burn trains a model, it is trained the same; where it panics, so does release.
fn same_or_both_panic<M: Module>(make: impl Fn() -> M, loss: impl Fn(&M, usize) -> Tensor<1>) {
    let plain = panic_of(|| plain_step(make(), &mut sgd(), |model| loss(model, 0)));
    match plain {
        Ok(_) => _ = same(&OPTIMS, &make(), loss),
        Err(text) => assert_panics(
            || {
                let mut optim = sgd().with_gradient_release();
                release_step(make(), &mut optim, |model| loss(model, 0))
            },
            &text,
        ),
    }
}

#[test]
fn parameters_without_elements() {
    let make = || numbered((zeros([0, 4]), zeros([2, 4])));
    same_or_both_panic(make, |(empty, full), step| {
        let rows = Tensor::cat(vec![full.val(), empty.val()], 0);
        (rows * numbers::<2>([2, 4], step, &flex())).square().sum()
    });
}

#[test]
fn an_empty_parameter_that_nothing_uses() {
    let model = numbered((zeros([0]), zeros([2, 2]), zeros([2, 0, 1, 3, 1])));
    same(&OPTIMS, &model, |(_, used, _), step| {
        (used.val() * numbers::<2>([2, 2], step, &flex()))
            .square()
            .sum()
    });
}

fn cast(model: Small, dtype: FloatDType) -> Small {
    map_numbers(model, |value| value.cast(dtype))
}

#[test]
fn weights_in_other_types() {
    for dtype in [FloatDType::F64, FloatDType::F16, FloatDType::BF16] {
        let model = cast(small(), dtype);
        assert_eq!(model.tied.val().dtype(), dtype.into());
        same(&OPTIMS, &model, |model, step| {
            let x = numbers::<2>([3, 4], step, &flex()).cast(dtype);
            model.forward(x).square().mean()
        });
    }
}

/// Weights in f32, and arithmetic in 16 bits.
#[test]
fn weights_that_are_cast_when_used() {
    same(&OPTIMS, &small(), |model, step| {
        let x = numbers::<2>([3, 4], step, &flex()).cast(FloatDType::BF16);
        let x = x.matmul(model.tied.val().cast(FloatDType::BF16));
        let x = gelu(model.first.forward(x.cast(FloatDType::F32)));
        let x = model.second.forward(x).cast(FloatDType::F16);
        let x = x.matmul(model.tied.val().cast(FloatDType::F16));
        x.cast(FloatDType::F32).square().mean()
    });
}

/// As `bits`, with one NaN for all: its payload depends on how the compiler orders operands.
fn normal<M: Module>(model: &M) -> Vec<(String, Vec<u32>)> {
    let normal = |bits: u32| match f32::from_bits(bits).is_nan() {
        true => f32::NAN.to_bits(),
        false => bits,
    };
    let params = bits(model).into_iter();
    params
        .map(|(path, bits)| (path, bits.into_iter().map(normal).collect()))
        .collect()
}

/// Trains both ways where weights may become NaN, and compares the bits after each step.
fn same_normal(start: &Small, what: &str, loss: impl Fn(&Small, usize) -> Tensor<1>) {
    for (name, optim) in OPTIMS {
        let (mut plain, mut model) = (start.clone(), start.clone());
        let (mut plain_optim, mut release) = (optim(), optim().with_gradient_release());
        for step in 0..4 {
            plain = plain_step(plain, &mut plain_optim, |model| loss(model, step));
            model = release_step(model, &mut release, |model| loss(model, step));
            let what = format!("{name}, {what}, step {step}");
            assert_eq!(normal(&model), normal(&plain), "{what}");
            // Nobody asks for a norm.
            assert_eq!(release.last_step().unwrap().grad_norm(), None, "{what}");
        }
    }
}

/// The gradients turn bad in the second of four steps.
#[test]
fn gradients_that_are_not_finite_or_overflow() {
    for poison in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 3e38] {
        same_normal(&small(), &format!("{poison}"), |model, step| match step {
            1 => {
                let poison = Tensor::<1>::from_floats([poison], &flex());
                model.loss(step) + model.second.weight.val().slice([0..1, 0..2]).sum() * poison
            }
            _ => model.loss(step),
        });
    }
}

#[test]
fn very_small_and_very_large_values() {
    for scale in [1e-20, 1e-10, 1e10, 1e20] {
        let model = map_numbers(small(), |value| value.mul_scalar(scale));
        same_normal(&model, &format!("weights x {scale:e}"), Small::loss);
    }
    // Gradients as small and as large as f32 can hold.
    for scale in [1e-42, 1e-30, 1e30, 1e37] {
        let what = format!("gradients x {scale:e}");
        same_normal(&small(), &what, |model, step| {
            model.loss(step).mul_scalar(scale)
        });
    }
}

/// Weights that are NaN from the start.
#[test]
fn weights_that_are_nan() {
    let mut model = small();
    model.tied = map_numbers(model.tied, |value| value.mul_scalar(f32::NAN));
    same_normal(&model, "NaN", Small::loss);
}

/// -0 stays -0: what a sum begins with matters.
#[test]
fn gradients_that_are_negative_zero() {
    let zeros = Tensor::<1>::from_floats([-0.0, 0.0, -0.0], &flex());
    let loss = |weight: &Param<Tensor<1>>| {
        (weight.val() * zeros.clone()).sum() + (weight.val() * zeros.clone()).sum()
    };
    let mut plain = Param::from_tensor(zeros.clone());
    let mut model = plain.clone();
    let (mut plain_optim, mut optim) = (sgd(), sgd().with_gradient_release());
    for step in 0..3 {
        plain = plain_step(plain, &mut plain_optim, loss);
        model = release_step(model, &mut optim, loss);
        assert_eq!(bits(&model), bits(&plain), "after step {step}");
    }
}

fn layer(inputs: usize, outputs: usize) -> Linear {
    LinearConfig::new(inputs, outputs).init(&flex())
}

#[test]
fn three_hundred_parameters() {
    let make = || -> Vec<Linear> { numbered((0..150).map(|_| layer(3, 3)).collect()) };
    let loss = |layers: &Vec<Linear>, step: usize| {
        let x = numbers::<2>([2, 3], step, &flex());
        let run = |x: Tensor<2>, layer: &Linear| activation::tanh(layer.forward(x.clone())) + x;
        layers.iter().fold(x, run).square().mean()
    };
    let runs = both_ways(&OPTIMS[..1], 4, make, loss);
    for report in &runs[0] {
        assert_eq!(report.count(Outcome::Released), 300);
        assert_eq!(report.in_place(), 300);
    }
}

/// Parameters whose weight is not made yet when they are used first.
#[test]
fn parameters_that_are_not_initialized() {
    let make = || -> Linear {
        let initializer = Initializer::Constant { value: 0.25 };
        let config = LinearConfig::new(4, 4).with_initializer(initializer);
        config.init(&flex())
    };
    let loss = |model: &Linear, step| {
        let x = numbers::<2>([3, 4], step, &flex());
        model.forward(x).square().mean()
    };
    assert!(!make().weight.is_initialized());
    both_ways(&OPTIMS[..1], 3, make, loss);
    // One that the loss does not use, and whose clone shares its initialization.
    let model = (make(), layer(4, 4));
    let copy = model.1.clone();
    let mut optim = adamw().with_gradient_release();
    let (_, unused) = release_step(model, &mut optim, |model| loss(&model.0, 0));
    assert_eq!(bits(&unused), bits(&copy));
}

/// Plain Burn has no gradients for them, and does nothing.
#[test]
fn models_without_autodiff_or_parameters() {
    let mut optim = adamw().with_gradient_release();
    for model in [Small::new(&flex().inner()), small().valid()] {
        let before = bits(&model);
        let model = optim.backward(LR, small().loss(0), model);
        let model = optim.step(LR, model, GradientsParams::new());
        assert_eq!(bits(&model), before);
        assert!(!model.tied.val().is_autodiff());
    }
    let none = optim.step(LR, Vec::<Linear>::new(), GradientsParams::new());
    assert_eq!(none.len(), 0);
    assert_eq!(optim.last_step().unwrap().outcomes().count(), 0);
}

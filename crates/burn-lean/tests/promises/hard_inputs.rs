//! Types and numbers that are hard, and models that have hardly a parameter.

use burn::nn::Initializer;
use burn::tensor::FloatDType;

use crate::harness::Named;
use crate::harness::prelude::*;

const OPTIMS: [Named; 3] = [
    ("AdamW", adamw),
    ("Adam", || AdamConfig::new().init()),
    ("SGD", || SgdConfig::new().init()),
];

/// Each number exactly, of any type, with one NaN for all: its payload depends on how the compiler orders
/// operands.
fn exact<M: Module>(model: &M) -> Vec<Vec<u64>> {
    struct Exact(Vec<Vec<u64>>);
    impl ModuleVisitor for Exact {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let numbers = param.val().into_data();
            let numbers = numbers.iter::<f64>();
            let numbers = numbers.map(|number| if number.is_nan() { f64::NAN } else { number });
            self.0.push(numbers.map(f64::to_bits).collect());
        }
    }
    let mut exact = Exact(Vec::new());
    model.visit(&mut exact);
    exact.0
}

/// Trains both ways, and compares all numbers after each step: where weights become NaN, too.
fn assert_same<M: Module>(start: &M, what: &str, loss: impl Fn(&M, usize) -> Tensor<1>) {
    for (name, optim) in OPTIMS {
        let (mut plain, mut model) = (start.clone(), start.clone());
        let (mut plain_optim, mut release) = (optim(), optim().with_gradient_release());
        for step in 0..4 {
            plain = plain_step(plain, &mut plain_optim, |model| loss(model, step));
            model = release_step(model, &mut release, |model| loss(model, step));
            let what = format!("{name}, {what}, step {step}");
            assert_eq!(exact(&model), exact(&plain), "{what}");
            // Nobody asks for a norm.
            assert_eq!(release.last_step().unwrap().grad_norm(), None, "{what}");
        }
    }
}

#[test]
fn parameters_of_one_element() {
    fn zeros<const D: usize>(shape: [usize; D]) -> Param<Tensor<D>> {
        Param::from_tensor(Tensor::zeros(shape, &flex()))
    }
    let make = || numbered((zeros([1]), zeros([1, 1]), zeros([1, 1, 1, 1, 1])));
    both_ways(&OPTIMS, 4, make, |(one, tall, deep), step| {
        let x = numbers::<2>([3, 1], step, &flex()).matmul(tall.val());
        let x = x * one.val().unsqueeze() + deep.val().reshape([1, 1]);
        x.square().mean()
    });
}

#[test]
fn weights_in_other_types() {
    for dtype in [FloatDType::F64, FloatDType::F16, FloatDType::BF16] {
        let model = map_numbers(small(), |value| value.cast(dtype));
        assert_eq!(model.tied.val().dtype(), dtype.into());
        assert_same(&model, &format!("{dtype:?}"), |model, step| {
            let x = numbers::<2>([3, 4], step, &flex()).cast(dtype);
            model.forward(x).square().mean()
        });
    }
}

/// The gradients turn bad in the second of four steps.
#[test]
fn gradients_that_are_not_finite_or_overflow() {
    for poison in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 3e38] {
        assert_same(&small(), &format!("{poison}"), |model, step| match step {
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
    for scale in [1e-20, 1e-10, 1e10, 1e20, f32::NAN] {
        let model = map_numbers(small(), |value| value.mul_scalar(scale));
        assert_same(&model, &format!("weights x {scale:e}"), Small::loss);
    }
    // Gradients as small and as large as f32 can hold.
    for scale in [1e-42, 1e-30, 1e30, 1e37] {
        let what = format!("gradients x {scale:e}");
        assert_same(&small(), &what, |model, step| model.loss(step) * scale);
    }
}

/// -0 stays -0: what a sum begins with matters.
#[test]
fn gradients_that_are_negative_zero() {
    let zeros = Tensor::<1>::from_floats([-0.0, 0.0, -0.0], &flex());
    let start = Param::from_tensor(zeros.clone());
    assert_same(&start, "-0", |weight, _| {
        let product = || (weight.val() * zeros.clone()).sum();
        product() + product()
    });
}

/// Parameters whose weight is not made yet when they are used first, and one that the loss does not use,
/// and whose clone shares its initialization.
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
    let model: [Linear; 2] = [make(), LinearConfig::new(4, 4).init(&flex())];
    let copy = model[1].clone();
    let mut optim = adamw().with_gradient_release();
    let [_, unused] = release_step(model, &mut optim, |model| loss(&model[0], 0));
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

//! Shapes, types, numbers and counts that are unusual.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamConfig, GradientsParams, ModuleOptimizer, SgdConfig};
use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData, activation};
use burn_lean::{FirstPass, Outcome, ReleaseOptimizer, WithGradientRelease};

use crate::harness::{LR, adamw, bits, flex, numbers, plain_step, release_step};
use crate::small::{Small, numbered, numbered_from, small};

fn sgd() -> ModuleOptimizer {
    SgdConfig::new().init()
}

fn adam() -> ModuleOptimizer {
    AdamConfig::new().init()
}

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

/// Trains both ways and compares every byte, also of a copy and of a record.
fn same<M: Module>(
    optims: &[fn() -> ModuleOptimizer],
    start: &M,
    loss: impl Fn(&M, usize) -> Tensor<1>,
) -> ReleaseOptimizer {
    let mut last = None;
    for optim in optims {
        for first_pass in [FirstPass::Auto, FirstPass::Small] {
            let (mut plain, mut model) = (start.clone(), start.clone());
            let mut plain_optim = optim();
            let mut release = optim().with_gradient_release().with_first_pass(first_pass);
            for step in 0..4 {
                let before = bytes(&plain);
                plain = plain_step(plain, &mut plain_optim, |model| loss(model, step));
                model = release.arm(LR, model);
                let copy = model.clone();
                let saved = start.clone().load_record(model.clone().into_record());
                assert_eq!(bytes(&saved), before, "saved in step {step}");
                let grads = GradientsParams::from_grads(loss(&model, step).backward(), &model);
                model = release.step(LR, model, grads);
                assert_eq!(bytes(&model), bytes(&plain), "after step {step}");
                assert_eq!(bytes(&copy.materialize()), before, "a copy of step {step}");
                assert_ne!(bytes(&model), before, "step {step} changes something");
            }
            last = Some(release);
        }
    }
    last.unwrap()
}

#[derive(Module, Debug)]
struct Sizes {
    one: Param<Tensor<1>>,
    tall: Param<Tensor<2>>,
    deep: Param<Tensor<5>>,
}

#[test]
fn parameters_of_one_element() {
    let device = flex();
    let model = numbered(Sizes {
        one: Param::from_tensor(Tensor::zeros([1], &device)),
        tall: Param::from_tensor(Tensor::zeros([1, 1], &device)),
        deep: Param::from_tensor(Tensor::zeros([1, 1, 1, 1, 1], &device)),
    });
    let optim = same(&[adamw, sgd, adam], &model, |model, step| {
        let x = numbers::<2>([3, 1], step, &flex()).matmul(model.tall.val());
        let x = x * model.one.val().unsqueeze() + model.deep.val().reshape([1, 1]);
        x.square().mean()
    });
    assert_eq!(optim.last_step().unwrap().count(Outcome::Released), 3);
}

#[test]
fn parameters_without_elements() {
    let device = flex();
    #[derive(Module, Debug)]
    struct Empty {
        empty: Param<Tensor<2>>,
        full: Param<Tensor<2>>,
    }
    let model = numbered(Empty {
        empty: Param::from_tensor(Tensor::zeros([0, 4], &device)),
        full: Param::from_tensor(Tensor::zeros([2, 4], &device)),
    });
    let loss = |model: &Empty, step: usize| {
        let rows = Tensor::cat(vec![model.full.val(), model.empty.val()], 0);
        (rows * numbers::<2>([2, 4], step, &flex())).square().sum()
    };
    // Does plain Burn train it at all?
    let plain = crate::small::panic_of(|| {
        plain_step(model.clone(), &mut adamw(), |model| loss(model, 0));
    });
    if plain.is_ok() {
        same(&[adamw, sgd], &model, loss);
    } else {
        let released = crate::small::panic_of(|| {
            release_step(
                model.clone(),
                &mut adamw().with_gradient_release(),
                |model| loss(model, 0),
            );
        });
        assert!(released.is_err());
    }
}

#[test]
fn an_empty_parameter_that_nothing_uses() {
    let device = flex();
    let model = numbered(Sizes {
        one: Param::from_tensor(Tensor::zeros([0], &device)),
        tall: Param::from_tensor(Tensor::zeros([2, 2], &device)),
        deep: Param::from_tensor(Tensor::zeros([2, 0, 1, 3, 1], &device)),
    });
    same(&[adamw, sgd], &model, |model, step| {
        (model.tall.val() * numbers::<2>([2, 2], step, &flex()))
            .square()
            .sum()
    });
}

#[test]
fn parameters_without_dimensions() {
    #[derive(Module, Debug)]
    struct Scalar {
        scale: Param<Tensor<0>>,
        weight: Param<Tensor<1>>,
    }
    let device = flex();
    let make = || Scalar {
        scale: Param::from_tensor(Tensor::from_data(
            TensorData::new(vec![0.7_f32], Vec::<usize>::new()),
            &device,
        )),
        weight: Param::from_tensor(numbers([3], 1, &device)),
    };
    let loss = |model: &Scalar, step: usize| {
        let scale = model.scale.val().reshape([1]);
        (model.weight.val() * scale + numbers::<1>([3], step, &flex()))
            .square()
            .mean()
    };
    // Burn 0.22 knows the rank, but not every operation and optimizer does.
    let plain = crate::small::panic_of(|| {
        let model = make();
        plain_step(model, &mut sgd(), |model| loss(model, 0))
    });
    match plain {
        Ok(_) => {
            same(&[sgd, adamw], &make(), loss);
        }
        Err(text) => {
            let released = crate::small::panic_of(|| {
                release_step(make(), &mut sgd().with_gradient_release(), |model| {
                    loss(model, 0)
                })
            });
            assert_eq!(released.map(|_| ()).unwrap_err(), text);
        }
    }
}

/// Casts every parameter.
struct Cast(FloatDType);

impl ModuleMapper for Cast {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|value| value.inner().cast(self.0).autodiff().require_grad())
    }
}

fn loss_in(dtype: FloatDType) -> impl Fn(&Small, usize) -> Tensor<1> {
    move |model, step| {
        let x = numbers::<2>([3, 4], step, &flex()).cast(dtype);
        model.forward(x).square().mean()
    }
}

fn trained_in(dtype: FloatDType) {
    let model = small().map(&mut Cast(dtype));
    assert_eq!(model.tied.val().dtype(), dtype.into());
    let loss = loss_in(dtype);
    plain_step(model.clone(), &mut adamw(), |model| loss(model, 0));
    same(&[adamw, sgd], &model, &loss);
}

#[test]
fn weights_in_f64() {
    trained_in(FloatDType::F64);
}

#[test]
fn weights_in_f16() {
    trained_in(FloatDType::F16);
}

#[test]
fn weights_in_bf16() {
    trained_in(FloatDType::BF16);
}

/// Weights in f32, and arithmetic in 16 bits.
#[test]
fn weights_that_are_cast_when_used() {
    same(&[adamw, sgd], &small(), |model, step| {
        let x = numbers::<2>([3, 4], step, &flex()).cast(FloatDType::BF16);
        let x = x.matmul(model.tied.val().cast(FloatDType::BF16));
        let x = model.first.forward(x.cast(FloatDType::F32));
        let x = model
            .second
            .forward(activation::gelu(x))
            .cast(FloatDType::F16);
        x.matmul(model.tied.val().cast(FloatDType::F16))
            .cast(FloatDType::F32)
            .square()
            .mean()
    });
}

/// As `bits`, with one NaN for all: its payload depends on how the compiler orders operands.
fn normal<M: Module>(model: &M) -> Vec<(String, Vec<u32>)> {
    let normal = |bits: u32| {
        if f32::from_bits(bits).is_nan() {
            f32::NAN.to_bits()
        } else {
            bits
        }
    };
    let params = bits(model).into_iter();
    params
        .map(|(path, bits)| (path, bits.into_iter().map(normal).collect()))
        .collect()
}

/// The gradients turn bad in the second of four steps.
fn same_with_poison(poison: f32) {
    for optim in [adamw as fn() -> ModuleOptimizer, sgd] {
        let loss = |model: &Small, step: usize| match step {
            1 => {
                let poison = Tensor::<1>::from_floats([poison], &flex());
                model.loss(step) + model.second.weight.val().slice([0..1, 0..2]).sum() * poison
            }
            _ => model.loss(step),
        };
        let (mut plain, mut model) = (small(), small());
        let (mut plain_optim, mut release) = (optim(), optim().with_gradient_release());
        let mut copy = None;
        for step in 0..4 {
            plain = plain_step(plain, &mut plain_optim, |model| loss(model, step));
            model = release.arm(LR, model);
            if step == 2 {
                copy = Some((model.clone(), bits(&model.clone().materialize())));
            }
            let grads = GradientsParams::from_grads(loss(&model, step).backward(), &model);
            model = release.step(LR, model, grads);
            assert_eq!(
                normal(&model),
                normal(&plain),
                "after step {step} with {poison}"
            );
        }
        // Real NaN among the weights are no placeholder.
        let (copy, expected) = copy.unwrap();
        assert_eq!(bits(&copy.clone().materialize()), expected);
        assert_eq!(bits(&small().load_record(copy.into_record())), expected);
    }
}

#[test]
fn gradients_with_nan() {
    same_with_poison(f32::NAN);
}

#[test]
fn gradients_with_infinity() {
    same_with_poison(f32::INFINITY);
    same_with_poison(f32::NEG_INFINITY);
}

#[test]
fn gradients_that_overflow() {
    same_with_poison(3e38);
}

/// Weights that are NaN from the start: in each type, a placeholder must not be taken for them, nor
/// they for one.
#[test]
fn weights_that_are_nan() {
    for dtype in [
        FloatDType::F32,
        FloatDType::F16,
        FloatDType::BF16,
        FloatDType::F64,
    ] {
        let mut model = small().map(&mut Cast(dtype));
        model.tied = model
            .tied
            .map(|value| value.inner().mul_scalar(f32::NAN).autodiff().require_grad());
        let before = bytes(&model);
        let mut optim = adamw().with_gradient_release();
        let armed = optim.arm(LR, model.clone());
        let copy = armed.clone();
        let valid = armed.valid();
        assert_eq!(
            bytes(&small().load_record(armed.clone().into_record())),
            before
        );
        // NaN loaded over the placeholder.
        let other = numbered_from(small(), 60).map(&mut Cast(dtype));
        let armed = armed
            .load_record(other.into_record())
            .load_record(model.into_record());
        assert_eq!(bytes(&armed.clone().materialize()), before, "{dtype:?}");
        let model = optim.disarm(armed);
        assert_eq!(bytes(&model), before, "{dtype:?}");
        assert_eq!(bytes(&copy.materialize()), before, "{dtype:?}");
        assert_eq!(bytes(&valid.materialize()), before, "{dtype:?}");
    }
}

#[test]
fn very_small_and_very_large_values() {
    for scale in [1e-20, 1e-10, 1e10, 1e20] {
        struct Scale(f64);
        impl ModuleMapper for Scale {
            fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
                param.map(|value| value.inner().mul_scalar(self.0).autodiff().require_grad())
            }
        }
        for optim in [adamw as fn() -> ModuleOptimizer, sgd] {
            let mut plain = small().map(&mut Scale(scale));
            let mut model = plain.clone();
            let (mut plain_optim, mut release) = (optim(), optim().with_gradient_release());
            for step in 0..4 {
                plain = plain_step(plain, &mut plain_optim, |model| model.loss(step));
                model = release_step(model, &mut release, |model| model.loss(step));
                assert_eq!(
                    normal(&model),
                    normal(&plain),
                    "after step {step} of {scale}"
                );
            }
        }
    }
}

/// Gradients as small and as large as f32 can hold.
#[test]
fn very_small_and_very_large_gradients() {
    for scale in [1e-42, 1e-30, 1e30, 1e37] {
        for optim in [adamw as fn() -> ModuleOptimizer, sgd] {
            let (mut plain, mut model) = (small(), small());
            let (mut plain_optim, mut release) = (optim(), optim().with_gradient_release());
            for step in 0..3 {
                let loss = |model: &Small| model.loss(step).mul_scalar(scale);
                plain = plain_step(plain, &mut plain_optim, loss);
                model = release_step(model, &mut release, loss);
                assert_eq!(
                    normal(&model),
                    normal(&plain),
                    "after step {step} of {scale}"
                );
            }
        }
    }
}

/// -0 stays -0: what a sum begins with matters.
#[test]
fn gradients_that_are_negative_zero() {
    #[derive(Module, Debug)]
    struct One {
        weight: Param<Tensor<1>>,
    }
    let zeros = Tensor::<1>::from_floats([-0.0, 0.0, -0.0], &flex());
    let model = One {
        weight: Param::from_tensor(zeros.clone()),
    };
    let loss = |model: &One, _: usize| {
        (model.weight.val() * zeros.clone()).sum() + (model.weight.val() * zeros.clone()).sum()
    };
    let (mut plain, mut released) = (model.clone(), model);
    let (mut plain_optim, mut release) = (sgd(), sgd().with_gradient_release());
    for step in 0..3 {
        plain = plain_step(plain, &mut plain_optim, |model| loss(model, step));
        released = release_step(released, &mut release, |model| loss(model, step));
        assert_eq!(bits(&released), bits(&plain), "after step {step}");
    }
}

#[test]
fn three_hundred_parameters() {
    #[derive(Module, Debug)]
    struct Deep {
        layers: Vec<Linear>,
    }
    let device = flex();
    let make = |device: &Device| -> Linear { LinearConfig::new(3, 3).init(device) };
    let model = numbered(Deep {
        layers: (0..150).map(|_| make(&device)).collect(),
    });
    let loss = |model: &Deep, step: usize| {
        let mut x = numbers::<2>([2, 3], step, &flex());
        for layer in &model.layers {
            x = activation::tanh(layer.forward(x.clone())) + x;
        }
        x.square().mean()
    };
    let (mut plain, mut released) = (model.clone(), model);
    let (mut plain_optim, mut release) = (adamw(), adamw().with_gradient_release());
    for step in 0..4 {
        plain = plain_step(plain, &mut plain_optim, |model| loss(model, step));
        released = release_step(released, &mut release, |model| loss(model, step));
        assert_eq!(bits(&released), bits(&plain), "after step {step}");
    }
    assert_eq!(release.last_step().unwrap().count(Outcome::Released), 300);
    assert_eq!(release.last_step().unwrap().in_place(), 300);
}

#[test]
fn a_model_without_parameters() {
    #[derive(Module, Debug)]
    struct Nothing {
        relu: burn::nn::Relu,
    }
    let mut optim = adamw().with_gradient_release();
    let model = optim.arm(
        LR,
        Nothing {
            relu: burn::nn::Relu::new(),
        },
    );
    let model = optim.step(LR, model, GradientsParams::new());
    let model = optim.arm(LR, model);
    let _ = optim.disarm(model);
    assert_eq!(optim.last_step().unwrap().outcomes().count(), 0);
}

/// Parameters whose weight is not made yet when the model is armed.
#[test]
fn parameters_that_are_not_initialized() {
    let device = flex();
    let lazy = || -> Linear {
        let initializer = burn::nn::Initializer::Constant { value: 0.25 };
        LinearConfig::new(4, 4)
            .with_initializer(initializer)
            .init(&device)
    };
    let loss = |model: &Linear, step| {
        model
            .forward(numbers::<2>([3, 4], step, &flex()))
            .square()
            .mean()
    };
    let (mut plain, mut released) = (lazy(), lazy());
    let (mut plain_optim, mut release) = (adamw(), adamw().with_gradient_release());
    assert!(!released.weight.is_initialized());
    for step in 0..3 {
        plain = plain_step(plain, &mut plain_optim, |model| loss(model, step));
        released = release_step(released, &mut release, |model| loss(model, step));
        assert_eq!(bits(&released), bits(&plain), "after step {step}");
    }
}

/// A clone of a model that shares its initialization: the weights are drawn once.
#[test]
fn clones_that_are_not_initialized() {
    let model: Linear = LinearConfig::new(4, 4).init(&flex());
    let copy = model.clone();
    let mut optim = adamw().with_gradient_release();
    let armed = optim.arm(LR, model);
    let expected = bits(&copy);
    assert_eq!(crate::small::bits_of(armed.weight.val()), expected[0].1);
    let model = optim.disarm(armed);
    assert_eq!(bits(&model), expected);
}

/// A model on a device without autodiff: plain Burn has no gradients for it, and does nothing.
#[test]
fn a_model_without_autodiff() {
    let device = flex().inner();
    let model = Small::new(&device);
    let before = bits(&model);
    let mut optim = adamw().with_gradient_release();
    match optim.try_arm(LR, model) {
        Ok(model) => {
            assert_eq!(model.values(), small().values());
            let model = optim.step(LR, model, GradientsParams::new());
            assert_eq!(bits(&model), before);
            assert!(!model.tied.val().is_autodiff());
        }
        Err(refused) => assert_eq!(bits(&refused.into_model()), before),
    }
}

/// `valid()` of a model, armed by mistake.
#[test]
fn a_valid_model_is_armed() {
    let valid = small().valid();
    let mut optim = adamw().with_gradient_release();
    if let Ok(model) = optim.try_arm(LR, valid) {
        assert_eq!(model.values(), small().values());
        let model = optim.step(LR, model, GradientsParams::new());
        assert_eq!(bits(&model), bits(&small()));
    }
    let model = optim.arm(LR, small());
    let valid = model.valid();
    match optim.try_step(LR, valid, GradientsParams::new()) {
        Ok(stepped) => {
            assert_eq!(stepped.values(), small().values());
            if let Some(values) = crate::small::read_or_refused(&model) {
                assert_eq!(values, small().values());
            }
        }
        Err(refused) => assert_eq!(refused.into_model().values(), small().values()),
    }
}

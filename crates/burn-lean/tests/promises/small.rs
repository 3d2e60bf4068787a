//! A small model with tied weights, whose numbers come from no generator: tests run side by side.

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::module::{Module, ModuleMapper, Param};
use burn::nn::{Linear, LinearConfig};
use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::tensor::{Device, Tensor, activation};
use burn_lean::{ReleaseError, ReleaseOptimizer, WithGradientRelease};

use crate::harness::{adamw, bits, flex, numbers, plain_step, release_step};

#[derive(Module, Debug)]
pub(crate) struct Small {
    pub(crate) first: Linear,
    pub(crate) second: Linear,
    /// Used before and after the layers.
    pub(crate) tied: Param<Tensor<2>>,
}

/// How many parameters it has.
pub(crate) const PARAMS: usize = 5;

impl Small {
    pub(crate) fn new(device: &Device) -> Self {
        numbered(Self {
            first: LinearConfig::new(4, 6).init(device),
            second: LinearConfig::new(6, 4).init(device),
            tied: Param::from_tensor(Tensor::zeros([4, 4], device)),
        })
    }

    pub(crate) fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let x = x.matmul(self.tied.val());
        let x = self.second.forward(activation::gelu(self.first.forward(x)));
        x.matmul(self.tied.val().transpose())
    }

    pub(crate) fn loss(&self, step: usize) -> Tensor<1> {
        let x = numbers([3, 4], step, &self.tied.device());
        self.forward(x).square().mean()
    }

    /// The bits as whoever uses the model sees them.
    pub(crate) fn values(&self) -> Vec<Vec<u32>> {
        let bias = |layer: &Linear| bits_of(layer.bias.as_ref().unwrap().val());
        vec![
            bits_of(self.first.weight.val()),
            bias(&self.first),
            bits_of(self.second.weight.val()),
            bias(&self.second),
            bits_of(self.tied.val()),
        ]
    }
}

pub(crate) fn small() -> Small {
    Small::new(&flex())
}

pub(crate) fn bits_of<const D: usize>(tensor: Tensor<D>) -> Vec<u32> {
    tensor.into_data().iter::<f32>().map(f32::to_bits).collect()
}

/// Gives each parameter numbers of its own.
pub(crate) fn numbered<M: Module>(model: M) -> M {
    numbered_from(model, 1000)
}

pub(crate) fn numbered_from<M: Module>(model: M, from: usize) -> M {
    struct Numbered(usize);
    impl ModuleMapper for Numbered {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            self.0 += 1;
            let requires_grad = param.is_require_grad();
            param.map(|value| {
                let device = value.device();
                let number = numbers(value.dims(), self.0, &device).mul_scalar(0.6);
                number.detach().set_require_grad(requires_grad)
            })
        }
    }
    model.map(&mut Numbered(from))
}

/// Plain Burn's model and optimizer.
pub(crate) type Plain = (Small, ModuleOptimizer);

/// A model and an optimizer after one step, on batch 0.
pub(crate) fn started() -> (Small, ReleaseOptimizer) {
    let (model, optim) = plain(&[0]);
    (model, optim.with_gradient_release())
}

pub(crate) fn grads_of(model: &Small, step: usize) -> GradientsParams {
    GradientsParams::from_grads(model.loss(step).backward(), model)
}

/// Plain Burn's model and optimizer after these batches.
pub(crate) fn plain(batches: &[usize]) -> Plain {
    train_plain((small(), adamw()), batches)
}

pub(crate) fn train_plain((mut model, mut optim): Plain, batches: &[usize]) -> Plain {
    for step in batches {
        model = plain_step(model, &mut optim, |model| model.loss(*step));
    }
    (model, optim)
}

/// Trains on with release and with plain Burn from there; both are to stay the same.
pub(crate) fn assert_goes_on(mut model: Small, optim: &mut ReleaseOptimizer, mut plain: Plain) {
    assert_eq!(model.values(), plain.0.values(), "before going on");
    for step in 50..53 {
        model = release_step(model, optim, |model| model.loss(step));
        plain = train_plain(plain, &[step]);
        assert_eq!(bits(&model), bits(&plain.0), "after step {step}");
    }
}

/// The text of the panic, or what came out without one.
pub(crate) fn panic_of<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|payload| {
        payload
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| payload.downcast_ref::<&str>().map(ToString::to_string))
            .unwrap_or_default()
    })
}

/// Fails unless it panics, with this in the text.
pub(crate) fn assert_panics<T>(run: impl FnOnce() -> T, expected: &str) {
    let text = panic_of(run).map(|_| ()).expect_err(expected);
    assert!(text.contains(expected), "another panic: {text}");
}

/// The name of the error's variant.
pub(crate) fn kind(error: &ReleaseError) -> String {
    let text = format!("{error:?}");
    let name = text.split(|letter: char| !letter.is_alphanumeric()).next();
    name.unwrap_or_default().into()
}

/// Computes from what it finds.
pub(crate) struct Halve;

impl ModuleMapper for Halve {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|weight| weight.inner().mul_scalar(0.5).autodiff().require_grad())
    }
}

/// Fails unless the error is of this kind, and says this.
macro_rules! assert_error {
    ($error:expr, $($kind:ident)|+ $(, $text:literal)?) => {{
        let error = &$error;
        let is_expected = matches!(error, $(burn_lean::ReleaseError::$kind { .. })|+);
        assert!(is_expected, "{error}");
        $(assert!(error.to_string().contains($text), "{error}");)?
    }};
}
pub(crate) use assert_error;

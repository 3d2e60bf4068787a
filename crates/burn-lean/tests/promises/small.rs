//! A small model with tied weights, whose numbers come from no generator: tests run side by side.

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::module::{Module, ModuleMapper, Param};
use burn::nn::{Linear, LinearConfig};
use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::tensor::{Device, Tensor, activation};

use crate::harness::{Bits, LR, adamw, bits, flex, numbers, plain_step};

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

    /// The bits as whoever uses the model sees them. A visitor would see placeholders while it is
    /// armed.
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

pub(crate) fn grads_of(model: &Small, step: usize) -> GradientsParams {
    GradientsParams::from_grads(model.loss(step).backward(), model)
}

/// Plain Burn's model and optimizer after these batches.
pub(crate) fn plain(batches: &[usize]) -> (Small, ModuleOptimizer) {
    plain_from(small(), adamw(), batches)
}

pub(crate) fn plain_from(
    mut model: Small,
    mut optim: ModuleOptimizer,
    batches: &[usize],
) -> (Small, ModuleOptimizer) {
    for step in batches {
        model = plain_step(model, &mut optim, |model| model.loss(*step));
    }
    (model, optim)
}

pub(crate) fn plain_bits(batches: &[usize]) -> Bits {
    bits(&plain(batches).0)
}

pub(crate) fn plain_values(batches: &[usize]) -> Vec<Vec<u32>> {
    plain(batches).0.values()
}

/// Trains on with release and with plain Burn from there; both are to stay the same.
pub(crate) fn assert_goes_on(
    mut model: Small,
    optim: &mut burn_lean::ReleaseOptimizer,
    mut plain: (Small, ModuleOptimizer),
) {
    // A copy of an armed model may still be of one, and visitors would see its placeholders.
    assert_eq!(model.values(), plain.0.values(), "before going on");
    for step in 50..53 {
        model = optim.arm(LR, model);
        let grads = grads_of(&model, step);
        model = optim.step(LR, model, grads);
        plain = plain_from(plain.0, plain.1, &[step]);
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

/// The weights of someone who has asked for them; `None` if that was refused in words.
pub(crate) fn read_or_refused(model: &Small) -> Option<Vec<Vec<u32>>> {
    match panic_of(|| model.values()) {
        Ok(values) => Some(values),
        Err(text) => {
            assert!(
                text.starts_with("gradient release: "),
                "another panic: {text}"
            );
            None
        }
    }
}

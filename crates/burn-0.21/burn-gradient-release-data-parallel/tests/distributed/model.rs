//! A model, its batches, and what one process makes of them.

use burn::{
    backend::Autodiff,
    module::{Module, Param, ParamId},
    optim::{AdamConfig, GradientsParams, Optimizer},
    tensor::{
        Tensor, TensorData, activation,
        backend::{AutodiffBackend, Backend},
        ops::Device,
    },
};
use burn_gradient_release::checkpoint;

use crate::backend::{Several, places};

pub(crate) const RATE: f64 = 1e-2;
pub(crate) const STEPS: usize = 4;

#[derive(Module, Debug)]
pub(crate) struct Model<B: Backend> {
    pub(crate) first: Param<Tensor<B, 2>>,
    pub(crate) bias: Param<Tensor<B, 1>>,
    pub(crate) second: Param<Tensor<B, 2>>,
}

/// Numbers whose sum depends on the order in which they are added up.
fn noise(seed: usize, shape: &[usize]) -> TensorData {
    let count: usize = shape.iter().product();
    let number = |index: usize| ((index * 7919 + seed * 104_729 + 31) % 1009) as f32 / 504.5 - 1.0;
    let numbers: Vec<_> = (0..count).map(|index| number(index).powi(3)).collect();
    TensorData::new(numbers, shape)
}

impl<B: Backend> Model<B> {
    pub(crate) fn new(device: &Device<B>) -> Self {
        let id = ParamId::from;
        let matrix =
            |seed, shape: [usize; 2]| Tensor::from_data(noise(seed, &shape), device).require_grad();
        let bias = Tensor::from_data(noise(2, &[8]), device).require_grad();
        Self {
            first: Param::initialized(id(11), matrix(1, [6, 8])),
            bias: Param::initialized(id(12), bias),
            second: Param::initialized(id(13), matrix(3, [8, 3])),
        }
    }

    /// The loss of the share of a replica.
    pub(crate) fn loss(&self, replica: usize, step: usize, scopes: bool) -> Tensor<B, 1> {
        let device = self.bias.device();
        let share = noise(100 + 10 * step + replica, &[5 + replica, 6]);
        let share = Tensor::<B, 2>::from_data(share, &device);
        let scope = |forward: &dyn Fn() -> Tensor<B, 2>| match scopes {
            true => checkpoint(forward),
            false => forward(),
        };
        let hidden = scope(&|| {
            let hidden = share.clone().matmul(self.first.val());
            activation::gelu(hidden + self.bias.val().unsqueeze())
        });
        let output = scope(&|| hidden.clone().matmul(self.second.val()));
        let again = scope(&|| output.clone().matmul(self.second.val().transpose()));
        again.powi_scalar(2).mean()
    }

    /// The bits of all weights.
    pub(crate) fn bits(&self) -> Vec<u32> {
        let tensors = [
            self.first.val().into_data(),
            self.bias.val().into_data(),
            self.second.val().into_data(),
        ];
        let bits = tensors.iter().flat_map(|data| data.as_slice::<f32>());
        bits.flatten().map(|number| number.to_bits()).collect()
    }
}

/// The weights after each step of one process, with plain Burn: the gradients of the replicas are
/// added up in their order, and divided by their number.
pub(crate) fn one_process(replicas: usize) -> Vec<Vec<u32>> {
    type B = Autodiff<Several>;
    let mut model = Model::<B>::new(&places(1)[0]);
    let mut optim = AdamConfig::new().init::<B, Model<B>>();
    let mut weights = Vec::new();
    for step in 0..STEPS {
        let grads: Vec<_> = (0..replicas)
            .map(|replica| {
                let loss = model.loss(replica, step, false);
                GradientsParams::from_grads(loss.backward(), &model)
            })
            .collect();
        let mut means = GradientsParams::new();
        means.register(model.first.id, mean::<B, 2>(&grads, model.first.id));
        means.register(model.bias.id, mean::<B, 1>(&grads, model.bias.id));
        means.register(model.second.id, mean::<B, 2>(&grads, model.second.id));
        model = optim.step(RATE, model, means);
        weights.push(model.bits());
    }
    weights
}

fn mean<B: AutodiffBackend, const D: usize>(
    grads: &[GradientsParams],
    param: ParamId,
) -> Tensor<B::InnerBackend, D> {
    let grads = grads
        .iter()
        .map(|grads| grads.get::<B::InnerBackend, D>(param).unwrap());
    let count = grads.len();
    grads.reduce(|sum, grad| sum + grad).unwrap() / count as f32
}

//! One process that trains on the shares of all replicas, with plain Burn.

use burn::tensor::activation::tanh;

use crate::harness::prelude::*;

/// The batch of a replica.
pub(crate) fn share(step: u64, rank: usize, size: usize) -> u64 {
    step * size as u64 + rank as u64
}

/// The mean of the replicas' gradients, each of which is the sum over this many batches.
pub(crate) fn mean_grads<S: Scenario>(
    model: &S::Model<P>,
    of: Size,
    size: usize,
    step: u64,
    batches: u64,
) -> GradientsParams {
    let of_rank = |rank| {
        let mut accumulator = GradientsAccumulator::new();
        for batch in 0..batches {
            let seed = share(step * batches + batch, rank, size);
            let loss = S::loss::<P>(model, of, seed);
            accumulator.accumulate(model, gradients(model, loss));
        }
        accumulator.grads()
    };
    let mut mean = Mean {
        sum: of_rank(0),
        other: GradientsParams::new(),
        divisor: None,
    };
    for rank in 1..size {
        mean.other = of_rank(rank);
        AutodiffModule::<P>::valid(model).visit(&mut mean);
    }
    mean.divisor = Some(size as f32);
    AutodiffModule::<P>::valid(model).visit(&mut mean);
    mean.sum
}

/// Adds the others' gradients to the sum, or divides it.
struct Mean {
    sum: GradientsParams,
    other: GradientsParams,
    divisor: Option<f32>,
}

impl ModuleVisitor<Flex> for Mean {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<Flex, D>>) {
        let Some(sum) = self.sum.remove::<Flex, D>(param.id) else {
            return;
        };
        let sum = match self.divisor {
            Some(divisor) => sum / divisor,
            None => {
                sum + self
                    .other
                    .remove::<Flex, D>(param.id)
                    .expect("equal models")
            }
        };
        self.sum.register::<Flex, D>(param.id, sum);
    }
}

/// A model with a frozen layer, an unused one, and one that is used twice.
#[derive(Module, Debug)]
pub(crate) struct PartsModel<B: Backend> {
    first: Linear<B>,
    frozen: Linear<B>,
    spare: Linear<B>,
    twice: Linear<B>,
}

pub(crate) struct Parts;

impl Scenario for Parts {
    type Model<B: AutodiffBackend> = PartsModel<B>;

    fn init<B: AutodiffBackend>(_: Size, device: &B::Device) -> PartsModel<B> {
        let linear = || LinearConfig::new(6, 6).init(device);
        PartsModel {
            first: linear(),
            frozen: linear().no_grad(),
            spare: linear(),
            twice: linear(),
        }
    }

    fn loss<B: AutodiffBackend>(model: &PartsModel<B>, _: Size, step: u64) -> Tensor<B, 1> {
        let device = B::Device::default();
        let x = noise::<B, 2>(step, [4, 6], &device);
        let x = tanh(model.twice.forward(tanh(model.first.forward(x))));
        let x = model.twice.forward(tanh(model.frozen.forward(x)));
        (x - noise::<B, 2>(step + 1000, [4, 6], &device))
            .square()
            .mean()
    }
}

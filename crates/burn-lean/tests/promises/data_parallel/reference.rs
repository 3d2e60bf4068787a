//! One process that trains on the shares of all replicas, with plain Burn.

use burn_lean::{DataParallel, Replicas};

use crate::harness::prelude::*;

/// One layer is frozen, one is not used, one weight is used twice.
#[derive(Module, Debug)]
pub(crate) struct Net {
    layers: Vec<Linear>,
    frozen: Linear,
    spare: Linear,
    tied: Param<Tensor<2>>,
    head: Linear,
}

impl Net {
    pub(crate) fn new() -> Self {
        let device = flex();
        let linear = |inputs, outputs| LinearConfig::new(inputs, outputs).init(&device);
        numbered(Self {
            layers: vec![linear(6, 6), linear(6, 6)],
            frozen: linear(6, 6).no_grad(),
            spare: linear(6, 2),
            tied: Param::from_tensor(Tensor::zeros([6, 6], &device)),
            head: linear(6, 3),
        })
    }

    /// With scopes that backward computes again, or without: the same numbers.
    pub(crate) fn loss(&self, batch: usize, has_scopes: bool) -> Tensor<1> {
        let x = numbers([4, 6], batch, &flex()).matmul(self.tied.val());
        let run = |layer: &Linear, x: Tensor<2>| x.clone() + gelu(layer.forward(x));
        let x = self.layers.iter().fold(x, |x, layer| match has_scopes {
            true => checkpoint(layer, x, run),
            false => run(layer, x),
        });
        let x = self.frozen.forward(x).matmul(self.tied.val().transpose());
        self.head.forward(x).square().mean()
    }

    pub(crate) fn grads(&self, batch: usize, has_scopes: bool) -> GradientsParams {
        GradientsParams::from_grads(self.loss(batch, has_scopes).backward(), self)
    }
}

/// Replicas that keep all states each, or a share.
pub(crate) fn parallel(replicas: Replicas, is_sharded: bool) -> DataParallel {
    match is_sharded {
        true => DataParallel::new(replicas).with_sharded_optimizer(),
        false => DataParallel::new(replicas),
    }
}

/// The batch of a replica.
pub(crate) fn share(batch: usize, rank: usize, size: usize) -> usize {
    batch * size + rank
}

/// The mean of the replicas' gradients, added up in the order of their ranks.
pub(crate) fn mean<M: Module>(model: &M, of_ranks: Vec<GradientsParams>) -> GradientsParams {
    struct Mean(Vec<GradientsParams>);
    impl ModuleVisitor for Mean {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let size = self.0.len() as f32;
            let grads = self.0.iter_mut();
            let grads = grads.filter_map(|grads| grads.remove::<D>(param.id));
            if let Some(sum) = grads.reduce(|sum, grad| sum + grad) {
                self.0[0].register(param.id, sum / size);
            }
        }
    }
    let mut mean = Mean(of_ranks);
    model.visit(&mut mean);
    mean.0.swap_remove(0)
}

/// The mean of the replicas' gradients, each of which is the sum over this many micro-batches.
pub(crate) fn mean_grads(model: &Net, size: usize, step: usize, micro: usize) -> GradientsParams {
    let of_rank = |rank| {
        let mut sum = GradientsAccumulator::new();
        for batch in 0..micro {
            let batch = share(step * micro + batch, rank, size);
            sum.accumulate(model, model.grads(batch, false));
        }
        sum.grads()
    };
    mean(model, (0..size).map(of_rank).collect())
}

/// Trains in one process; the bits after each step.
pub(crate) fn one_process(
    optim: &mut ModuleOptimizer,
    size: usize,
    steps: usize,
    micro: usize,
) -> (Net, Vec<Bits>) {
    let mut model = Net::new();
    let mut run = Vec::new();
    for step in 0..steps {
        let grads = mean_grads(&model, size, step, micro);
        model = optim.step(LR, model, grads);
        run.push(bits(&model));
    }
    (model, run)
}

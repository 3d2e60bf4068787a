//! Random masks: drawn once, kept as bits.

use burn::backend::Flex;
use burn::module::Module;
use burn::nn::{Dropout, DropoutConfig, Linear, LinearConfig};
use burn::optim::{GradientsParams, Optimizer, SgdConfig};
use burn::tensor::Tensor;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn_gradient_release::{Recompute, WithGradientRelease, checkpoint};

use crate::ALLOCATIONS;
use crate::harness::memory::alone;
use crate::harness::run::RATE;
use crate::harness::weights::{load, save};
use crate::harness::{Plain, Release, Weights, noise};

type P = Plain<Flex>;
type R = Release<Flex>;

#[derive(Module, Debug)]
struct Dropping<B: Backend> {
    layers: Vec<Linear<B>>,
    dropout: Dropout,
}

impl<B: AutodiffBackend> Dropping<B> {
    const WIDTH: usize = 100;
    const ROWS: usize = 1_000;

    fn new() -> Self {
        let device = Default::default();
        let layer = || LinearConfig::new(Self::WIDTH, Self::WIDTH).init(&device);
        Self {
            layers: (0..4).map(|_| layer()).collect(),
            dropout: DropoutConfig::new(0.3).init(),
        }
    }

    fn loss(&self, step: u64) -> Tensor<B, 1> {
        let device = Default::default();
        B::seed(&device, step);
        let mut x = noise::<B, 2>(step, [Self::ROWS, Self::WIDTH], &device);
        for layer in &self.layers {
            x = checkpoint(|| self.dropout.forward(layer.forward(x).tanh()));
        }
        x.square().mean()
    }
}

/// Dropout draws its masks once, and they are kept as bits. Alone: the random numbers of a backend
/// are the process's.
#[test]
fn dropout_has_the_same_mask() {
    alone("recompute::dropout::dropout_has_the_same_mask", || {
        let device = Default::default();
        let bytes = save::<P, _>(Dropping::<P>::new());
        for recompute in [Recompute::None, Recompute::Automatic] {
            let mut plain = load::<P, _>(Dropping::new(), &bytes, &device);
            let mut model = load::<R, _>(Dropping::new(), &bytes, &device);
            let mut plain_optim = SgdConfig::new().init();
            let optim = SgdConfig::new().init::<R, Dropping<R>>();
            let mut optim = optim.with_gradient_release().with_recompute(recompute);
            for step in 0..4 {
                let grads = plain.loss(step).backward();
                let grads = GradientsParams::from_grads(grads, &plain);
                plain = plain_optim.step(RATE, plain, grads);

                model = optim.arm(RATE, model);
                let before = ALLOCATIONS.current_usage();
                let loss = model.loss(step);
                let kept = ALLOCATIONS.current_usage() - before;
                // The inputs of three scopes, four masks of an eighth of a byte for each element,
                // and what crosses into the loss.
                let unit = Dropping::<R>::ROWS * Dropping::<R>::WIDTH * size_of::<f32>();
                let bound = 5 * unit + 4 * unit / 31 + 64 * 1024;
                if recompute == Recompute::None {
                    assert!(kept <= bound, "{kept} bytes of {bound}");
                }
                let grads = GradientsParams::from_grads(loss.backward(), &model);
                assert!(grads.is_empty());
                model = optim.step(RATE, model, grads);
                let given = Weights::of::<R, _>(&model);
                let expected = Weights::of::<P, _>(&plain);
                given.assert_near(&expected, 0.0, format!("{recompute:?}, after step {step}"));
            }
        }
    });
}

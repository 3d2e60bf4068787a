//! Random masks: drawn once, kept as bits.

use burn::nn::{Dropout, DropoutConfig};

use super::{recipe, recomputing};
use crate::harness::prelude::*;

const WIDTH: usize = 100;
const ROWS: usize = 300;

#[derive(Module, Debug)]
struct Dropping<B: Backend> {
    layers: Vec<Linear<B>>,
    dropout: Dropout,
}

impl<B: AutodiffBackend> Dropping<B> {
    fn new() -> Self {
        let device = Default::default();
        let layer = |_| LinearConfig::new(WIDTH, WIDTH).init(&device);
        Self {
            layers: (0..4).map(layer).collect(),
            dropout: DropoutConfig::new(0.3).init(),
        }
    }

    fn loss(&self, step: u64) -> Tensor<B, 1> {
        let device = Default::default();
        B::seed(&device, step);
        let mut x = noise::<B, 2>(step, [ROWS, WIDTH], &device);
        for layer in &self.layers {
            x = checkpoint(|| self.dropout.forward(layer.forward(x).tanh()));
        }
        x.square().mean()
    }
}

/// Alone: the random numbers of a backend are the process's.
#[test]
fn dropout_has_the_same_mask() {
    const STEPS: u64 = 4;

    alone(|| {
        let device = Default::default();
        let start = save::<P, _>(Dropping::<P>::new());
        let plain = load::<P, _>(Dropping::new(), &start, &device);
        let expected = run::ordinary(plain, &mut recipe().init(), STEPS, &Dropping::loss).steps;
        for recompute in [Recompute::None, Recompute::Automatic] {
            let mut model = load::<R, _>(Dropping::new(), &start, &device);
            let mut optim = recomputing(recompute);
            for (step, expected) in expected.iter().enumerate() {
                model = optim.arm(RATE, model);
                let before = ALLOCATIONS.current_usage();
                let loss = model.loss(step as u64);
                let kept = ALLOCATIONS.current_usage() - before;
                // The inputs of three scopes, four masks of an eighth of a byte for each element,
                // and what crosses into the loss.
                let unit = ROWS * WIDTH * size_of::<f32>();
                let bound = 5 * unit + 4 * unit / 31 + 64 * 1024;
                if recompute == Recompute::None {
                    assert!(kept <= bound, "{kept} bytes of {bound}");
                }
                let grads = gradients(&model, loss);
                assert!(grads.is_empty());
                model = optim.step(RATE, model, grads);
                let context = format!("{recompute:?}, after step {step}");
                Weights::of(&model).assert_same(expected, context);
            }
        }
    });
}

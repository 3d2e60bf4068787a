//! Running statistics and dropout in scopes.

use super::*;

#[derive(Module, Debug)]
struct Noisy {
    up: Linear,
    norm: BatchNorm,
    dropout: Dropout,
    down: Linear,
}

impl Noisy {
    fn new(device: &Device) -> Self {
        Self {
            up: LinearConfig::new(6, 12).init(device),
            norm: BatchNormConfig::new(12).init(device),
            dropout: DropoutConfig::new(0.4).init(),
            down: LinearConfig::new(12, 6).init(device),
        }
    }

    fn forward(&self, x: Tensor<2>, dropout: bool) -> Tensor<2> {
        let hidden: Tensor<3> = self
            .norm
            .forward(self.up.forward(x.clone()).unsqueeze_dim(2));
        let mut hidden = gelu(hidden.squeeze_dim(2));
        if dropout {
            hidden = self.dropout.forward(hidden);
        }
        x + self.down.forward(hidden)
    }
}

#[test]
fn running_statistics_change_once() {
    let make = |device: &Device| vec![Noisy::new(device), Noisy::new(device)];
    assert_same_recomputed(&flex(), make, |blocks, step, again| {
        let run = |x, block| forward(block, x, again, |block: &Noisy, x| block.forward(x, false));
        let x = numbers([7, 6], step, &flex());
        blocks.iter().fold(x, run).square().mean()
    });
}

/// A scope's gradients are those of the masks that its result was made with: by finite differences,
/// which know nothing of how the gradients were computed.
#[test]
fn masks_of_dropout_are_the_same_both_times() {
    alone(|| [false, true].into_iter().for_each(finite_differences));
}

fn finite_differences(is_nested: bool) {
    let device = flex();
    let block = seeded(&device, Noisy::new);
    let x: Tensor<2> = numbers([7, 6], 0, &device);
    let out = |x: Tensor<2>| {
        // The same seed gives the same masks.
        device.seed(11);
        checkpoint(&block, x, move |block: &Noisy, x| {
            let dropped = |block: &Noisy, x| block.dropout.forward(block.up.forward(x).tanh());
            let hidden = forward(block, x, is_nested, dropped);
            let hidden = block.dropout.forward(hidden);
            // Another scope has other masks, or this would be as large as before.
            let drop = |block: &Noisy, x| block.dropout.forward(x);
            let hidden = forward(block, hidden, is_nested, drop);
            block.down.forward(hidden).tanh()
        })
        .sum()
    };
    let leaf = x.clone().require_grad();
    let grads = out(leaf.clone()).backward();
    let grad = leaf.grad(&grads).unwrap().into_data();
    let grad: Vec<f32> = grad.try_into_vec().unwrap();
    let h = 1e-2;
    for (i, grad) in grad.iter().enumerate().step_by(5) {
        let mut data: Vec<f32> = x.to_data().try_into_vec().unwrap();
        let mut at = |by: f32| {
            data[i] += by;
            let x = TensorData::new(data.clone(), [7, 6]);
            out(Tensor::from_data(x, &device)).into_scalar::<f32>()
        };
        let (above, below) = (at(h), at(-2.0 * h));
        let difference = (above - below) / (2.0 * h);
        // The third derivative makes most of the difference: h^2 = 1e-4. Other masks make 0.1 and
        // more.
        assert!(
            (difference - grad).abs() < 5e-3,
            "element {i}: {difference} and {grad}, nested: {is_nested}"
        );
    }
}

/// Another step keeps what this one recomputes, and a second pass may keep what the first one measured.
#[test]
fn masks_do_not_depend_on_what_a_budget_keeps() {
    alone(|| {
        let device = flex();
        let blocks = seeded(&device, |device| [(); 2].map(|()| Noisy::new(device)));
        let budget = Budget::new(u64::MAX, || 0);
        let loss = || {
            device.seed(5);
            let mut pass = budget.pass();
            let x = numbers([7, 6], 1, &device);
            let run =
                |x, block| pass.checkpoint(block, x, |block: &Noisy, x| block.forward(x, true));
            let loss = blocks.iter().fold(x, run).square().mean();
            loss.clone().backward();
            loss.into_scalar::<f32>()
        };
        let recomputed = loss();
        assert_eq!(loss(), recomputed);
        assert_eq!(budget.planned().unwrap().recomputed, 0);
    });
}

#[test]
fn masks_do_not_depend_on_release() {
    alone(|| {
        let device = flex();
        let make = || seeded(&device, Noisy::new);
        both_ways(&BOTH[..1], 6, make, |block, step| {
            device.seed(step as u64);
            let x = numbers([7, 6], step, &device);
            let x = checkpoint(block, x, |block: &Noisy, x| block.forward(x, true));
            // Random numbers after a scope, and after backward.
            let random = x.random_like(Distribution::Default);
            (x * random).square().mean()
        });
    });
}

//! A loss over tokens, of which each replica has another number.

use std::sync::Arc;

use burn::tensor::activation::log_softmax;
use burn_lean::{DataParallel, Threads};

use crate::harness::prelude::*;

const PAD: i64 = 2;
const TOKENS: usize = 12;
const STEPS: usize = 3;

fn head() -> Linear {
    numbered(LinearConfig::new(4, 5).init(&flex()))
}

/// Tokens of a whole batch. In three parts, the second is padding alone.
fn batch(step: usize) -> (Tensor<2>, Tensor<1, Int>) {
    let targets = Tensor::from_ints([0, 1, 2, 4, 2, 2, 2, 2, 3, 0, 3, 1], &flex());
    (numbers([TOKENS, 4], step, &flex()), targets)
}

fn counted(targets: Tensor<1, Int>) -> Tensor<1> {
    targets.not_equal_scalar(PAD).int().sum().float()
}

/// The sum over the tokens that are no padding.
fn sum_of_losses(head: &Linear, hidden: Tensor<2>, targets: Tensor<1, Int>) -> Tensor<1> {
    let scores = log_softmax(head.forward(hidden), 1);
    let classes = targets.clone().unsqueeze_dim(1);
    let of_targets = scores.gather(1, classes).squeeze_dim::<1>(1);
    let padding = targets.equal_scalar(PAD);
    of_targets.mask_fill(padding, 0.0).sum().neg()
}

/// Each replica divides its sum by the tokens of all replicas, over the number of replicas, as the
/// gradients' mean is taken over these. That is the mean over all tokens in one process.
#[test]
fn replicas_with_other_numbers_of_tokens() {
    let config = CrossEntropyLossConfig::new().with_pad_tokens(Some(vec![PAD as usize]));
    let mut model = head();
    let mut optim = SgdConfig::new().init();
    for step in 0..STEPS {
        let (hidden, targets) = batch(step);
        let loss = |head: &Linear| {
            let loss = config.init(&flex());
            loss.forward(head.forward(hidden.clone()), targets.clone())
        };
        model = plain_step(model, &mut optim, loss);
    }
    let expected = model.weight.val();
    for size in [2, 3] {
        Threads::run(size, |replicas| {
            let parallel = DataParallel::new(replicas.clone());
            let mut model = parallel.broadcast(head()).unwrap();
            let optim = SgdConfig::new().init().with_gradient_release();
            let mut optim = optim.with_reduction(Arc::new(parallel));
            let share = replicas.share(TOKENS);
            for step in 0..STEPS {
                let (hidden, targets) = batch(step);
                let counted = counted(targets.clone()) / size as f64;
                let parts = (hidden.slice(share.clone()), targets.slice(share.clone()));
                let loss = |head: &Linear| {
                    let (hidden, targets) = parts.clone();
                    sum_of_losses(head, hidden, targets) / counted.clone()
                };
                model = release_step(model, &mut optim, loss);
            }
            // Sums of twelve numbers of about 1, in another order.
            let found = (model.weight.val() - expected.clone()).abs().max();
            let found = found.into_scalar::<f32>();
            assert!(found < 1e-6, "{size} replicas: off by {found:e}");
        });
    }
}

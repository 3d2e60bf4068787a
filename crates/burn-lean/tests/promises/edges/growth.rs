//! Nothing grows over many steps.

use std::ops::Range;

use burn_lean::EarlyGradients;

use crate::harness::prelude::*;
use crate::heap::HEAP;

fn train(mut model: Small, optim: &mut ReleaseOptimizer, steps: Range<usize>) -> Small {
    for step in steps {
        let x = numbers::<2>([3, 4], step, &flex());
        let x = x.matmul(model.tied.val().transpose());
        let loss = checkpoint(&model, x, Small::forward).square().mean();
        match step % 4 {
            0 => optim.accumulate(loss, &model),
            1 => drop(optim.measure(loss, &model)),
            2 => {
                let refused = optim.try_backward(f64::NAN, loss, model).unwrap_err();
                let (given, loss) = refused.into_given();
                model = optim.backward(LR, loss.unwrap(), given);
            }
            _ => model = optim.backward(LR, loss, model),
        }
    }
    model
}

/// Bytes on the heap, over windows, norms, refusals, scopes and early gradients.
#[test]
fn nothing_grows_over_steps() {
    alone(|| {
        let mut optim = adamw().with_gradient_release();
        let model = train(
            small().apply_reparameterization(EarlyGradients),
            &mut optim,
            0..100,
        );
        let early = HEAP.current_usage();
        let model = train(model, &mut optim, 100..2000);
        assert_eq!(HEAP.current_usage(), early);
        drop(model);
    });
}

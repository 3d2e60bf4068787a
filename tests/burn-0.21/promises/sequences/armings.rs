//! Sequences of several armings. (Those of accumulators are in
//! [`accumulator`](crate::accumulator).)

use super::{Call, OTHER, Optim, Run};
use crate::harness::prelude::*;

/// Forward passes before and after a second arming, run backward together: one gradient, at the
/// second rate.
#[test]
fn one_backward_over_two_armings() {
    fn both<B: AutodiffBackend>(first: Tensor<B, 1>, second: Tensor<B, 1>) -> Tensor<B, 1> {
        first + second * 0.5
    }

    let start = Start::new::<Recurrent>(Size::Small);
    let mut plain = start.model::<Recurrent, P>();
    let mut plain_optim = AdamConfig::new().init();
    let mut run = Run::<Recurrent>::new(&start);
    for step in 0..3 {
        let loss = |step| Recurrent::loss::<P>(&plain, Size::Small, step);
        let loss = both(loss(step), loss(step + 10));
        plain = ordinary_step(OTHER, plain, &mut plain_optim, loss);

        run.model = run.optim.arm(RATE, run.model);
        let first = run.loss(step as usize);
        run.model = run.optim.arm(OTHER, run.model);
        let grads = gradients(&run.model, both(first, run.loss(step as usize + 10)));
        run.model = run.optim.step(OTHER, run.model, grads);
        let report = run.optim.last_step().expect("a step");
        assert_all_released(&report, trainable::<R, _>(&run.model));
        run.weights().assert_same(&Weights::of(&plain), step);
    }
}

/// An armed forward pass that is disarmed, armed again by another optimizer, and run backward.
#[test]
fn another_optimizer_takes_over_between_forward_and_backward() {
    let start = Start::new::<Views>(Size::Small);
    let mut run = Run::<Views>::new(&start);
    run.model = run.optim.arm(RATE, run.model);
    let loss = run.loss(0);
    run.model = run.optim.disarm(run.model);
    let mut another: Optim<Views> = AdamConfig::new().init().with_gradient_release();
    run.model = another.arm(OTHER, run.model);
    let grads = gradients(&run.model, loss);
    assert!(grads.is_empty());
    run.model = another.step(OTHER, run.model, grads);

    let plain = start.model::<Views, P>();
    let loss = Views::loss::<P>(&plain, Size::Small, 0);
    let plain = ordinary_step(OTHER, plain, &mut AdamConfig::new().init(), loss);
    run.weights()
        .assert_same(&Weights::of(&plain), "taken over");
}

/// The backward pass after it frees a forward pass that was thrown away, whatever was called in
/// between.
#[test]
fn forward_passes_thrown_away_do_not_pile_up() {
    alone(|| {
        /// Burn's hash tables grow; 180 forward passes are some hundred times that.
        const TABLES: usize = 16 * 1024;

        for call in [Call::Arm, Call::Disarm] {
            let mut run = Run::<Mlp>::new(&Start::new::<Mlp>(Size::Small));
            let mut before = 0;
            for step in 0..200 {
                run.model = run.optim.arm(RATE, run.model);
                drop(run.loss(step));
                run = run.call(call).0;
                let grads = gradients(&run.model, run.loss(step));
                run.model = run.optim.step(OTHER, run.model, grads);
                if step == 20 {
                    before = ALLOCATIONS.current_usage();
                }
            }
            let growth = ALLOCATIONS.current_usage().saturating_sub(before);
            assert!(growth < TABLES, "{call:?}: {growth} bytes");
        }
    });
}

/// Dropping an optimizer asks nothing of the device, which may have failed, and frees no graph that
/// somebody may still run backward.
#[test]
fn dropping_an_armed_optimizer_only_marks() {
    alone(|| {
        let start = Start::new::<Mlp>(Size::Small);
        let mut run = Run::<Mlp>::new(&start);
        run.model = run.optim.arm(RATE, run.model);
        let loss = run.loss(0);
        ALLOCATIONS.reset_peak_usage();
        let before = ALLOCATIONS.current_usage();
        drop(run.optim);
        assert_eq!(ALLOCATIONS.peak_usage(), before, "something was allocated");
        let grads = gradients(&run.model, loss);
        assert_eq!(grads.len(), trainable::<R, _>(&run.model));
    });
}

//! Sequences of several armings, of optimizers and of accumulators.

use burn::backend::Flex;
use burn::module::Module;
use burn::optim::{AdamConfig, GradientsParams, Optimizer};
use burn::tensor::Tensor;
use burn::tensor::backend::AutodiffBackend;
use burn_gradient_release::{ReleaseAccumulator, ReleaseError, WithGradientRelease};

use super::{OTHER, Optim, P, R, Run};
use crate::ALLOCATIONS;
use crate::harness::models::{Mlp, Recurrent, Scenario, Size, Views};
use crate::harness::run::{RATE, Start, assert_all_released, trainable};
use crate::harness::{Weights, memory};

/// Forward passes before and after a second arming, run backward together: one gradient, at the
/// second rate.
#[test]
fn one_backward_over_two_armings() {
    fn both<B: AutodiffBackend>(first: Tensor<B, 1>, second: Tensor<B, 1>) -> B::Gradients {
        (first + second * 0.5).backward()
    }

    let start = Start::new::<Recurrent>(Size::Small);
    let mut plain = start.model::<Recurrent, P>();
    let mut plain_optim = AdamConfig::new().init();
    let mut run = Run::<Recurrent>::new(&start);
    for step in 0..3 {
        let loss = |model: &_, step| Recurrent::loss::<P>(model, Size::Small, step);
        let grads = both(loss(&plain, step), loss(&plain, step + 10));
        let grads = GradientsParams::from_grads(grads, &plain);
        plain = plain_optim.step(OTHER, plain, grads);

        run.model = run.optim.arm(RATE, run.model);
        let first = run.loss(step as usize);
        run.model = run.optim.arm(OTHER, run.model);
        let second = run.loss(step as usize + 10);
        let grads = GradientsParams::from_grads(both(first, second), &run.model);
        run.model = run.optim.step(OTHER, run.model, grads);
        let report = run.optim.last_step().expect("a step");
        assert_all_released(&report, trainable::<R, _>(&run.model));
        run.weights()
            .assert_same(&Weights::of::<P, _>(&plain), step);
    }
}

/// The two run backward one after the other: the second gradient is refused, not lost.
#[test]
fn two_backwards_over_two_armings() {
    let start = Start::new::<Recurrent>(Size::Small);
    let mut run = Run::<Recurrent>::new(&start);
    run.model = run.optim.arm(RATE, run.model);
    let first = run.loss(0);
    run.model = run.optim.arm(OTHER, run.model);
    let second = run.loss(1);
    drop(GradientsParams::from_grads(first.backward(), &run.model));
    let grads = GradientsParams::from_grads(second.backward(), &run.model);
    assert!(!grads.is_empty());
    let refused = run.optim.try_step(OTHER, run.model, grads);
    let refused = refused.expect_err("a second gradient");
    assert!(matches!(
        refused.error(),
        ReleaseError::AlreadyStepped { .. }
    ));
    let (_, grads) = refused.into_given();
    assert!(!grads.is_empty(), "handed back");
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
    let grads = GradientsParams::from_grads(loss.backward(), &run.model);
    assert!(grads.is_empty());
    run.model = another.step(OTHER, run.model, grads);

    let mut plain = start.model::<Views, P>();
    let grads = Views::loss::<P>(&plain, Size::Small, 0).backward();
    let grads = GradientsParams::from_grads(grads, &plain);
    plain = AdamConfig::new().init().step(OTHER, plain, grads);
    run.weights()
        .assert_same(&Weights::of::<P, _>(&plain), "taken over");
}

/// Gradients of earlier micro-batches stay with the model when the rate is replaced.
#[test]
fn arming_again_keeps_the_gradients_it_was_armed_with() {
    let start = Start::new::<Mlp>(Size::Small);
    let mut run = Run::<Mlp>::new(&start);
    let earlier =
        |run: &Run<Mlp>, step| GradientsParams::from_grads(run.loss(step).backward(), &run.model);
    let (first, second) = (earlier(&run, 0), earlier(&run, 1));
    run.model = run.optim.arm_accumulated(RATE, run.model, first);
    run.model = run.optim.arm(OTHER, run.model);
    run.model = run.optim.arm_accumulated(OTHER, run.model, second);
    let grads = GradientsParams::from_grads(run.loss(2).backward(), &run.model);
    run.model = run.optim.step(OTHER, run.model, grads);

    let mut plain = start.model::<Mlp, P>();
    let mut accumulator = burn::optim::GradientsAccumulator::new();
    for step in 0..3 {
        let grads = Mlp::loss::<P>(&plain, Size::Small, step).backward();
        accumulator.accumulate(&plain, GradientsParams::from_grads(grads, &plain));
    }
    plain = AdamConfig::new()
        .init()
        .step(OTHER, plain, accumulator.grads());
    run.weights()
        .assert_same(&Weights::of::<P, _>(&plain), "three micro-batches");
}

/// An accumulator's own moments: its sums survive each call.
#[test]
fn an_accumulator_keeps_its_sums() {
    let start = Start::new::<Mlp>(Size::Small);
    let mut plain = start.model::<Mlp, P>();
    let mut sums = burn::optim::GradientsAccumulator::new();
    for step in 0..3 {
        let grads = Mlp::loss::<P>(&plain, Size::Small, step).backward();
        sums.accumulate(&plain, GradientsParams::from_grads(grads, &plain));
    }
    plain = AdamConfig::new().init().step(RATE, plain, sums.grads());

    let mut run = Run::<Mlp>::new(&start);
    let mut accumulator = ReleaseAccumulator::new();
    // Armed twice, with a forward pass before the second.
    run.model = accumulator.arm(run.model);
    let loss = run.loss(0);
    run.model = accumulator.arm(run.model);
    let grads = GradientsParams::from_grads(loss.backward(), &run.model);
    assert!(grads.is_empty());
    accumulator.accumulate(&run.model, grads);
    // Ended between forward and backward: an ordinary gradient, added as one.
    run.model = accumulator.arm(run.model);
    let loss = run.loss(1);
    accumulator.accumulate(&run.model, GradientsParams::new());
    let grads = GradientsParams::from_grads(loss.backward(), &run.model);
    assert!(!grads.is_empty());
    accumulator.accumulate(&run.model, grads);
    // A fork that leaves everything out is refused, and the sums stay.
    let refused = accumulator.try_arm_by_fork(run.model.clone(), || {});
    assert!(matches!(refused, Err(ReleaseError::NotForked { .. })));

    run.model = run
        .optim
        .arm_accumulated(RATE, run.model, accumulator.grads());
    let grads = GradientsParams::from_grads(run.loss(2).backward(), &run.model);
    run.model = run.optim.step(RATE, run.model, grads);
    run.weights()
        .assert_same(&Weights::of::<P, _>(&plain), "three micro-batches");
}

/// The sums of one model stay when another is armed.
#[test]
fn an_accumulator_armed_with_another_model_keeps_the_sums_of_the_first() {
    let start = Start::new::<Mlp>(Size::Small);
    let (one, other) = (
        start.model::<Mlp, R>(),
        Start::new::<Mlp>(Size::Small).model::<Mlp, R>(),
    );
    let of = |model: &_, step| {
        let grads = Mlp::loss::<R>(model, Size::Small, step).backward();
        GradientsParams::from_grads(grads, model)
    };
    let mut accumulator = ReleaseAccumulator::new();
    accumulator.accumulate(&one, of(&one, 0));
    let one = accumulator.arm(one);
    let other = reidentified(other);
    let other = accumulator.arm(other);
    let grads = of(&other, 1);
    accumulator.accumulate(&other, grads);
    let mut grads = accumulator.grads();
    let (mut found, parameters) = (0, trainable::<R, _>(&one));
    for id in burn::module::list_param_ids(&one) {
        found += usize::from(grads.remove::<Flex, 1>(id).is_some());
    }
    assert_eq!(found, parameters, "of the first model");
    assert_eq!(grads.len(), parameters, "of the other model");
}

/// Gives the weights new ids.
fn reidentified<M: Module<R>>(model: M) -> M {
    struct Anew;

    impl burn::module::ModuleMapper<R> for Anew {
        fn map_float<const D: usize>(
            &mut self,
            param: burn::module::Param<Tensor<R, D>>,
        ) -> burn::module::Param<Tensor<R, D>> {
            burn::module::Param::from_tensor(param.val())
        }
    }

    model.map(&mut Anew)
}

/// Dropping an optimizer asks nothing of the device, which may have failed, and frees no graph that
/// somebody may still run backward.
#[test]
fn dropping_an_armed_optimizer_only_marks() {
    memory::alone(
        "sequences::armings::dropping_an_armed_optimizer_only_marks",
        || {
            let start = Start::new::<Mlp>(Size::Small);
            let mut run = Run::<Mlp>::new(&start);
            run.model = run.optim.arm(RATE, run.model);
            let loss = run.loss(0);
            ALLOCATIONS.reset_peak_usage();
            let before = ALLOCATIONS.current_usage();
            drop(run.optim);
            assert_eq!(ALLOCATIONS.peak_usage(), before, "something was allocated");
            let grads = GradientsParams::from_grads(loss.backward(), &run.model);
            assert_eq!(grads.len(), trainable::<R, _>(&run.model));
        },
    );
}

//! The optimizers of `burn-gradient-release-optim` with gradient release: plain Burn's weights, and no memory
//! beside the largest gradient.

use burn_gradient_release_optim::{
    AccumulateInMoments, AdafactorConfig, EightBitMoments, InOnePass, Lean, MomentDecay,
    StableAdamWConfig,
};

use crate::harness::prelude::*;

const STEPS: u64 = 8;

/// Nodes of the tape, names, thread pools: everything that is no tensor of weight size.
const SLACK: usize = 192 * 1024;

/// Plain Burn with one optimizer, release with the other: the same weights after each step.
fn same<S: Scenario>(
    plain: impl SimpleOptimizer<Flex> + 'static,
    lean: impl SimpleOptimizer<Flex> + 'static,
    clipping: Option<GradientClippingConfig>,
    recompute: Recompute,
) {
    let start = Start::new::<S>(Size::Small);
    let mut plain: OptimizerAdaptor<_, S::Model<P>, P> = OptimizerAdaptor::from(plain);
    if let Some(clipping) = clipping {
        plain = plain.with_grad_clipping(clipping.init());
    }
    let lean: OptimizerAdaptor<_, S::Model<R>, R> = OptimizerAdaptor::from(lean);
    let mut lean = lean.with_gradient_release().with_recompute(recompute);
    let loss = |model: &_, step| S::loss::<P>(model, Size::Small, step);
    let expected = run::ordinary(start.model::<S, P>(), &mut plain, STEPS, &loss);
    let loss = |model: &_, step| S::loss::<R>(model, Size::Small, step);
    let (given, _) = run::armed(start.model::<S, R>(), &mut lean, STEPS, &loss);
    assert_same_steps(&given.steps, &expected.steps, "in one pass");
}

/// Burn's optimizers in one pass, one of which clips.
fn same_in_one_pass<S: Scenario>(recompute: Recompute) {
    let clipping = Some(GradientClippingConfig::Norm(0.01));
    let adamw = AdamWConfig::new().with_weight_decay(0.1);
    let clipped = adamw.clone().with_grad_clipping(clipping.clone());
    same::<S>(adamw.build(), clipped.in_one_pass(), clipping, recompute);
    let sgd = SgdConfig::new().with_momentum(Some(MomentumConfig::new()));
    same::<S>(sgd.build(), sgd.in_one_pass(), None, recompute);
}

#[test]
fn in_one_pass_weights_are_plain_burns() {
    same_in_one_pass::<Tied>(Recompute::None);
    same_in_one_pass::<Recurrent>(Recompute::None);
    same_in_one_pass::<Transformer>(Recompute::Automatic);
}

/// One that begins the sums, one beside all of them, and one that steps.
const MICRO_BATCHES: u64 = 3;

/// The peak of a step's micro-batches, the moments of an earlier step being there, and the weights
/// after it.
fn peak_of_micro_batches(
    start: &Start,
    mut run: impl FnMut(<Mlp as Scenario>::Model<R>, u64) -> <Mlp as Scenario>::Model<R>,
) -> (usize, Weights) {
    let floor = ALLOCATIONS.current_usage();
    let mut model = start.model::<Mlp, R>();
    for micro_batch in 0..MICRO_BATCHES {
        model = run(model, micro_batch);
    }
    ALLOCATIONS.reset_peak_usage();
    for micro_batch in MICRO_BATCHES..2 * MICRO_BATCHES {
        model = run(model, micro_batch);
    }
    let peak = ALLOCATIONS.peak_usage() - floor;
    (peak, Weights::of(&model))
}

#[test]
fn accumulation_in_the_moments_needs_no_sum_of_gradients() {
    alone(|| {
        let start = Start::new::<Mlp>(Size::Large);
        let loss = |model: &_, step| Mlp::loss::<R>(model, Size::Large, step);
        let (parameters, largest) = parameter_bytes::<P, _>(&start.model::<Mlp, P>());
        let adamw = || AdamWConfig::new().in_one_pass();
        let mut optim = adamw().init::<R, _>().with_gradient_release();
        let (alone, _) = peak_of_micro_batches(&start, |model, step| {
            armed_step(RATE, model, &mut optim, |model| loss(model, step))
        });
        let adama = adamw().accumulating(3, MomentDecay::EachStep).unwrap();
        let mut optim = adama.clone().init::<R, _>().with_gradient_release();
        let (in_moments, found) = peak_of_micro_batches(&start, |model, step| {
            armed_step(RATE, model, &mut optim, |model| loss(model, step))
        });
        let mut optim = adamw().init::<R, _>().with_gradient_release();
        let mut sums = ReleaseAccumulator::new();
        let (in_sums, _) = peak_of_micro_batches(&start, |model, step| {
            let is_last = (step + 1) % MICRO_BATCHES == 0;
            let model = match is_last {
                true => optim.arm_accumulated(RATE, model, sums.grads()),
                false => sums.arm(model),
            };
            let grads = gradients(&model, Mlp::loss::<R>(&model, Size::Large, step));
            if is_last {
                return optim.step(RATE, model, grads);
            }
            sums.accumulate(&model, grads);
            model
        });
        println!("alone {alone}, in the moments {in_moments}, in sums {in_sums}, G {parameters}");
        assert!(in_moments < alone + SLACK);
        assert!(in_sums > in_moments + parameters - SLACK);
        // But no second set of gradients.
        assert!(in_sums < in_moments + parameters + largest);

        let mut plain = adama.init::<P, _>();
        let mut model = start.model::<Mlp, P>();
        for micro_batch in 0..2 * MICRO_BATCHES {
            let loss = Mlp::loss::<P>(&model, Size::Large, micro_batch);
            model = ordinary_step(RATE, model, &mut plain, loss);
        }
        found.assert_same(&Weights::of(&model), "after two steps");
    });
}

/// Bytes of weights and states after two steps with gradient release.
fn kept(optimizer: impl SimpleOptimizer<Flex> + 'static) -> usize {
    let start = Start::new::<Mlp>(Size::Large);
    let floor = ALLOCATIONS.current_usage();
    let optim: OptimizerAdaptor<_, _, R> = OptimizerAdaptor::from(optimizer);
    let mut optim = optim.with_gradient_release();
    let mut model = start.model::<Mlp, R>();
    for step in 0..2 {
        let loss = |model: &_| Mlp::loss::<R>(model, Size::Large, step);
        model = armed_step(RATE, model, &mut optim, loss);
    }
    let kept = ALLOCATIONS.current_usage() - floor;
    drop(model);
    kept
}

/// Bytes that the last of three steps needs beyond weight, gradient and states.
fn temporaries(optimizer: impl SimpleOptimizer<Flex>) -> usize {
    const SHAPE: [usize; 2] = [512, 512];
    let mut weight: Tensor<Flex, 2> = noise(1, SHAPE, &Default::default());
    let mut state = None;
    let mut needed = 0;
    for step in 0..3 {
        let grad: Tensor<Flex, 2> = noise(2 + step, SHAPE, &Default::default());
        let before = ALLOCATIONS.current_usage();
        ALLOCATIONS.reset_peak_usage();
        (weight, state) = optimizer.step(RATE, weight, grad, state);
        needed = ALLOCATIONS.peak_usage() - before;
    }
    needed
}

#[test]
fn in_one_pass_a_step_needs_no_temporary() {
    alone(|| {
        let largest = 512 * 512 * size_of::<f32>();
        let adamw = AdamWConfig::new().with_grad_clipping(Some(GradientClippingConfig::Value(0.5)));
        let burn = temporaries(AdamWConfig::new().build());
        assert!(
            burn >= largest,
            "{burn}: Burn's AdamW has got a temporary less"
        );
        let needs_none = |name: &str, needed: usize| {
            // Descriptions of chunks, and for the mean a number for each block.
            assert!(needed < largest / 32, "{name}: {needed}");
        };
        needs_none("adamw, clipping", temporaries(adamw.in_one_pass()));
        needs_none("adam", temporaries(AdamConfig::new().in_one_pass()));
        needs_none(
            "stable adamw",
            temporaries(StableAdamWConfig::new().build()),
        );
    });
}

#[test]
fn small_states_are_small() {
    alone(|| {
        let model = Start::new::<Mlp>(Size::Large).model::<Mlp, P>();
        let (parameters, _) = parameter_bytes::<P, _>(&model);
        let eight_bit = AdamConfig::new().in_one_pass().with_8_bit_moments(&model);
        drop(model);
        let with_adam = kept(AdamConfig::new().in_one_pass());
        let kept_in_8_bits = kept(eight_bit);
        let kept_in_factors = kept(AdafactorConfig::new().build());
        println!(
            "parameters {parameters}; kept with Adam {with_adam}, 8 bits {kept_in_8_bits}, Adafactor {kept_in_factors}"
        );
        // Two moments of a byte and a 64th each, where Adam has two of four bytes.
        let states = |kept: usize| kept - parameters;
        assert!(states(kept_in_8_bits) < parameters * 52 / 100 + SLACK);
        assert!(states(with_adam) > 2 * parameters - SLACK);
        assert!(states(kept_in_factors) < parameters / 50 + SLACK);
    });
}

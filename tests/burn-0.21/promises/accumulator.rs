//! Gradients accumulated over micro-batches in a hand-written loop: Burn's sums. (Their memory: [`lean_optim`](crate::lean_optim).)

use burn::module::list_param_ids;

use crate::harness::prelude::*;

/// The weights after windows of `n` micro-batches in plain Burn.
fn plain<S: Scenario>(start: &Start, recipe: &impl Recipe, [n, windows]: [u64; 2]) -> Vec<Weights> {
    let mut model = start.model::<S, P>();
    let mut optim = recipe.make::<P, S::Model<P>>();
    let mut weights = Vec::new();
    for window in 0..windows {
        let mut accumulator = GradientsAccumulator::new();
        for micro_batch in 0..n {
            let grads = gradients(
                &model,
                S::loss::<P>(&model, start.size(), window * n + micro_batch),
            );
            accumulator.accumulate(&model, grads);
        }
        model = optim.step(RATE, model, accumulator.grads());
        weights.push(Weights::of(&model));
    }
    weights
}

/// The same with release: every gradient is added, or stepped with, inside backward.
fn release<S: Scenario>(
    start: &Start,
    recipe: &impl Recipe,
    [n, windows]: [u64; 2],
) -> Vec<Weights> {
    let mut model = start.model::<S, R>();
    let mut optim = recipe.make::<R, S::Model<R>>().with_gradient_release();
    let mut accumulator = ReleaseAccumulator::new();
    let mut weights = Vec::new();
    for window in 0..windows {
        for micro_batch in 1..=n {
            model = if micro_batch < n {
                accumulator.arm(model)
            } else {
                optim.arm_accumulated(RATE, model, accumulator.grads())
            };
            let grads = gradients(
                &model,
                S::loss::<R>(&model, start.size(), window * n + micro_batch - 1),
            );
            assert!(grads.is_empty(), "every gradient is added inside backward");
            if micro_batch < n {
                accumulator.accumulate(&model, grads);
            } else {
                model = optim.step(RATE, model, grads);
            }
        }
        let [_, _, ordinary, unused] = outcomes(&optim.last_step().expect("a step"));
        assert_eq!([ordinary, unused], [0, 0]);
        weights.push(Weights::of(&model));
    }
    weights
}

fn same<S: Scenario>(recipe: &impl Recipe) {
    let start = Start::new::<S>(Size::Small);
    for n in [1, 2, 4] {
        let expected = plain::<S>(&start, recipe, [n, 4]);
        let given = release::<S>(&start, recipe, [n, 4]);
        expected[3].assert_moved(&expected[0], "the reference");
        assert_same_steps(&given, &expected, format_args!("{n} micro-batches"));
    }
}

#[test]
fn sums_are_burns() {
    // Momentum is the sum of all gradients.
    let momentum = SgdConfig::new().with_momentum(Some(MomentumConfig::new()));
    same::<Mlp>(&momentum);
    same::<Cnn>(&momentum);
    same::<Transformer>(&momentum);
    same::<Recurrent>(&momentum);
    same::<Tied>(&momentum);
    same::<Views>(&momentum);
    same::<WeightNorm>(&momentum);
    // Optimizers know no model.
    let clipped = Some(GradientClippingConfig::Norm(0.01));
    same::<Mlp>(&AdamWConfig::new());
    same::<Tied>(&AdamConfig::new().with_grad_clipping(clipped));
}

/// A model in the hands of an accumulator and an optimizer.
struct Bench {
    start: Start,
    model: MlpModel<R>,
    accumulator: ReleaseAccumulator<MlpModel<R>, R>,
    optim: ReleaseOptimizer<Adam, MlpModel<R>, R>,
}

fn bench() -> Bench {
    let start = Start::new::<Mlp>(Size::Small);
    Bench {
        model: start.model::<Mlp, R>(),
        start,
        accumulator: ReleaseAccumulator::new(),
        optim: AdamConfig::new().init().with_gradient_release(),
    }
}

impl Bench {
    fn arm(&mut self) {
        self.model = self.accumulator.arm(self.model.clone());
    }

    fn loss(&self, micro_batch: u64) -> Tensor<R, 1> {
        Mlp::loss::<R>(&self.model, Size::Small, micro_batch)
    }

    fn gradients(&self, micro_batch: u64) -> GradientsParams {
        gradients(&self.model, self.loss(micro_batch))
    }

    fn accumulate(&mut self, grads: GradientsParams) {
        self.accumulator.accumulate(&self.model, grads);
    }

    /// Takes the step with the last of `n` micro-batches: the weights are plain Burn's.
    #[track_caller]
    fn finishes_as_burn(mut self, n: u64) {
        let sums = self.accumulator.grads();
        self.model = self.optim.arm_accumulated(RATE, self.model, sums);
        let grads = self.gradients(n - 1);
        let model = self.optim.step(RATE, self.model, grads);
        Weights::of(&model).assert_same(&window(&self.start, n), "the window");
    }
}

/// Plain Burn's weights after one window of Adam's.
fn window(start: &Start, n: u64) -> Weights {
    plain::<Mlp>(start, &AdamConfig::new(), [n, 1]).remove(0)
}

#[test]
fn the_sums_survive_every_call() {
    let mut bench = bench();
    // Armed twice, with a forward pass before the second.
    bench.arm();
    let loss = bench.loss(0);
    bench.arm();
    let grads = gradients(&bench.model, loss);
    assert!(grads.is_empty());
    bench.accumulate(grads);
    // Armed twice, with a forward pass that nobody comes back from.
    bench.arm();
    bench.arm();
    drop(bench.loss(7));
    bench.accumulate(GradientsParams::new());
    // Ended between forward and backward: an ordinary gradient, added as one.
    bench.arm();
    let loss = bench.loss(1);
    bench.accumulate(GradientsParams::new());
    let grads = gradients(&bench.model, loss);
    assert!(!grads.is_empty());
    bench.accumulate(grads);
    // A fork that leaves everything out.
    let copy = bench.model.clone();
    let refused = bench.accumulator.try_arm_by_fork(copy, || {});
    assert!(matches!(refused, Err(ReleaseError::NotForked { .. })));
    bench.finishes_as_burn(3);
}

/// Gradients of earlier micro-batches stay with the model when the optimizer arms it again.
#[test]
fn arming_again_keeps_the_gradients_it_was_armed_with() {
    let mut bench = bench();
    let (first, second) = (bench.gradients(0), bench.gradients(1));
    bench.model = bench.optim.arm_accumulated(RATE / 7.0, bench.model, first);
    bench.model = bench.optim.arm(RATE / 3.0, bench.model);
    bench.model = bench.optim.arm_accumulated(RATE, bench.model, second);
    let grads = bench.gradients(2);
    let model = bench.optim.step(RATE, bench.model, grads);
    Weights::of(&model).assert_same(&window(&bench.start, 3), "three micro-batches");
}

/// Burn steps a layer that is frozen after an earlier micro-batch, with the gradient that it has.
#[test]
fn a_layer_frozen_in_mid_window_is_stepped_with_its_sum() {
    fn frozen<B: AutodiffBackend>(mut model: MlpModel<B>) -> MlpModel<B> {
        model.layers[0] = model.layers[0].clone().no_grad();
        model
    }

    let mut bench = bench();
    let mut plain = bench.start.model::<Mlp, P>();
    let mut sums = GradientsAccumulator::new();
    for micro_batch in 0..2 {
        if micro_batch == 1 {
            plain = frozen(plain);
        }
        let grads = gradients(&plain, Mlp::loss::<P>(&plain, Size::Small, micro_batch));
        sums.accumulate(&plain, grads);
    }
    let plain = AdamConfig::new().init().step(RATE, plain, sums.grads());

    let first = bench.gradients(0);
    bench.model = bench
        .optim
        .arm_accumulated(RATE, frozen(bench.model), first);
    let grads = bench.gradients(1);
    let model = bench.optim.step(RATE, bench.model, grads);
    Weights::of(&model).assert_same(&Weights::of(&plain), "the window");
}

/// The weights do not change while gradients are summed, so two losses may be two backward passes:
/// unlike in the micro-batch that steps.
#[test]
fn a_micro_batch_may_run_backward_twice_and_leaves_the_weights() {
    let mut bench = bench();
    let before = Weights::of(&bench.model);
    bench.arm();
    let (first, second) = (bench.gradients(0), bench.gradients(1));
    assert!(first.is_empty() && !second.is_empty());
    Weights::of(&bench.model).assert_same(&before, "after backward");
    bench.accumulate(second);
    Weights::of(&bench.model).assert_same(&before, "after accumulating");
    let sums = bench.accumulator.grads();
    let model = bench.optim.step(RATE, bench.model, sums);
    Weights::of(&model).assert_same(&window(&bench.start, 2), "both");
}

/// The sums of one model stay when another is armed.
#[test]
fn an_accumulator_armed_with_another_model_keeps_the_sums_of_the_first() {
    /// Gives the weights new ids.
    struct Anew;

    impl ModuleMapper<R> for Anew {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<R, D>>) -> Param<Tensor<R, D>> {
            Param::from_tensor(param.val())
        }
    }

    let mut bench = bench();
    let grads = bench.gradients(0);
    bench.accumulate(grads);
    bench.arm();
    let other = bench.start.model::<Mlp, R>().map(&mut Anew);
    let first = std::mem::replace(&mut bench.model, other);
    bench.arm();
    let grads = bench.gradients(1);
    bench.accumulate(grads);
    let mut grads = bench.accumulator.grads();
    for id in list_param_ids(&first) {
        assert!(grads.remove::<Flex, 1>(id).is_some(), "of the first model");
    }
    assert_eq!(grads.len(), trainable::<R, _>(&bench.model), "of the other");
}

#[test]
fn misuse_is_refused_and_changes_nothing() {
    let mut bench = bench();
    bench.arm();
    let armed = bench.optim.try_arm(RATE, bench.model);
    (bench.model, _) = refused!(armed, ReleaseError::ArmedElsewhere { .. });

    let grads = bench.gradients(0);
    let armed = bench.accumulator.try_arm(bench.model);
    (bench.model, _) = refused!(armed,
        error @ ReleaseError::NotAccumulated { added: 6, armed: 6 }
            if error.to_string().contains("call `accumulate`"));
    panic_of(|| bench.accumulator.grads());

    // Not held by the model, as a gradient of each parameter is: the call alone has them.
    let second = bench.gradients(1);
    assert!(grads.is_empty() && !second.is_empty());
    let other = Mlp::init::<R>(Size::Small, &Default::default());
    let accumulated = bench.accumulator.try_accumulate(&other, second);
    let ((), second) = refused!(accumulated, ReleaseError::WrongModel { .. });
    bench.accumulate(second);
    bench.finishes_as_burn(3);
}

#[test]
fn gradients_thrown_away_are_refused() {
    let mut bench = bench();
    bench.arm();
    drop(bench.loss(0).backward());
    // Plain Burn would accumulate nothing.
    let none = GradientsParams::new();
    let accumulated = bench.accumulator.try_accumulate(&bench.model, none);
    let is_told = |text: &str| text.contains("from_grads") && text.contains("a new accumulator");
    refused!(accumulated, error @ ReleaseError::Unclaimed { .. } if is_told(&error.to_string()));
}

/// The sums of a backward that panicked have this micro-batch in part.
#[test]
fn a_panic_half_way_makes_the_sums_useless() {
    let mut layers = bench().model.layers;
    let mut optim = Hooked::failing_at(1)
        .make::<R, Linear<R>>()
        .with_gradient_release();
    let mut accumulator = ReleaseAccumulator::new();
    layers[0] = optim.arm(RATE, layers[0].clone());
    let last = accumulator.arm(layers.pop().expect("three layers"));
    layers.push(last.clone());
    let model = MlpModel { layers };

    // The optimizer fails at the first layer.
    panic_of(|| Mlp::loss::<R>(&model, Size::Small, 0).backward());
    let accumulated = accumulator.try_accumulate(&last, GradientsParams::new());
    refused!(accumulated, error @ ReleaseError::HalfAccumulated { added: 2, armed: 2 }
        if error.to_string().contains("begin the window anew"));
    assert!(accumulator.try_arm(last).is_err());
}

/// The sum of one parameter is of another shape; no weight has changed.
#[test]
fn a_new_accumulator_begins_the_window_anew() {
    let mut bench = bench();
    let mut sums = bench.gradients(0);
    let bias = bench.model.layers[1].bias.as_ref().expect("it has one").id;
    let wrong = Tensor::<Flex, 1>::ones([3], &Default::default());
    sums.register::<Flex, 1>(bias, wrong);
    bench.accumulate(sums);
    bench.arm();
    let loss = bench.loss(1);
    panic_of(|| loss.backward());
    let armed = bench.accumulator.try_arm(bench.model);
    (bench.model, _) = refused!(armed, ReleaseError::HalfAccumulated { .. });
    bench.accumulator = ReleaseAccumulator::new();
    for micro_batch in 0..2 {
        bench.arm();
        let grads = bench.gradients(micro_batch);
        bench.accumulate(grads);
    }
    bench.finishes_as_burn(3);
}

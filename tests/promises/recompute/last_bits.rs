//! Programs in which sums could add up in another order than plain Burn's, which shows in their
//! last bits.

use std::collections::HashSet;
use std::thread;

use burn::module::{AutodiffModule, Module, ModuleMapper, Param, ParamId};
use burn::nn::loss::CTCLossConfig;
use burn::nn::{Linear, LinearConfig, Lstm, LstmConfig};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{GradientsParams, Optimizer, SgdConfig};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::module::attention;
use burn::tensor::ops::AttentionModuleOptions;
use burn::tensor::{Int, Tensor, TensorData};
use burn_gradient_release::{Recompute, StepReport, WithGradientRelease};

use crate::harness::models::{
    NormalisedRecurrent, Recurrent, Scenario, Size, Tied, Transformer, UNet, Views,
};
use crate::harness::noise::reseed;
use crate::harness::run::{RATE, Start, ordinary_step};
use crate::harness::scopes;
use crate::harness::weights::{load, save};
use crate::harness::{Plain, Release, Weights, noise};

type P = Plain;
type R = Release;

fn recipe() -> SgdConfig {
    SgdConfig::new().with_momentum(Some(MomentumConfig::new()))
}

fn plain<M: AutodiffModule<P>>(
    mut model: M,
    steps: u64,
    mut change: impl FnMut(M, u64) -> M,
    loss: impl Fn(&M, u64) -> Tensor<P, 1>,
) -> Vec<Weights> {
    let mut optim = recipe().init();
    let steps = (0..steps).map(|step| {
        model = change(model.clone(), step);
        let loss = loss(&model, step);
        model = ordinary_step(RATE, model.clone(), &mut optim, loss);
        Weights::of::<P, _>(&model)
    });
    steps.collect()
}

/// `change` is called before the model is armed and after, and told which.
fn release<M: AutodiffModule<R>>(
    mut model: M,
    recompute: Recompute,
    steps: u64,
    mut change: impl FnMut(M, u64, bool) -> M,
    loss: impl Fn(&M, u64) -> Tensor<R, 1>,
) -> Vec<(Weights, StepReport)> {
    let optim = recipe().init::<R, M>().with_gradient_release();
    let mut optim = optim.with_recompute(recompute);
    let mut taken = Vec::new();
    for step in 0..steps {
        model = optim.arm(RATE, change(model, step, false));
        model = change(model, step, true);
        let grads = GradientsParams::from_grads(loss(&model, step).backward(), &model);
        model = optim.step(RATE, model, grads);
        let report = optim.last_step().expect("a step was taken").clone();
        taken.push((Weights::of::<R, _>(&model), report));
    }
    taken
}

/// The same weights after each step.
#[track_caller]
fn assert_same_steps(given: &[(Weights, StepReport)], expected: &[Weights], context: &str) {
    for (step, ((given, _), expected)) in given.iter().zip(expected).enumerate() {
        given.assert_same(expected, format!("{context}, step {step}"));
    }
}

#[derive(Module, Debug)]
struct Sequences<B: Backend> {
    lstm: Lstm<B>,
    head: Linear<B>,
}

impl<B: Backend> Sequences<B> {
    fn new() -> Self {
        let device = Default::default();
        Self {
            lstm: LstmConfig::new(4, 6, true).init(&device),
            head: LinearConfig::new(6, 3).init(&device),
        }
    }

    fn loss(&self, (batch, length): (usize, usize), step: u64) -> Tensor<B, 1> {
        let device = Default::default();
        let (states, _) = self
            .lstm
            .forward(noise(step, [batch, length, 4], &device), None);
        let target = noise::<B, 3>(step + 1000, [batch, length, 3], &device);
        (self.head.forward(states) - target).square().mean()
    }
}

/// Sequences of one length.
struct Sequence;

impl Scenario for Sequence {
    type Model<B: AutodiffBackend> = Sequences<B>;

    fn init<B: AutodiffBackend>(_: Size, _: &B::Device) -> Sequences<B> {
        Sequences::new()
    }

    fn loss<B: AutodiffBackend>(model: &Sequences<B>, _: Size, step: u64) -> Tensor<B, 1> {
        model.loss((2, 12), step)
    }
}

/// Freezes some of the parameters that are trained, and no others.
struct Freeze<'a> {
    phase: usize,
    trained: usize,
    frozen: &'a mut HashSet<ParamId>,
}

impl<B: Backend> ModuleMapper<B> for Freeze<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        // Running means are parameters, too, and not trained.
        if !param.is_require_grad() && !self.frozen.contains(&param.id) {
            return param;
        }
        let index = self.trained;
        self.trained += 1;
        let is_frozen = match self.phase {
            0 => false,
            1 => index < 4,
            2 => index >= 4,
            _ => index % self.phase == 1,
        };
        match is_frozen {
            true => self.frozen.insert(param.id),
            false => self.frozen.remove(&param.id),
        };
        param.set_require_grad(!is_frozen)
    }
}

/// Layers are frozen in mid-run, and go on later.
fn freezing<S: Scenario>() {
    const PHASES: [usize; 20] = [0, 0, 1, 1, 0, 2, 0, 3, 3, 4, 0, 2, 1, 3, 0, 1, 5, 4, 2, 0];

    fn freeze<B: Backend, M: Module<B>>() -> impl FnMut(M, u64) -> M {
        let mut frozen = HashSet::new();
        move |model, step| {
            model.map(&mut Freeze {
                phase: PHASES[step as usize],
                trained: 0,
                frozen: &mut frozen,
            })
        }
    }

    let size = Size::Small;
    let start = Start::new::<S>(size);
    let steps = PHASES.len() as u64;
    let expected = plain(start.model::<S, P>(), steps, freeze(), |model, step| {
        S::loss(model, size, step)
    });
    for recompute in [
        Recompute::None,
        Recompute::Automatic,
        Recompute::Budget(1 << 10),
        Recompute::Budget(1 << 12),
        Recompute::Budget(1 << 14),
        Recompute::Budget(u64::MAX),
    ] {
        for once_armed in [false, true] {
            let mut freeze = freeze();
            let freeze = |model, step, is_armed| match is_armed == once_armed {
                true => freeze(model, step),
                false => model,
            };
            let loss = |model: &_, step| S::loss(model, size, step);
            let given = release(start.model::<S, R>(), recompute, steps, freeze, loss);
            let context = format!("{recompute:?}, armed {once_armed}");
            assert_same_steps(&given, &expected, &context);
        }
    }
}

macro_rules! freezing {
    ($($name:ident: $model:ident;)*) => {
        mod layers_frozen_in_mid_run {
            $(#[test]
            fn $name() {
                super::freezing::<super::$model>();
            })*
        }
    };
}

freezing! {
    transformer: Transformer;
    tied: Tied;
    recurrent: Recurrent;
    normalised_recurrent: NormalisedRecurrent;
    views: Views;
    u_net: UNet;
    lstm: Sequence;
}

/// The batch and the length of each step.
fn shapes() -> Vec<(usize, usize)> {
    let shapes = (0..24).map(|step| (1 + step * 7 % 5, 2 + step * 5 % 11));
    shapes.collect()
}

/// Trains on sequences of all lengths. Returns the weights of plain Burn, too.
fn sequences(recompute: Recompute) -> (Vec<(Weights, StepReport)>, Vec<Weights>) {
    let shapes = shapes();
    let shape = |step: u64| shapes[step as usize];
    let steps = shapes.len() as u64;
    let device = Default::default();
    let bytes = save::<P, _>(reseed(Sequences::<P>::new(), 42));
    let model = load::<P, _>(Sequences::new(), &bytes, &device);
    let loss = |model: &Sequences<_>, step| model.loss(shape(step), step);
    let expected = plain(model, steps, |model, _| model, loss);
    let model = load::<R, _>(Sequences::new(), &bytes, &device);
    let loss = |model: &Sequences<_>, step| model.loss(shape(step), step);
    let given = release(model, recompute, steps, |model, _, _| model, loss);
    (given, expected)
}

/// More bytes than the largest pass saves.
const LARGEST: u64 = 1 << 17;

#[test]
fn an_lstm_on_batches_of_any_length() {
    for recompute in [
        Recompute::None,
        Recompute::Automatic,
        Recompute::Budget(1),
        Recompute::Budget(1 << 9),
        Recompute::Budget(1 << 10),
        Recompute::Budget(LARGEST),
        Recompute::Budget(u64::MAX),
    ] {
        let (given, expected) = sequences(recompute);
        assert_same_steps(&given, &expected, &format!("{recompute:?}"));
    }
}

/// Nothing is recomputed of a pass that is longer than those before, as long as it fits.
#[test]
fn a_longer_pass_within_the_budget_is_kept() {
    let (given, _) = sequences(Recompute::Budget(LARGEST));
    for (step, (_, report)) in given.iter().enumerate().skip(1) {
        assert_eq!(report.recomputed().segments, 0, "step {step}");
    }
}

/// What came before is kept, and the rest is cut: a weight is used there and again in segments.
fn outgrown(budget: u64) {
    let (given, expected) = sequences(Recompute::Budget(budget));
    assert_same_steps(&given, &expected, &format!("{budget} bytes"));
    let cut = |(_, report): &(_, StepReport)| report.recomputed().segments > 0;
    let kept = given.iter().skip(1).position(|step| !cut(step));
    let kept = kept.expect("all of some pass is kept");
    assert!(given.iter().skip(kept).any(cut), "{budget} are outgrown");
}

/// All at once: the end of a pass on one thread looks at what nobody holds on any.
#[test]
fn passes_that_outgrow_the_budget() {
    thread::scope(|scope| {
        for power in 12..16 {
            for budget in [1 << power, 3 << (power - 1)] {
                scope.spawn(move || outgrown(budget));
            }
        }
    });
}

/// The loss of a layer in a scope, whose result several nodes of one operation use.
fn several_nodes<const D: usize>(
    shape: [usize; D],
    losses: (
        impl Fn(&Linear<P>, Tensor<P, D>) -> Tensor<P, 1>,
        impl Fn(&Linear<R>, Tensor<R, D>) -> Tensor<R, 1>,
    ),
) {
    const STEPS: u64 = 5;

    fn input<B: Backend, const D: usize>(
        model: &Linear<B>,
        shape: [usize; D],
        step: u64,
    ) -> Tensor<B, D> {
        let x = noise(step, shape, &Default::default());
        scopes::block(|| model.forward(x).tanh())
    }

    let device = Default::default();
    let width = shape[D - 1];
    let layer = LinearConfig::new(width, width);
    let bytes = save::<P, _>(layer.init::<P>(&device));
    let model = load::<P, _>(layer.init(&device), &bytes, &device);
    let expected = plain(
        model,
        STEPS,
        |model, _| model,
        |model, step| (losses.0)(model, input(model, shape, step)),
    );
    for recompute in [Recompute::None, Recompute::Automatic] {
        let model = load::<R, _>(layer.init(&device), &bytes, &device);
        let loss = |model: &Linear<R>, step| (losses.1)(model, input(model, shape, step));
        let given = scopes::in_use(|| release(model, recompute, STEPS, |model, _, _| model, loss));
        assert_same_steps(&given, &expected, &format!("{recompute:?}"));
    }
}

#[test]
fn ctc_loss_takes_time_steps_in_several_nodes() {
    fn loss<B: Backend>(_: &Linear<B>, x: Tensor<B, 3>) -> Tensor<B, 1> {
        let device = x.device();
        let ids = |ids| Tensor::<B, 2, Int>::from_ints(ids, &device);
        let lengths = |lengths: [i32; 2]| Tensor::<B, 1, Int>::from_ints(lengths, &device);
        let loss = CTCLossConfig::new().init();
        let loss = loss.forward(x, ids([[1, 2], [3, 1]]), lengths([6, 6]), lengths([2, 2]));
        loss.sum()
    }

    several_nodes([6, 2, 5], (loss, loss));
}

#[test]
fn attention_takes_one_tensor_in_several_nodes() {
    fn loss<B: Backend>(model: &Linear<B>, x: Tensor<B, 4>) -> Tensor<B, 1> {
        let query = model.forward(x.clone());
        let options = AttentionModuleOptions::default();
        let y = attention(query, x.clone(), x.clone(), None, None, options);
        (y + x).square().mean()
    }

    several_nodes([2, 3, 4, 8], (loss, loss));
}

/// The loss of layers that also multiply by the first weight, cut off from its gradient; the
/// gradient of the copy is another one.
fn loss_beside_a_copy<B: Backend>(
    layers: &[Linear<B>],
    scale: f32,
    step: u64,
) -> (Tensor<B, 1>, Tensor<B, 2>) {
    let copy = layers[0].weight.val().detach();
    let mut x = noise::<B, 2>(step, [8, 4], &Default::default());
    for layer in layers {
        x = scopes::block(|| {
            let x = layer.forward(x).tanh();
            x.clone() + x.matmul(copy.clone()).exp().tanh()
        });
    }
    (x.square().mean() * scale, copy)
}

fn layers<B: Backend>() -> Vec<Linear<B>> {
    let layer = |_| LinearConfig::new(4, 4).init(&Default::default());
    (0..5).map(layer).collect()
}

fn gradient_of_copy<B: AutodiffBackend>(
    model: &[Linear<B>],
    scale: f32,
    step: u64,
) -> (TensorData, B::Gradients) {
    let (loss, copy) = loss_beside_a_copy(model, scale, step);
    let grads = loss.backward();
    let gradient = copy.grad(&grads).expect("a copy of a leaf is a leaf");
    (gradient.into_data(), grads)
}

/// Plain Burn's copy of a parameter requires a gradient, as the parameter does.
fn detached(scale: f32) {
    const STEPS: u64 = 5;

    let device = Default::default();
    let bytes = save::<P, _>(layers::<P>());
    let mut model = load::<P, _>(layers(), &bytes, &device);
    let mut optim = recipe().init::<P, Vec<Linear<P>>>();
    let mut expected = Vec::new();
    for step in 0..STEPS {
        let (gradient, grads) = gradient_of_copy(&model, scale, step);
        let grads = GradientsParams::from_grads(grads, &model);
        model = optim.step(RATE, model, grads);
        expected.push((Weights::of::<P, _>(&model), gradient));
    }
    for recompute in [
        Recompute::None,
        Recompute::Automatic,
        Recompute::Budget(1 << 9),
        Recompute::Budget(1 << 11),
        Recompute::Budget(u64::MAX),
    ] {
        let mut model = load::<R, _>(layers(), &bytes, &device);
        let optim = recipe().init::<R, Vec<Linear<R>>>().with_gradient_release();
        let mut optim = optim.with_recompute(recompute);
        for (step, (weights, expected)) in expected.iter().enumerate() {
            model = optim.arm(RATE, model);
            let (gradient, grads) = gradient_of_copy(&model, scale, step as u64);
            let context = format!("{recompute:?}, step {step}");
            assert_eq!(gradient.as_bytes(), expected.as_bytes(), "{context}");
            let grads = GradientsParams::from_grads(grads, &model);
            model = optim.step(RATE, model, grads);
            Weights::of::<R, _>(&model).assert_same(weights, context);
        }
    }
}

#[test]
fn the_gradient_of_a_detached_parameter() {
    detached(1.0);
}

#[test]
fn the_gradient_of_a_parameter_detached_outside_of_scopes() {
    scopes::in_use(|| detached(1.0));
}

#[test]
fn a_gradient_of_subnormals() {
    for scale in [1e-37, 1e-39, 1e-43] {
        detached(scale);
    }
}

//! Programs in which sums could add up in another order than plain Burn's, which shows in their
//! last bits.

use std::collections::HashSet;
use std::thread;

use burn::nn::loss::CTCLossConfig;
use burn::tensor::module::attention;
use burn::tensor::ops::AttentionModuleOptions;

use super::{recipe, recomputing};
use crate::harness::prelude::*;

/// Trains plain Burn's model and, for each of these ways of recomputing, the same with release: the
/// weights are the same after each step.
fn same<S: Scenario>(steps: u64, ways: &[Recompute]) {
    let start = Start::new::<S>(Size::Small);
    let expected = run::plain::<S, _, P>(&start, &recipe(), steps);
    for recompute in ways {
        let (given, _) = release::<S>(&start, *recompute, steps);
        assert_same_steps(&given.steps, &expected.steps, format!("{recompute:?}"));
    }
}

fn release<S: Scenario>(
    start: &Start,
    recompute: Recompute,
    steps: u64,
) -> (Trajectory, Vec<StepReport>) {
    let loss = |model: &S::Model<R>, step| S::loss::<R>(model, Size::Small, step);
    run::armed(
        start.model::<S, R>(),
        &mut recomputing(recompute),
        steps,
        &loss,
    )
}

/// Sequences in batches and lengths that change from step to step.
struct AnyLength;

impl Scenario for AnyLength {
    type Model<B: AutodiffBackend> = RecurrentModel<B>;

    fn init<B: AutodiffBackend>(size: Size, device: &B::Device) -> RecurrentModel<B> {
        Recurrent::init(size, device)
    }

    fn loss<B: AutodiffBackend>(model: &RecurrentModel<B>, _: Size, step: u64) -> Tensor<B, 1> {
        let number = step as usize;
        model.loss([1 + number * 7 % 5, 2 + number * 5 % 11], step)
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

/// Layers are frozen in mid-run, before the model is armed or after, and go on later.
fn freezing<S: Scenario>() {
    const PHASES: [usize; 10] = [0, 1, 1, 0, 2, 3, 3, 4, 1, 0];

    fn freeze<B: Backend, M: Module<B>>() -> impl FnMut(M, usize) -> M {
        let mut frozen = HashSet::new();
        move |model, step| {
            model.map(&mut Freeze {
                phase: PHASES[step],
                trained: 0,
                frozen: &mut frozen,
            })
        }
    }

    let start = Start::new::<S>(Size::Small);
    let mut model = start.model::<S, P>();
    let mut optim = recipe().init();
    let mut change = freeze::<P, _>();
    let mut expected = Vec::new();
    for step in 0..PHASES.len() {
        model = change(model, step);
        let loss = S::loss::<P>(&model, Size::Small, step as u64);
        model = ordinary_step(RATE, model, &mut optim, loss);
        expected.push(Weights::of(&model));
    }
    for (recompute, once_armed) in [
        (Recompute::None, true),
        (Recompute::Automatic, false),
        (Recompute::Automatic, true),
        (Recompute::Budget(1 << 12), false),
    ] {
        let mut model = start.model::<S, R>();
        let mut optim = recomputing(recompute);
        let mut change = freeze::<R, _>();
        for (step, expected) in expected.iter().enumerate() {
            if !once_armed {
                model = change(model, step);
            }
            model = optim.arm(RATE, model);
            if once_armed {
                model = change(model, step);
            }
            let grads = gradients(&model, S::loss::<R>(&model, Size::Small, step as u64));
            model = optim.step(RATE, model, grads);
            let context = format!("{recompute:?}, armed {once_armed}, step {step}");
            Weights::of(&model).assert_same(expected, context);
        }
    }
}

/// A test per line.
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
    normalised_recurrent: NormalisedRecurrent;
    views: Views;
    u_net: UNet;
    lstm: Recurrent;
}

/// Steps that see each length at least twice.
const LENGTHS: u64 = 24;

/// More bytes than the largest pass saves.
const LARGEST: u64 = 1 << 17;

#[test]
fn an_lstm_on_batches_of_any_length() {
    let ways = [
        Recompute::Automatic,
        Recompute::Budget(1 << 9),
        Recompute::Budget(LARGEST),
    ];
    same::<AnyLength>(LENGTHS, &ways);
}

/// Whether a step has recomputed anything.
fn is_cut(report: &StepReport) -> bool {
    report.recomputed().segments > 0
}

/// Nothing is recomputed of a pass that is longer than those before, as long as it fits.
#[test]
fn a_longer_pass_within_the_budget_is_kept() {
    let start = Start::new::<AnyLength>(Size::Small);
    let (_, reports) = release::<AnyLength>(&start, Recompute::Budget(LARGEST), LENGTHS);
    assert_eq!(reports.iter().skip(1).position(is_cut), None);
}

/// What came before is kept, and the rest is cut: a weight is used there and again in segments. All
/// at once: the end of a pass on one thread looks at what nobody holds on any.
#[test]
fn passes_that_outgrow_the_budget() {
    let start = &Start::new::<AnyLength>(Size::Small);
    let expected = run::plain::<AnyLength, _, P>(start, &recipe(), LENGTHS);
    let runs: Vec<_> = thread::scope(|scope| {
        let budgets = (12..16).flat_map(|power| [1 << power, 3 << (power - 1)]);
        let spawn = |budget| {
            let recompute = Recompute::Budget(budget);
            scope.spawn(move || (budget, release::<AnyLength>(start, recompute, LENGTHS)))
        };
        let threads: Vec<_> = budgets.map(spawn).collect();
        let runs = threads.into_iter().map(|thread| thread.join());
        runs.map(|run| run.expect("a run")).collect()
    });
    for (budget, (given, reports)) in runs {
        assert_same_steps(&given.steps, &expected.steps, format!("{budget} bytes"));
        let kept = reports.iter().skip(1).position(|report| !is_cut(report));
        let kept = kept.expect("all of some pass is kept");
        assert!(
            reports.iter().skip(kept).any(is_cut),
            "{budget} are outgrown"
        );
    }
}

/// Time steps of a layer in a scope, each of which is a node of the loss.
struct Ctc;

impl Scenario for Ctc {
    type Model<B: AutodiffBackend> = Linear<B>;

    fn init<B: AutodiffBackend>(_: Size, device: &B::Device) -> Linear<B> {
        LinearConfig::new(5, 5).init(device)
    }

    fn loss<B: AutodiffBackend>(model: &Linear<B>, _: Size, step: u64) -> Tensor<B, 1> {
        let device = Default::default();
        let x = noise::<B, 3>(step, [6, 2, 5], &device);
        let x = scopes::block(|| model.forward(x).tanh());
        let ids = Tensor::<B, 2, Int>::from_ints([[1, 2], [3, 1]], &device);
        let lengths = |lengths: [i32; 2]| Tensor::<B, 1, Int>::from_ints(lengths, &device);
        let loss = CTCLossConfig::new().init();
        loss.forward(x, ids, lengths([6, 6]), lengths([2, 2])).sum()
    }
}

/// One tensor that is key, value and more of a query.
struct Attention;

impl Scenario for Attention {
    type Model<B: AutodiffBackend> = Linear<B>;

    fn init<B: AutodiffBackend>(_: Size, device: &B::Device) -> Linear<B> {
        LinearConfig::new(8, 8).init(device)
    }

    fn loss<B: AutodiffBackend>(model: &Linear<B>, _: Size, step: u64) -> Tensor<B, 1> {
        let x = noise::<B, 4>(step, [2, 3, 4, 8], &Default::default());
        let x = scopes::block(|| model.forward(x).tanh());
        let query = model.forward(x.clone());
        let options = AttentionModuleOptions::default();
        let y = attention(query, x.clone(), x.clone(), None, None, options);
        (y + x).square().mean()
    }
}

#[test]
fn operations_that_use_the_result_of_a_scope_in_several_nodes() {
    scopes::in_use(|| {
        same::<Ctc>(5, &[Recompute::None, Recompute::Automatic]);
        same::<Attention>(5, &[Recompute::None, Recompute::Automatic]);
    });
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
        expected.push((Weights::of(&model), gradient));
    }
    for recompute in [
        Recompute::None,
        Recompute::Automatic,
        Recompute::Budget(1 << 9),
        Recompute::Budget(1 << 11),
        Recompute::Budget(u64::MAX),
    ] {
        let mut model = load::<R, _>(layers(), &bytes, &device);
        let mut optim = recomputing(recompute);
        for (step, (weights, expected)) in expected.iter().enumerate() {
            model = optim.arm(RATE, model);
            let (gradient, grads) = gradient_of_copy(&model, scale, step as u64);
            let context = format!("{recompute:?}, step {step}");
            assert_eq!(gradient.as_bytes(), expected.as_bytes(), "{context}");
            let grads = GradientsParams::from_grads(grads, &model);
            model = optim.step(RATE, model, grads);
            Weights::of(&model).assert_same(weights, context);
        }
    }
}

/// Also outside of scopes, and of subnormals.
#[test]
fn the_gradient_of_a_detached_parameter() {
    detached(1.0);
    scopes::in_use(|| detached(1.0));
    for scale in [1e-37, 1e-39, 1e-43] {
        detached(scale);
    }
}

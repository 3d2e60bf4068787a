//! Contributions to a gradient: from several places, from none, of odd shapes; when it is complete.

use burn::backend::autodiff::checkpoint::strategy::{BalancedCheckpointing, NoCheckpointing};
use burn::module::{Module, Param, list_param_ids};
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamConfig, AdamWConfig, GradientsParams, Optimizer};
use burn::tensor::activation::relu;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Int, Tensor};
use burn_gradient_release::{Outcome, ReleaseBackend, StepReport, WithGradientRelease};

use super::{Inner, P, R, bench, gradients, loss, start, weights};
use crate::harness::models::{Recurrent, Scenario, Size, Tied};
use crate::harness::run::{self, RATE, assert_all_released, assert_run_released, trainable};
use crate::harness::{Hooked, Plain, Recipe, Release, Weights, noise};

const STEPS: u64 = 5;

/// Trains `S` both ways, fails unless the weights are the same after each step, and returns the
/// reports.
#[track_caller]
fn same<S: Scenario>() -> Vec<StepReport> {
    same_on::<S, _, P, R>(&AdamWConfig::new().with_weight_decay(0.1))
}

#[track_caller]
fn same_on<S: Scenario, Rec: Recipe, A: AutodiffBackend, B: ReleaseBackend>(
    recipe: &Rec,
) -> Vec<StepReport> {
    let start = start::<S>();
    let plain = run::plain::<S, Rec, A>(&start, recipe, STEPS);
    let (release, reports) = run::release::<S, Rec, B>(&start, recipe, STEPS);
    for (step, (release, plain)) in release.steps.iter().zip(&plain.steps).enumerate() {
        release.assert_same(plain, format!("after step {step}"));
    }
    release.steps[0].assert_moved(&release.first, "release");
    reports
}

#[test]
fn tied_weights_step_once_after_the_last_contribution() {
    let (plain, release) = (Hooked::new(), Hooked::new());
    let start = start::<Tied>();
    let expected = run::plain::<Tied, _, P>(&start, &plain, 3);
    let (result, reports) = run::release::<Tied, _, R>(&start, &release, 3);
    for (result, expected) in result.steps.iter().zip(&expected.steps) {
        result.assert_same(expected, "tied");
    }
    let parameters = trainable::<R, _>(&start.model::<Tied, R>());
    assert_eq!(
        release.calls(),
        3 * parameters,
        "once per parameter and step"
    );
    assert_eq!(plain.calls(), release.calls());
    assert_run_released(&reports, parameters);
}

#[test]
fn weights_reused_over_time_step_once() {
    let recipe = Hooked::new();
    let start = start::<Recurrent>();
    let (_, reports) = run::release::<Recurrent, _, R>(&start, &recipe, 3);
    let parameters = trainable::<R, _>(&start.model::<Recurrent, R>());
    assert_eq!(recipe.calls(), 3 * parameters);
    assert_run_released(&reports, parameters);
}

/// `used` makes the loss; `spare` is never looked at; `detached` only without gradient.
#[derive(Module, Debug)]
struct WithSpare<B: Backend> {
    used: Linear<B>,
    spare: Linear<B>,
    detached: Param<Tensor<B, 2>>,
}

struct Spare;

impl Scenario for Spare {
    type Model<B: AutodiffBackend> = WithSpare<B>;

    fn init<B: AutodiffBackend>(_: Size, device: &B::Device) -> WithSpare<B> {
        WithSpare {
            used: LinearConfig::new(4, 4).init(device),
            spare: LinearConfig::new(4, 4).init(device),
            detached: Param::from_tensor(noise(3, [4, 4], device)),
        }
    }

    fn loss<B: AutodiffBackend>(model: &WithSpare<B>, _: Size, step: u64) -> Tensor<B, 1> {
        let x = noise::<B, 2>(step, [2, 4], &B::Device::default());
        let fixed = model.detached.val().detach();
        model.used.forward(x).matmul(fixed).square().mean()
    }
}

#[test]
fn unused_parameters_get_no_state_and_no_decay() {
    let start = start::<Spare>();
    let recipe = AdamWConfig::new().with_weight_decay(0.5);
    let expected = run::plain::<Spare, _, P>(&start, &recipe, 3);

    let mut model = start.model::<Spare, R>();
    let mut optim = recipe.make::<R, WithSpare<R>>().with_gradient_release();
    let untouched = Weights::of::<R, _>(&model.spare);
    for step in 0..3 {
        model = optim.arm(RATE, model);
        let grads =
            GradientsParams::from_grads(Spare::loss(&model, Size::Small, step).backward(), &model);
        model = optim.step(RATE, model, grads);
        Weights::of::<R, _>(&model).assert_same(&expected.steps[step as usize], "unused");
        let report = optim.last_step().expect("a step was taken");
        assert_eq!(report.count(Outcome::Released), 2);
        assert_eq!(report.count(Outcome::Unused), 3);
    }
    Weights::of::<R, _>(&model.spare).assert_same(&untouched, "spare");

    let record = optim.to_record();
    assert_eq!(record.len(), 2, "state for what was used only");
    for id in list_param_ids(&model.used) {
        assert!(record.contains_key(&id));
    }
    // Still a leaf that can be trained later.
    assert!(model.spare.weight.is_require_grad());
}

/// Uses that never reach the loss, beside one that does.
struct DeadUses;

impl Scenario for DeadUses {
    type Model<B: AutodiffBackend> = WithSpare<B>;

    fn init<B: AutodiffBackend>(size: Size, device: &B::Device) -> WithSpare<B> {
        Spare::init(size, device)
    }

    fn loss<B: AutodiffBackend>(model: &WithSpare<B>, _: Size, step: u64) -> Tensor<B, 1> {
        let x = noise::<B, 2>(step, [2, 4], &B::Device::default());
        // At three depths, so that no order saves the day: before, beside and above the live use.
        let before = model.used.forward(x.clone());
        let live = model.used.forward(x.clone().tanh());
        let _above = model
            .used
            .forward(live.clone())
            .matmul(model.detached.val());
        let _kept_dead = before.matmul(model.detached.val().transpose());
        live.square().mean()
    }
}

#[test]
fn uses_that_do_not_reach_the_loss_do_not_hold_a_parameter_back() {
    for report in same::<DeadUses>() {
        let stepped = report.count(Outcome::Released) + report.count(Outcome::ReleasedLate);
        assert_eq!(stepped, 2);
        assert_eq!(report.count(Outcome::Ordinary), 0);
        assert_eq!(report.count(Outcome::Unused), 3);
    }
}

#[test]
fn a_forward_that_is_thrown_away_changes_nothing() {
    let mut bench = bench(STEPS);
    for step in 0..STEPS {
        bench.model = bench.optim.arm(RATE, bench.model);
        drop(loss(&bench.model, step + 50));
        let real = loss(&bench.model, step);
        let discarded = loss(&bench.model, step + 60);
        drop(loss(&bench.model, step + 70));
        let grads = GradientsParams::from_grads(real.backward(), &bench.model);
        bench.model = bench.optim.step(RATE, bench.model, grads);
        drop(discarded);
        weights(&bench.model).assert_same(&bench.expected.steps[step as usize], step);
    }
}

#[test]
fn a_thrown_away_forward_of_the_previous_arming_does_not_count() {
    let mut bench = bench(STEPS);
    for step in 0..STEPS {
        bench.model = bench.optim.arm(RATE, bench.model);
        let stale = loss(&bench.model, step + 50);
        bench.model = bench.optim.arm(RATE, bench.model);
        let grads = gradients(&bench.model, step);
        bench.model = bench.optim.step(RATE, bench.model, grads);
        drop(stale);
        weights(&bench.model).assert_same(&bench.expected.steps[step as usize], step);
    }
}

/// The value of `w` without gradient is wanted in backward after `w` itself is complete.
#[derive(Module, Debug)]
struct LateReader<B: Backend> {
    w: Param<Tensor<B, 2>>,
    early: Param<Tensor<B, 2>>,
    gain: Param<Tensor<B, 1>>,
}

struct RecomputeReadsOld;

impl Scenario for RecomputeReadsOld {
    type Model<B: AutodiffBackend> = LateReader<B>;

    fn init<B: AutodiffBackend>(_: Size, device: &B::Device) -> LateReader<B> {
        LateReader {
            w: Param::from_tensor(noise(1, [4, 4], device)),
            early: Param::from_tensor(noise(2, [4, 4], device)),
            gain: Param::from_tensor(noise(3, [4], device)),
        }
    }

    fn loss<B: AutodiffBackend>(model: &LateReader<B>, _: Size, step: u64) -> Tensor<B, 1> {
        let x = noise::<B, 2>(step, [4, 4], &B::Device::default());
        let w = model.w.val();
        // Read again when `early` gets its gradient, long after `w` was stepped.
        let old = w.clone().detach().tanh().exp();
        let first = x.matmul(model.early.val()) * old;
        let second = (first * model.gain.val().unsqueeze()).tanh().exp();
        let third = second.clone().matmul(second.exp().tanh());
        (third * relu(w)).square().mean()
    }
}

#[test]
fn recompute_sees_the_old_value() {
    type A = Plain<Inner, BalancedCheckpointing>;
    type B = Release<Inner, BalancedCheckpointing>;
    for report in same_on::<RecomputeReadsOld, _, A, B>(&AdamConfig::new()) {
        assert_all_released(&report, 3);
    }
    // And without recomputing the same model agrees with itself.
    let start = start::<RecomputeReadsOld>();
    let (kept, _) = run::release::<RecomputeReadsOld, _, Release<Inner, NoCheckpointing>>(
        &start,
        &AdamConfig::new(),
        STEPS,
    );
    let (recomputed, _) =
        run::release::<RecomputeReadsOld, _, B>(&start, &AdamConfig::new(), STEPS);
    for (kept, recomputed) in kept.steps.iter().zip(&recomputed.steps) {
        recomputed.assert_same(kept, "recomputed against kept");
    }
}

/// One parameter per view, each seen through that view only.
#[derive(Module, Debug)]
struct ThroughViews<B: Backend> {
    parameters: Vec<Param<Tensor<B, 2>>>,
}

const VIEWS: usize = 10;

struct EveryView;

impl Scenario for EveryView {
    type Model<B: AutodiffBackend> = ThroughViews<B>;

    fn init<B: AutodiffBackend>(_: Size, device: &B::Device) -> ThroughViews<B> {
        let parameters = (0..VIEWS as u64)
            .map(|seed| Param::from_tensor(noise(seed, [4, 4], device)))
            .collect();
        ThroughViews { parameters }
    }

    fn loss<B: AutodiffBackend>(model: &ThroughViews<B>, _: Size, step: u64) -> Tensor<B, 1> {
        let device = B::Device::default();
        let rows = Tensor::<B, 1, Int>::from_data([3, 1, 1, 0], &device);
        let gathered = Tensor::<B, 2, Int>::from_data(
            [[0, 1, 1, 3], [2, 2, 0, 1], [3, 0, 1, 2], [1, 1, 1, 1]],
            &device,
        );
        let w = |place: usize| model.parameters[place].val();
        let views: [Tensor<B, 2>; VIEWS] = [
            w(0).transpose(),
            w(1).reshape([2, 8]).reshape([4, 4]),
            w(2).slice([1..3, 0..4]).repeat_dim(0, 2),
            w(3).unsqueeze::<3>().squeeze_dim(0),
            w(4).flip([0, 1]),
            w(5).permute([1, 0]),
            w(6).select(0, rows),
            w(7).gather(1, gathered),
            w(8).narrow(1, 0, 1).expand([4, 4]),
            Tensor::cat(w(9).chunk(2, 0).into_iter().rev().collect(), 0),
        ];
        let mut x = noise::<B, 2>(step, [4, 4], &device);
        for view in views {
            x = x.matmul(view).tanh();
        }
        x.square().mean()
    }
}

#[test]
fn a_parameter_used_through_views_only() {
    assert_run_released(&same::<EveryView>(), VIEWS);
}

/// Gradients that arrive transposed, or as one number expanded to a matrix.
struct OddLayouts;

impl Scenario for OddLayouts {
    type Model<B: AutodiffBackend> = LateReader<B>;

    fn init<B: AutodiffBackend>(size: Size, device: &B::Device) -> LateReader<B> {
        RecomputeReadsOld::init(size, device)
    }

    fn loss<B: AutodiffBackend>(model: &LateReader<B>, _: Size, step: u64) -> Tensor<B, 1> {
        let x = noise::<B, 2>(step, [4, 4], &B::Device::default());
        let expanded = model.early.val().sum();
        let transposed = (model.w.val().transpose() * x).sum();
        let broadcast = model.gain.val().mean();
        expanded + transposed + broadcast
    }
}

#[test]
fn non_contiguous_and_expanded_gradients() {
    for report in same::<OddLayouts>() {
        assert_all_released(&report, 3);
    }
}

/// One number, and none at all.
#[derive(Module, Debug)]
struct SmallestModel<B: Backend> {
    scale: Param<Tensor<B, 1>>,
    empty: Param<Tensor<B, 2>>,
    rest: Param<Tensor<B, 2>>,
}

struct Smallest;

impl Scenario for Smallest {
    type Model<B: AutodiffBackend> = SmallestModel<B>;

    fn init<B: AutodiffBackend>(_: Size, device: &B::Device) -> SmallestModel<B> {
        SmallestModel {
            scale: Param::from_tensor(Tensor::from_floats([0.5], device)),
            empty: Param::from_tensor(Tensor::zeros([0, 4], device)),
            rest: Param::from_tensor(noise(1, [3, 4], device)),
        }
    }

    fn loss<B: AutodiffBackend>(model: &SmallestModel<B>, _: Size, step: u64) -> Tensor<B, 1> {
        let x = noise::<B, 2>(step, [2, 3], &B::Device::default());
        let rows = Tensor::cat(vec![model.empty.val() * 2.0, model.rest.val()], 0);
        (x.matmul(rows).sum() * model.scale.val()).square()
    }
}

#[test]
fn one_element_and_empty_parameters() {
    for report in same::<Smallest>() {
        let stepped = report.count(Outcome::Released) + report.count(Outcome::ReleasedLate);
        assert_eq!(report.outcomes().count(), 3);
        assert!(
            stepped >= 2,
            "the parameters with elements were stepped in backward"
        );
    }
}

/// The loss itself is the parameter: no op in between.
#[derive(Module, Debug)]
struct BareModel<B: Backend> {
    value: Param<Tensor<B, 1>>,
}

struct Bare;

impl Scenario for Bare {
    type Model<B: AutodiffBackend> = BareModel<B>;

    fn init<B: AutodiffBackend>(_: Size, device: &B::Device) -> BareModel<B> {
        BareModel {
            value: Param::from_tensor(Tensor::from_floats([0.5], device)),
        }
    }

    fn loss<B: AutodiffBackend>(model: &BareModel<B>, _: Size, _: u64) -> Tensor<B, 1> {
        model.value.val()
    }
}

/// Nothing consumes the parameter, so there may be nothing to release from: an ordinary step is
/// as good, a lost gradient is not.
#[test]
fn a_parameter_that_is_its_own_loss() {
    let start = start::<Bare>();
    let expected = run::plain::<Bare, _, P>(&start, &AdamConfig::new(), 3);
    let mut model = start.model::<Bare, R>();
    let mut optim = AdamConfig::new()
        .init::<R, BareModel<R>>()
        .with_gradient_release();
    for step in 0..3 {
        model = optim.arm(RATE, model);
        let grads =
            GradientsParams::from_grads(Bare::loss(&model, Size::Small, step).backward(), &model);
        model = optim.step(RATE, model, grads);
        Weights::of::<R, _>(&model).assert_same(&expected.steps[step as usize], step);
    }
}

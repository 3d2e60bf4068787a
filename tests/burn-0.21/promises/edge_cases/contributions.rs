//! Contributions to a gradient: from several places, from none, of odd shapes; when it is complete.

use core::marker::PhantomData;

use burn::tensor::activation::relu;

use super::{Inner, P, R, TOLERANCE, adam, start};
use crate::harness::prelude::*;

const STEPS: u64 = 5;

/// Trains both ways with weight decay, which moves what has no gradient as well. Returns the
/// reports.
#[track_caller]
fn same<U: Uses>() -> Vec<StepReport> {
    let recipe = AdamWConfig::new().with_weight_decay(0.1);
    let start = start::<Of<U>>();
    run::compare::<Of<U>, _, Inner, NoCheckpointing>(&start, &recipe, STEPS, 0.0).1
}

/// Matrices and vectors, of which [`Uses`] make a loss.
#[derive(Module, Debug)]
struct Parameters<B: Backend> {
    matrices: Vec<Param<Tensor<B, 2>>>,
    vectors: Vec<Param<Tensor<B, 1>>>,
}

impl<B: Backend> Parameters<B> {
    fn matrix(&self, place: usize) -> Tensor<B, 2> {
        self.matrices[place].val()
    }

    fn vector(&self, place: usize) -> Tensor<B, 1> {
        self.vectors[place].val()
    }
}

trait Uses {
    const MATRICES: &[[usize; 2]];
    const VECTORS: &[usize];

    fn loss<B: AutodiffBackend>(of: &Parameters<B>, x: Tensor<B, 2>) -> Tensor<B, 1>;
}

/// The model and loss of such uses.
struct Of<U>(PhantomData<U>);

impl<U: Uses> Scenario for Of<U> {
    type Model<B: AutodiffBackend> = Parameters<B>;

    fn init<B: AutodiffBackend>(_: Size, device: &B::Device) -> Parameters<B> {
        let matrices = U::MATRICES.iter();
        let vectors = U::VECTORS.iter();
        Parameters {
            matrices: matrices
                .map(|shape| Param::from_tensor(Tensor::zeros(*shape, device)))
                .collect(),
            vectors: vectors
                .map(|length| Param::from_tensor(Tensor::zeros([*length], device)))
                .collect(),
        }
    }

    fn loss<B: AutodiffBackend>(model: &Parameters<B>, _: Size, step: u64) -> Tensor<B, 1> {
        U::loss(model, noise(step, [4, 4], &B::Device::default()))
    }
}

/// The first matrix and the first vector are used; the second of each is not, and the third matrix
/// only without gradient.
struct Spare;

impl Uses for Spare {
    const MATRICES: &[[usize; 2]] = &[[4, 4]; 3];
    const VECTORS: &[usize] = &[4; 2];

    fn loss<B: AutodiffBackend>(of: &Parameters<B>, x: Tensor<B, 2>) -> Tensor<B, 1> {
        let used = x.matmul(of.matrix(0)) + of.vector(0).unsqueeze();
        used.matmul(of.matrix(2).detach()).square().mean()
    }
}

#[test]
fn unused_parameters_get_no_state_and_no_decay() {
    let start = start::<Of<Spare>>();
    let recipe = AdamWConfig::new().with_weight_decay(0.5);
    let expected = run::plain::<Of<Spare>, _, P>(&start, &recipe, 3);

    let mut optim = recipe.make::<R, Parameters<R>>().with_gradient_release();
    let mut model = start.model::<Of<Spare>, R>();
    for step in 0..3 {
        model = armed_step(RATE, model, &mut optim, |model| {
            Of::<Spare>::loss(model, Size::Small, step)
        });
        Weights::of(&model).assert_near(&expected.steps[step as usize], TOLERANCE, "unused");
        assert_eq!(outcomes(&optim.last_step().expect("a step")), [2, 0, 0, 3]);
    }

    let record = optim.to_record();
    assert_eq!(record.len(), 2, "state for what was used only");
    assert!(record.contains_key(&model.matrices[0].id));
    assert!(record.contains_key(&model.vectors[0].id));
    // Still a leaf that can be trained later.
    assert!(model.matrices[1].is_require_grad());
}

/// Uses that never reach the loss, beside one that does: at three depths, so that no order saves
/// the day, before, beside and above the live use.
struct DeadUses;

impl Uses for DeadUses {
    const MATRICES: &[[usize; 2]] = Spare::MATRICES;
    const VECTORS: &[usize] = Spare::VECTORS;

    fn loss<B: AutodiffBackend>(of: &Parameters<B>, x: Tensor<B, 2>) -> Tensor<B, 1> {
        let used = |x: Tensor<B, 2>| x.matmul(of.matrix(0)) + of.vector(0).unsqueeze();
        let before = used(x.clone());
        let live = used(x.tanh());
        let _above = used(live.clone()).matmul(of.matrix(2));
        let _kept_dead = before.matmul(of.matrix(2).transpose());
        live.square().mean()
    }
}

#[test]
fn uses_that_do_not_reach_the_loss_do_not_hold_a_parameter_back() {
    for report in same::<DeadUses>() {
        let [released, late, ordinary, unused] = outcomes(&report);
        assert_eq!([released + late, ordinary, unused], [2, 0, 3]);
    }
}

/// The value of the first matrix without gradient is wanted in backward when the second gets its
/// gradient, long after the first was stepped.
struct ReadsOld;

impl Uses for ReadsOld {
    const MATRICES: &[[usize; 2]] = &[[4, 4]; 2];
    const VECTORS: &[usize] = &[4];

    fn loss<B: AutodiffBackend>(of: &Parameters<B>, x: Tensor<B, 2>) -> Tensor<B, 1> {
        let w = of.matrix(0);
        let old = w.clone().detach().tanh().exp();
        let first = x.matmul(of.matrix(1)) * old;
        let second = (first * of.vector(0).unsqueeze()).tanh().exp();
        let third = second.clone().matmul(second.exp().tanh());
        (third * relu(w)).square().mean()
    }
}

#[test]
fn recompute_sees_the_old_value() {
    type Recomputing = BalancedCheckpointing;

    let (start, recipe) = (start::<Of<ReadsOld>>(), AdamConfig::new());
    let (recomputed, reports) =
        run::compare::<Of<ReadsOld>, _, Inner, Recomputing>(&start, &recipe, STEPS, 0.0);
    assert_run_released(&reports, 3);
    let (kept, _) = run::release::<Of<ReadsOld>, _, Release<Inner>>(&start, &recipe, STEPS);
    run::assert_near_steps(
        &recomputed.steps,
        &kept.steps,
        TOLERANCE,
        "recomputed against kept",
    );
}

/// One parameter per view, each seen through that view only.
struct EveryView;

impl Uses for EveryView {
    const MATRICES: &[[usize; 2]] = &[[4, 4]; 10];
    const VECTORS: &[usize] = &[];

    fn loss<B: AutodiffBackend>(of: &Parameters<B>, x: Tensor<B, 2>) -> Tensor<B, 1> {
        let device = x.device();
        let rows = Tensor::<B, 1, Int>::from_data([3, 1, 1, 0], &device);
        let gathered = Tensor::<B, 2, Int>::from_data(
            [[0, 1, 1, 3], [2, 2, 0, 1], [3, 0, 1, 2], [1, 1, 1, 1]],
            &device,
        );
        let w = |place: usize| of.matrix(place);
        let views: [Tensor<B, 2>; 10] = [
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
        let x = views.into_iter().fold(x, |x, view| x.matmul(view).tanh());
        x.square().mean()
    }
}

/// Iterated functions of a parameter: one that is used, also in a scope, and one that is dropped.
struct Iterated;

impl Uses for Iterated {
    const MATRICES: &[[usize; 2]] = &[[4, 4]; 2];
    const VECTORS: &[usize] = &[];

    fn loss<B: AutodiffBackend>(of: &Parameters<B>, x: Tensor<B, 2>) -> Tensor<B, 1> {
        let iterated = |w: Tensor<B, 2>| (0..600).fold(w, |w, _| w * 0.9999);
        drop(iterated(of.matrix(0)));
        let x = x.matmul(iterated(of.matrix(0))).tanh();
        let x = x.matmul(checkpoint(|| iterated(of.matrix(1))));
        x.square().mean()
    }
}

/// Plain Burn walks its tape without recursion: the stack is enough for any function.
#[test]
fn a_long_function_of_parameters_alone() {
    for report in same::<Iterated>() {
        let [released, late, ..] = outcomes(&report);
        assert_eq!(released + late, 2);
    }
}

/// Gradients that arrive transposed, or as one number expanded to a matrix.
struct OddLayouts;

impl Uses for OddLayouts {
    const MATRICES: &[[usize; 2]] = &[[4, 4]; 2];
    const VECTORS: &[usize] = &[4];

    fn loss<B: AutodiffBackend>(of: &Parameters<B>, x: Tensor<B, 2>) -> Tensor<B, 1> {
        let expanded = of.matrix(1).sum();
        let transposed = (of.matrix(0).transpose() * x).sum();
        expanded + transposed + of.vector(0).mean()
    }
}

#[test]
fn gradients_through_views_and_of_odd_layouts() {
    assert_run_released(&same::<EveryView>(), 10);
    assert_run_released(&same::<OddLayouts>(), 3);
}

/// One number, and none at all.
struct Smallest;

impl Uses for Smallest {
    const MATRICES: &[[usize; 2]] = &[[0, 4], [3, 4]];
    const VECTORS: &[usize] = &[1];

    fn loss<B: AutodiffBackend>(of: &Parameters<B>, x: Tensor<B, 2>) -> Tensor<B, 1> {
        let rows = Tensor::cat(vec![of.matrix(0) * 2.0, of.matrix(1)], 0);
        let x = x.slice([0..4, 0..3]);
        (x.matmul(rows).sum() * of.vector(0)).square()
    }
}

#[test]
fn one_element_and_empty_parameters() {
    for report in same::<Smallest>() {
        let [released, late, ..] = outcomes(&report);
        assert_eq!(report.outcomes().count(), 3);
        assert!(
            released + late >= 2,
            "what has elements is stepped in backward"
        );
    }
}

/// The loss itself is the parameter: no operation in between.
struct Bare;

impl Uses for Bare {
    const MATRICES: &[[usize; 2]] = &[];
    const VECTORS: &[usize] = &[1];

    fn loss<B: AutodiffBackend>(of: &Parameters<B>, _: Tensor<B, 2>) -> Tensor<B, 1> {
        of.vector(0)
    }
}

/// Nothing consumes the parameter, so there may be nothing to release from: an ordinary step is
/// as good, a lost gradient is not.
#[test]
fn a_parameter_that_is_its_own_loss() {
    let start = start::<Of<Bare>>();
    let expected = run::plain::<Of<Bare>, _, P>(&start, &AdamConfig::new(), 3);
    let mut model = start.model::<Of<Bare>, R>();
    let mut optim = adam::<Parameters<R>>();
    for step in 0..3 {
        model = optim.arm(RATE, model);
        let grads = gradients(&model, Of::<Bare>::loss(&model, Size::Small, step));
        model = optim.step(RATE, model, grads);
        Weights::of(&model).assert_near(&expected.steps[step as usize], TOLERANCE, step);
    }
}

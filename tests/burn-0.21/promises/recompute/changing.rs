//! Forward passes that change from step to step: the weights stay plain Burn's, and a plan is used
//! as long as it fits.

use burn_gradient_release::Recomputed;

use super::{recipe, recomputing};
use crate::harness::prelude::*;

const WIDTH: usize = 4;

/// Layers that some passes leave out, and a branch that some take.
#[derive(Module, Debug)]
struct Model<B: Backend> {
    layers: Vec<Linear<B>>,
    branch: Linear<B>,
}

/// Depth, branches and rows of a forward pass.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Pass {
    depth: usize,
    with_branch: bool,
    rows: usize,
}

const FULL: Pass = Pass {
    depth: 6,
    with_branch: false,
    rows: 64,
};

const SHORT: Pass = Pass { depth: 4, ..FULL };

/// The branch is early in the pass.
const BRANCH: Pass = Pass {
    with_branch: true,
    ..FULL
};

/// A smaller batch, as the last one of an epoch.
const SMALL: Pass = Pass { rows: 24, ..FULL };

const LARGE: Pass = Pass { rows: 128, ..FULL };

impl<B: Backend> Model<B> {
    fn new() -> Self {
        let device = Default::default();
        let layer = || LinearConfig::new(WIDTH, WIDTH).init(&device);
        Self {
            layers: (0..FULL.depth).map(|_| layer()).collect(),
            branch: layer(),
        }
    }

    fn loss(&self, pass: Pass, step: u64) -> Tensor<B, 1> {
        let mut x = noise::<B, 2>(step, [pass.rows, WIDTH], &Default::default());
        for (index, layer) in self.layers.iter().take(pass.depth).enumerate() {
            let y = layer.forward(x);
            x = (y.clone().exp().tanh() * y.clone().sin() + y.cos()).tanh();
            if pass.with_branch && index == 1 {
                x = x.clone() + self.branch.forward(x).tanh();
            }
        }
        x.square().mean()
    }
}

/// Takes a step for each pass, in plain Burn too: the weights are the same after each. Returns what
/// was recomputed in each.
fn same(recompute: Recompute, passes: &[Pass]) -> Vec<Recomputed> {
    let start = save::<P, _>(Model::<P>::new());
    let steps = passes.len() as u64;
    let plain = load::<P, _>(Model::new(), &start, &Default::default());
    let loss = |model: &Model<P>, step| model.loss(passes[step as usize], step);
    let expected = run::ordinary(plain, &mut recipe().init(), steps, &loss);

    let model = load::<R, _>(Model::new(), &start, &Default::default());
    let loss = |model: &Model<R>, step| model.loss(passes[step as usize], step);
    let (given, reports) = run::armed(model, &mut recomputing(recompute), steps, &loss);
    assert_same_steps(&given.steps, &expected.steps, format!("{recompute:?}"));
    for (pair, pass) in expected.steps.windows(2).zip(&passes[1..]) {
        pair[1].assert_moved(&pair[0], format!("{pass:?}"));
    }
    for (report, pass) in reports.iter().zip(passes) {
        let layers = pass.depth + usize::from(pass.with_branch);
        assert_eq!(report.count(Outcome::Released), 2 * layers, "{pass:?}");
    }
    reports.iter().map(|report| report.recomputed()).collect()
}

/// A model that is armed already, without a forward pass in between.
#[test]
fn a_policy_that_changes_between_two_armings() {
    let start = save::<P, _>(Model::<P>::new());
    let run = |first: Recompute, second: Recompute| {
        let mut model = load::<R, _>(Model::new(), &start, &Default::default());
        let mut optim = recomputing(first);
        model = optim.arm(RATE, model);
        optim = optim.with_recompute(second);
        model = optim.arm(RATE, model);
        let grads = gradients(&model, model.loss(FULL, 0));
        model = optim.step(RATE, model, grads);
        let recomputed = optim.last_step().expect("a step was taken").recomputed();
        (Weights::of(&model), recomputed.segments)
    };
    let (kept, none) = run(Recompute::None, Recompute::None);
    assert_eq!(none, 0);
    for (first, second, recomputes) in [
        (Recompute::None, Recompute::Automatic, true),
        (Recompute::Automatic, Recompute::None, false),
    ] {
        let (weights, segments) = run(first, second);
        weights.assert_same(&kept, format!("{second:?}"));
        assert_eq!(segments > 0, recomputes, "{second:?}");
    }
}

#[test]
fn the_weights_of_passes_that_change() {
    // Depths alternate, the branch comes and goes, and every fourth batch is smaller; then all at
    // once.
    let mut passes = vec![FULL, FULL, SHORT, SMALL, SHORT, BRANCH, FULL, SMALL, BRANCH];
    passes.extend([
        SHORT, SHORT, SMALL, LARGE, BRANCH, SHORT, SMALL, LARGE, FULL,
    ]);
    let depths = [1, 6, 2, 5, 3, 3, 6];
    passes.extend(depths.map(|depth| Pass {
        depth,
        with_branch: depth % 3 == 0,
        rows: 8 * depth + 1,
    }));
    for recompute in [
        Recompute::Automatic,
        Recompute::Budget(1),
        Recompute::Budget(1 << 13),
        Recompute::Budget(1 << 14),
        Recompute::Budget(1 << 15),
    ] {
        let recomputed = same(recompute, &passes);
        let with_segments = recomputed.iter().filter(|step| step.segments > 0);
        assert!(with_segments.count() > 0, "{recompute:?}");
    }
}

#[test]
fn a_plan_is_used_until_it_does_not_fit() {
    let passes = [
        FULL, FULL, FULL, BRANCH, BRANCH, FULL, FULL, SMALL, FULL, LARGE, LARGE,
    ];
    // All but the end is recomputed, or the second half is kept.
    for recompute in [Recompute::Automatic, Recompute::Budget(1 << 14)] {
        let steps = same(recompute, &passes);
        let planned = |step: usize| steps[step].planned_bytes.expect("there is a plan");
        // As a pass comes for the first time it is cut without a plan, which is made from it.
        for (step, context) in [(0, "the first"), (3, "a branch"), (9, "larger")] {
            let followed = steps[step + 1];
            assert_eq!(followed.planned_bytes, steps[step].planned_bytes);
            assert_ne!(followed.segments, 0, "{recompute:?}: {context}");
            assert_ne!(
                followed.operations, steps[step].operations,
                "{recompute:?}: {context}"
            );
        }
        // The plan before the last one is still there.
        assert_eq!(planned(5), planned(0), "{recompute:?}: the same pass");
        // The same pass, and the same plan.
        for step in [2, 6, 8] {
            assert_eq!(steps[step], steps[1], "{recompute:?}: step {step}");
        }
        // The same plan for fewer rows: the same segments of a smaller pass.
        let [full, small] = [steps[6], steps[7]];
        assert_eq!(small.planned_bytes, full.planned_bytes);
        assert_eq!(small.segments, full.segments);
        assert_eq!(small.operations, full.operations);
        let rows = |pass: Pass| pass.rows as u64;
        assert_eq!(small.kept_bytes * rows(FULL), full.kept_bytes * rows(SMALL));
        // Not for more: what is kept would be, too.
        assert!(planned(9) > planned(8), "{recompute:?}");
        if let Recompute::Budget(budget) = recompute {
            assert!(planned(1) <= budget && planned(4) <= budget);
        }
    }
}

/// What a plan keeps can turn out longer, or larger, than what it was learned from: then it is
/// learned anew.
#[test]
fn a_plan_that_keeps_too_much_is_forgotten() {
    let ample = Recompute::Budget(1 << 15);
    for (recompute, before, after) in [
        (Recompute::Automatic, SHORT, FULL),
        (Recompute::Budget(1 << 14), SHORT, FULL),
        (ample, FULL, LARGE),
        (ample, SHORT, Pass { rows: 256, ..SHORT }),
    ] {
        let steps = same(recompute, &[before, before, after, after, after, after]);
        let alone = same(recompute, &[after, after, after, after]);
        let context = format!("{recompute:?}, {before:?}, then {after:?}");
        let plan = |of: Recomputed| (of.planned_bytes, of.segments, of.operations);
        assert_ne!(plan(steps[1]), plan(alone[3]), "{context}");
        assert_eq!(steps[5], alone[3], "{context}");
    }
}

//! What memory is attributed to, where it is not obvious.

use std::collections::BTreeSet;

use burn_gradient_release_timeline::analysis::Totals;
use burn_gradient_release_timeline::snapshot::{Category, Holder, PhaseKind};
use burn_gradient_release_timeline::{RecordSteps, Recorded, Recorder, Snapshot};

use super::{bytes, phases, train, turn};
use crate::harness::prelude::*;

type P = Plain<Recorded<Flex>>;
type R = super::R<Flex>;
type Model<B> = <Mlp as Scenario>::Model<B>;

/// The first three steps of a training.
fn recorded<B: AutodiffBackend, O: Optimizer<Model<B>, B>>(
    mut optim: O,
    arm: fn(&mut O, Model<B>) -> Model<B>,
) -> Snapshot {
    let start = Start::new::<Mlp>(Size::Small);
    let recorder = Recorder::new("attribution").with_steps(0..3);
    let recording = recorder.start().expect("no other recording is under way");
    train::<Mlp, B, O>(Size::Small, &start, &mut optim, arm, 3);
    let snapshot = recording.finish().expect("three steps were recorded");
    assert!(snapshot.warnings.is_empty(), "{:?}", snapshot.warnings);
    snapshot
}

fn plain<O: SimpleOptimizer<Recorded<Flex>>>(optim: OptimizerAdaptor<O, Model<P>, P>) -> Snapshot {
    recorded::<P, _>(optim.recorded(), |_, model| model)
}

fn release<O: SimpleOptimizer<Recorded<Flex>> + 'static>(
    optim: OptimizerAdaptor<O, Model<R>, R>,
) -> Snapshot {
    let optim = optim.recorded().with_gradient_release();
    recorded::<R, _>(optim, |optim, model| optim.arm(RATE, model))
}

fn all(snapshot: &Snapshot) -> u64 {
    snapshot
        .parameters
        .iter()
        .map(|parameter| parameter.bytes)
        .sum()
}

/// The largest total of a category.
fn most(snapshot: &Snapshot, category: Category) -> u64 {
    Totals::of(snapshot).most(category).0
}

fn of(snapshot: &Snapshot, category: Category) -> Vec<&Holder> {
    let holders = snapshot.holders.iter();
    holders
        .filter(|holder| holder.category == category)
        .collect()
}

/// The first velocity *is* the first gradient: the same memory, which changes its purpose.
#[test]
fn a_gradient_that_is_kept_becomes_state() {
    let _turn = turn();
    let momentum = MomentumConfig::new().with_nesterov(false);
    let sgd = || SgdConfig::new().with_momentum(Some(momentum.clone()));
    let clipping = Some(GradientClippingConfig::Norm(1e-3));
    for (config, is_clipped) in [
        (sgd(), false),
        (sgd().with_gradient_clipping(clipping), true),
    ] {
        let snapshot = plain(config.init());
        let all = all(&snapshot);
        let last = snapshot.times.len() - 1;
        assert_eq!(bytes(&snapshot, Category::OptimizerState, 0), 0);
        assert_eq!(bytes(&snapshot, Category::OptimizerState, last), all);
        assert_eq!(bytes(&snapshot, Category::Gradients, last), 0);
        for forward in phases(&snapshot, PhaseKind::Forward) {
            assert_eq!(bytes(&snapshot, Category::Gradients, forward.from), 0);
        }
        if !is_clipped {
            assert_eq!(most(&snapshot, Category::Gradients), all);
        }
    }
}

/// In plain Burn, one clipped gradient at a time is there beside those that are to be clipped.
#[test]
fn a_clipped_gradient_is_known_by_its_parameter() {
    let _turn = turn();
    let clipping = GradientClippingConfig::Value(1e-3);
    let config = AdamConfig::new().with_grad_clipping(Some(clipping));
    let plain = plain(config.init());
    let release = release(config.init());
    let gradients = of(&release, Category::Gradients);
    assert!(gradients.len() >= 3 * release.parameters.len());
    for gradient in gradients {
        let parameter = gradient.parameter.expect("a gradient is of a parameter");
        assert_eq!(gradient.bytes, release.parameters[parameter].bytes);
    }
    assert!(most(&release, Category::Gradients) < all(&release));
    let largest = plain.parameters.iter().map(|parameter| parameter.bytes);
    let largest = largest.max().expect("there are parameters");
    let clipped = all(&plain)..=all(&plain) + largest;
    assert!(clipped.contains(&most(&plain, Category::Gradients)));
}

/// Also with groups that clip otherwise, or not at all.
#[test]
fn a_recorded_optimizer_is_clipped_as_its_group_is() {
    fn weights<O: SimpleOptimizer<Recorded<Flex>> + 'static>(
        start: &Start,
        optim: OptimizerAdaptor<O, Model<R>, R>,
    ) -> [Vec<u64>; 3] {
        let wider = GradientClippingConfig::Norm(1e-2).init();
        let options = [
            GroupOptions::new(),
            GroupOptions::new().without_grad_clipping(),
            GroupOptions::new().with_grad_clipping(wider),
        ];
        options.map(|options| {
            let optim = optim.clone().with_gradient_release();
            let mut optim = optim.with_group(ParamGroup::all(), options);
            let arm = |optim: &mut ReleaseOptimizer<O, _, _>, model| optim.arm(RATE, model);
            train::<Mlp, R, _>(Size::Small, start, &mut optim, arm, 3)
        })
    }

    let _turn = turn();
    let start = Start::new::<Mlp>(Size::Small);
    let clipping = GradientClippingConfig::Norm(1e-3);
    let config = SgdConfig::new().with_gradient_clipping(Some(clipping));
    let plain = weights(&start, config.init());
    let [unchanged, without, otherwise] = &plain;
    assert!(without != otherwise && otherwise != unchanged);
    assert_eq!(weights(&start, config.init().recorded()), plain);
}

/// As Burn's adaptor does, with and without a recording.
#[test]
fn a_recorded_optimizer_clips() {
    fn weights<B: AutodiffBackend>(
        start: &Start,
        mut optim: impl Optimizer<Model<B>, B>,
    ) -> Vec<u64> {
        train::<Mlp, B, _>(Size::Small, start, &mut optim, |_, model| model, 3)
    }

    let _turn = turn();
    let start = Start::new::<Mlp>(Size::Small);
    let unclipped = weights::<Plain<Flex>>(&start, SgdConfig::new().init());
    for clipping in [
        GradientClippingConfig::Value(1e-3),
        GradientClippingConfig::Norm(1e-3),
    ] {
        let config = SgdConfig::new().with_gradient_clipping(Some(clipping));
        let expected = weights::<Plain<Flex>>(&start, config.init());
        assert_ne!(expected, unclipped);
        assert_eq!(weights::<P>(&start, config.init().recorded()), expected);
        let recorder = Recorder::new("clipping").with_steps(0..3);
        let recording = recorder.start().expect("no other recording is under way");
        assert_eq!(weights::<P>(&start, config.init().recorded()), expected);
        recording.finish().expect("three steps were recorded");
    }
}

/// An activation has the path of its layer and the name of its operation.
#[test]
fn an_activation_is_known_by_its_layer() {
    let _turn = turn();
    let snapshot = plain(AdamConfig::new().init());
    let layers: BTreeSet<_> = of(&snapshot, Category::Activations)
        .into_iter()
        .filter(|holder| snapshot.operations[holder.operation] == "linear")
        .map(|holder| {
            let parameter = holder.parameter.expect("it met a parameter");
            snapshot.parameters[parameter].path.as_str()
        })
        .collect();
    let expected = ["layers.0.weight", "layers.1.weight", "layers.2.weight"];
    assert_eq!(layers, BTreeSet::from(expected));
}

#[test]
fn every_step_has_its_name() {
    let _turn = turn();
    let snapshot = release(AdamConfig::new().init());
    let expected: Vec<usize> = (0..snapshot.parameters.len()).collect();
    for backward in phases(&snapshot, PhaseKind::Backward) {
        let within = snapshot
            .phases
            .iter()
            .filter(|phase| backward.from < phase.from && phase.until < backward.until);
        let mut stepped: Vec<usize> = within
            .filter_map(|phase| match phase.kind {
                PhaseKind::Step(parameter) => Some(parameter),
                _ => None,
            })
            .collect();
        stepped.sort_unstable();
        assert_eq!(stepped, expected, "each once");
    }
    assert_eq!(phases(&snapshot, PhaseKind::Backward).count(), 3);
}

//! What replicas decide by the norms of gradients, they decide by those of the mean.

use std::sync::Arc;

use burn_lean::Threads;

use super::reference::{Net, mean_grads, share};
use super::weights::{How, assert_run};
use crate::harness::prelude::*;

/// A process alone, and more than two of them. All sizes are in `weights`.
const ONE_AND_THREE: [usize; 2] = [1, 3];
/// Of which one can go wrong.
const TWO_AND_THREE: [usize; 2] = [2, 3];
const STEPS: usize = 6;
/// Of some steps smaller than the norm, of some larger.
const MAX_NORM: f64 = 0.2;

fn global_norm(optim: ReleaseOptimizer) -> ReleaseOptimizer {
    optim.with_norm_clipping(NormClipping::GlobalNorm { max_norm: MAX_NORM })
}

/// One process whose optimizer has the same settings and is given the mean gradients. The bits and
/// the norm of each step.
fn one_process(
    size: usize,
    settings: impl Fn(ReleaseOptimizer) -> ReleaseOptimizer,
) -> (Vec<Bits>, Vec<Option<f64>>) {
    let mut model = Net::new();
    let mut optim = settings(adamw().with_gradient_release());
    let step = |step| {
        let grads = mean_grads(&model, size, step, 1);
        model = optim.step(LR, model.clone(), grads);
        (bits(&model), optim.last_step().unwrap().grad_norm())
    };
    (0..STEPS).map(step).unzip()
}

/// Inside backward, in two passes where the rule needs them, and in ordinary steps.
#[test]
fn rules_see_the_mean() {
    type Settings = fn(ReleaseOptimizer) -> ReleaseOptimizer;
    // With whether they change the weights.
    let all: [(&str, Settings, bool); 6] = [
        ("global norm", global_norm, true),
        (
            "zclip",
            |optim| {
                let config = ZClipConfig::new().with_warm_up(1).with_alpha(0.1);
                let config = config.with_z_threshold(0.1);
                optim.with_norm_clipping(NormClipping::ZClip(config))
            },
            true,
        ),
        (
            "adaptive",
            |optim| {
                let config = AdaptiveClippingConfig::new().with_clip_factor(1e-3);
                optim.with_norm_clipping(NormClipping::Adaptive(config))
            },
            true,
        ),
        (
            "auto clip",
            |optim| {
                let config = AutoClipConfig::new().with_percentile(30.0);
                optim.with_norm_clipping(NormClipping::AutoClip(config))
            },
            true,
        ),
        ("norm", |optim| optim.with_grad_norm(), false),
        ("stop", |optim| optim.with_non_finite_stop(), false),
    ];
    let unclipped = ONE_AND_THREE.map(|size| {
        let (unclipped, norms) = one_process(size, ReleaseOptimizer::with_grad_norm);
        let large = norms.iter().filter(|norm| norm.unwrap() > MAX_NORM);
        assert!((1..STEPS).contains(&large.count()), "{norms:?}");
        unclipped
    });
    for (what, settings, clips) in all {
        let mut has_clipped = false;
        for (size, unclipped) in ONE_AND_THREE.into_iter().zip(&unclipped) {
            let (expected, norms) = one_process(size, settings);
            has_clipped |= expected != *unclipped;
            let optim = || settings(adamw().with_gradient_release());
            // What scopes change is seen in `weights`.
            let ways = How::all(size).filter(|how| how.has_scopes);
            for (how, is_released) in ways.flat_map(|how| [(how, true), (how, false)]) {
                assert_run(how, &expected, optim, |mut model, optim, step, rank| {
                    let batch = share(step, rank, size);
                    let loss = |net: &Net| net.loss(batch, how.has_scopes);
                    model = match (is_released, optim.needs_two_passes()) {
                        (true, true) => optim.two_passes(LR, model, loss).0,
                        (true, false) => release_step(model, optim, loss),
                        (false, _) => {
                            let grads = model.grads(batch, how.has_scopes);
                            optim.step(LR, model, grads)
                        }
                    };
                    let report = optim.last_step().unwrap();
                    assert_eq!(report.grad_norm(), norms[step], "{what}, {how:?}");
                    model
                });
            }
        }
        assert_eq!(has_clipped, clips, "{what}");
    }
}

/// One replica's gradients overflow in one step: all skip it, and all scale less from then on.
#[test]
fn a_step_that_one_replica_cannot_take() {
    const BAD: usize = 2;
    for size in TWO_AND_THREE {
        let (mut plain, mut optim) = (Net::new(), adamw());
        let step = |step| {
            if step != BAD {
                let grads = mean_grads(&plain, size, step, 1);
                plain = optim.step(LR, plain.clone(), grads);
            }
            bits(&plain)
        };
        let expected: Vec<_> = (0..STEPS).map(step).collect();
        for (how, in_two_passes) in How::all(size).flat_map(|how| [(how, false), (how, true)]) {
            Threads::run(size, |replicas| {
                let rank = replicas.rank();
                let parallel = how.parallel(replicas);
                let mut model = parallel.broadcast(Net::new()).unwrap();
                let scaler = LossScalerConfig::new().with_init_scale(1024.0).init();
                let mut optim = adamw()
                    .with_gradient_release()
                    .with_loss_scaler(scaler.clone())
                    .with_reduction(Arc::new(parallel));
                for (step, expected) in expected.iter().enumerate() {
                    let is_bad = step == BAD && rank == 1;
                    let factor = if is_bad { f32::INFINITY } else { 1.0 };
                    let batch = share(step, rank, size);
                    let loss = |net: &Net| scaler.scale(net.loss(batch, how.has_scopes) * factor);
                    model = match in_two_passes {
                        true => optim.two_passes(LR, model, loss).0,
                        false => release_step(model, &mut optim, loss),
                    };
                    let what = format!("{how:?}, {in_two_passes}, step {step}, rank {rank}");
                    assert_bits(&bits(&model), expected, &what);
                    let scale = if step < BAD { 1024.0 } else { 512.0 };
                    assert_eq!(scaler.current(), scale, "{what}");
                    let report = optim.last_step().unwrap();
                    assert_eq!(report.count(Outcome::Skipped) > 0, step == BAD, "{what}");
                }
            });
        }
    }
}

/// One replica's gradient is not a number: all are told, and nothing has changed.
#[test]
fn a_step_that_no_replica_may_take() {
    for how in TWO_AND_THREE.into_iter().flat_map(How::all) {
        Threads::run(how.size, |replicas| {
            let rank = replicas.rank();
            let parallel = how.parallel(replicas);
            let model = parallel.broadcast(Net::new()).unwrap();
            let before = bits(&model);
            let optim = global_norm(adamw().with_gradient_release());
            let mut optim = optim.with_reduction(Arc::new(parallel));
            let factor = if rank == 1 { f32::NAN } else { 1.0 };
            let loss = |net: &Net| net.loss(rank, how.has_scopes) * factor;
            let refused = optim.try_two_passes(LR, model, loss);
            let (model, error) = refused.unwrap_err().into_parts();
            assert!(matches!(error, ReleaseError::NonFinite { .. }), "{error}");
            assert_eq!(bits(&model), before);
        });
    }
}

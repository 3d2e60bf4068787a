//! What replicas decide by the norms of gradients, they decide by those of the mean.

use std::sync::Arc;

use burn::optim::GradientsParams;
use burn_lean::{
    AdaptiveClippingConfig, AutoClipConfig, LossScalerConfig, NormClipping, Outcome, ReleaseError,
    ReleaseOptimizer, Threads, WithGradientRelease, ZClipConfig, clip_grad_norm,
};

use super::reference::{Net, mean_grads, share};
use super::weights::{How, assert_run_with};
use crate::harness::{Bits, LR, adamw, assert_bits, bits};

const STEPS: usize = 6;
/// Of some steps smaller than the norm, of some larger.
const MAX_NORM: f64 = 0.2;

fn global_norm() -> NormClipping {
    NormClipping::GlobalNorm { max_norm: MAX_NORM }
}

/// How often the norm is larger.
fn clipped(run: &[f64]) -> usize {
    run.iter().filter(|norm| **norm > MAX_NORM).count()
}

/// Plain Burn in one process, with the norms of its gradients.
fn by_global_norm(size: usize) -> (Vec<Bits>, Vec<f64>) {
    let (mut model, mut optim) = (Net::new(), adamw());
    let step = |step| {
        let mut grads = mean_grads(&model, size, step, 1);
        let norm = clip_grad_norm(&model, &mut grads, MAX_NORM);
        model = optim.step(LR, model.clone(), grads);
        (bits(&model), norm)
    };
    (0..STEPS).map(step).unzip()
}

#[test]
fn by_the_global_norm() {
    for how in How::all() {
        let (expected, norms) = by_global_norm(how.size);
        assert!((1..STEPS).contains(&clipped(&norms)), "{norms:?}");
        let optim = |optim: ReleaseOptimizer| optim.with_norm_clipping(global_norm());
        assert_run_with(how, &expected, adamw, optim, |model, optim, step, rank| {
            let batch = share(step, rank, how.size);
            let (model, _) = optim.two_passes(LR, model, |net| net.loss(batch, how.has_scopes));
            let report = optim.last_step().unwrap();
            assert_eq!(report.grad_norm(), Some(norms[step]), "{how:?}");
            assert_eq!(report.count(Outcome::Ordinary), 0, "{report:?}");
            model
        });
        // Of a model that is not armed, all gradients are there before the step.
        assert_run_with(how, &expected, adamw, optim, |model, optim, step, rank| {
            let grads = model.grads(share(step, rank, how.size), how.has_scopes);
            let model = optim.step(LR, model, grads);
            let report = optim.last_step().unwrap();
            assert_eq!(report.grad_norm(), Some(norms[step]), "{how:?}");
            model
        });
    }
}

/// One process whose optimizer has the same settings and is given the mean gradients.
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

#[test]
fn in_one_pass() {
    type Settings = fn(ReleaseOptimizer) -> ReleaseOptimizer;
    let all: [Settings; 4] = [
        |optim| {
            let config = AdaptiveClippingConfig::new().with_clip_factor(1e-3);
            optim.with_norm_clipping(NormClipping::Adaptive(config))
        },
        |optim| {
            let config = AutoClipConfig::new().with_percentile(30.0);
            optim.with_norm_clipping(NormClipping::AutoClip(config))
        },
        |optim| optim.with_grad_norm(),
        |optim| optim.with_non_finite_stop(),
    ];
    let (plain, _) = one_process(2, |optim| optim);
    for (at, settings) in all.into_iter().enumerate() {
        for how in How::all() {
            let (expected, norms) = one_process(how.size, settings);
            let is_clipped = how.size == 2 && expected != plain;
            assert!(how.size != 2 || is_clipped == (at < 2), "settings {at}");
            assert_run_with(
                how,
                &expected,
                adamw,
                settings,
                |model, optim, step, rank| {
                    let model = optim.arm(LR, model);
                    let grads = model.grads(share(step, rank, how.size), how.has_scopes);
                    let model = optim.step(LR, model, grads);
                    let report = optim.last_step().unwrap();
                    assert_eq!(report.grad_norm(), norms[step], "settings {at}, {how:?}");
                    model
                },
            );
        }
    }
}

#[test]
fn in_two_passes_by_zclip() {
    let settings = |optim: ReleaseOptimizer| {
        let config = ZClipConfig::new().with_warm_up(2).with_z_threshold(0.1);
        optim.with_norm_clipping(NormClipping::ZClip(config))
    };
    for how in How::all() {
        let (expected, _) = one_process(how.size, settings);
        assert_run_with(
            how,
            &expected,
            adamw,
            settings,
            |model, optim, step, rank| {
                let batch = share(step, rank, how.size);
                optim
                    .two_passes(LR, model, |net| net.loss(batch, how.has_scopes))
                    .0
            },
        );
    }
}

/// One replica's gradients overflow in one step: all skip it, and all scale less from then on.
#[test]
fn a_step_that_one_replica_cannot_take() {
    const BAD: usize = 2;
    for how in How::all().filter(|how| how.size > 1) {
        let (mut plain, mut optim) = (Net::new(), adamw());
        let expected: Vec<Bits> = (0..STEPS)
            .map(|step| {
                if step != BAD {
                    let grads = mean_grads(&plain, how.size, step, 1);
                    plain = optim.step(LR, plain.clone(), grads);
                }
                bits(&plain)
            })
            .collect();
        for in_two_passes in [false, true] {
            Threads::run(how.size, |replicas| {
                let rank = replicas.rank();
                let parallel = how.parallel(replicas);
                let mut model = parallel.broadcast(Net::new()).unwrap();
                let scaler = LossScalerConfig::new().with_init_scale(1024.0).init();
                let mut optim = adamw()
                    .with_gradient_release()
                    .with_loss_scaler(scaler.clone())
                    .with_reduction(Arc::new(parallel));
                for (step, expected) in expected.iter().enumerate() {
                    let factor = match step == BAD && rank == 1 {
                        true => f32::INFINITY,
                        false => 1.0,
                    };
                    let batch = share(step, rank, how.size);
                    let loss = |net: &Net| scaler.scale(net.loss(batch, how.has_scopes) * factor);
                    model = match in_two_passes {
                        true => optim.two_passes(LR, model, loss).0,
                        false => {
                            let model = optim.arm(LR, model);
                            let grads = loss(&model).backward();
                            let grads = GradientsParams::from_grads(grads, &model);
                            optim.step(LR, model, grads)
                        }
                    };
                    let what = format!("{how:?}, {in_two_passes}, step {step}, rank {rank}");
                    assert_bits(&bits(&model), expected, &what);
                    let scale = if step < BAD { 1024.0 } else { 512.0 };
                    let report = optim.last_step().unwrap();
                    assert_eq!(scaler.current(), scale, "{what}");
                    assert_eq!(report.count(Outcome::Skipped) > 0, step == BAD, "{what}");
                }
            });
        }
    }
}

/// One replica's gradient is not a number: all are told, and nothing has changed.
#[test]
fn a_step_that_no_replica_may_take() {
    for how in How::all().filter(|how| how.size > 1) {
        Threads::run(how.size, |replicas| {
            let rank = replicas.rank();
            let parallel = how.parallel(replicas);
            let model = parallel.broadcast(Net::new()).unwrap();
            let before = bits(&model);
            let mut optim = adamw()
                .with_gradient_release()
                .with_norm_clipping(global_norm())
                .with_reduction(Arc::new(parallel));
            let factor = if rank == 1 { f32::NAN } else { 1.0 };
            let loss = |net: &Net| net.loss(rank, how.has_scopes) * factor;
            let refused = optim.try_two_passes(LR, model, GradientsParams::new(), loss);
            let (model, error) = refused.unwrap_err().into_parts();
            assert!(matches!(error, ReleaseError::NonFinite { .. }), "{error}");
            assert_eq!(bits(&model), before);
        });
    }
}

//! Models of many operations: where several tensors cross a cut, and where there are many cuts.

use burn::backend::Flex;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{GradientsParams, Optimizer, SgdConfig};
use burn_gradient_release::{Recompute, Recomputed, WithGradientRelease};

use crate::ALLOCATIONS;
use crate::harness::memory::alone;
use crate::harness::models::{Deep, Scenario, Size, UNet};
use crate::harness::run::{RATE, Start};
use crate::harness::{Plain, Release, Weights};

const STEPS: u64 = 3;

/// Results of the last of a few steps.
struct Run {
    /// Over what was in use once the model was there.
    peak: usize,
    weights: u64,
    recomputed: Recomputed,
}

fn plain<S: Scenario>(start: &Start, size: Size) -> Run {
    type P = Plain<Flex>;

    let mut model = start.model::<S, P>();
    let mut optim = SgdConfig::new()
        .with_momentum(Some(MomentumConfig::new()))
        .init::<P, S::Model<P>>();
    let floor = ALLOCATIONS.current_usage();
    let mut peak = 0;
    for step in 0..STEPS {
        ALLOCATIONS.reset_peak_usage();
        let loss = S::loss::<P>(&model, size, step);
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        model = optim.step(RATE, model, grads);
        peak = ALLOCATIONS.peak_usage() - floor;
    }
    Run {
        peak,
        weights: Weights::of::<P, _>(&model).digest(),
        recomputed: Recomputed::default(),
    }
}

fn release<S: Scenario>(start: &Start, size: Size, recompute: Recompute) -> Run {
    type R = Release<Flex>;

    let mut model = start.model::<S, R>();
    let mut optim = SgdConfig::new()
        .with_momentum(Some(MomentumConfig::new()))
        .init::<R, S::Model<R>>()
        .with_gradient_release()
        .with_recompute(recompute);
    let floor = ALLOCATIONS.current_usage();
    let mut peak = 0;
    for step in 0..STEPS {
        ALLOCATIONS.reset_peak_usage();
        model = optim.arm(RATE, model);
        let loss = S::loss::<R>(&model, size, step);
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        model = optim.step(RATE, model, grads);
        peak = ALLOCATIONS.peak_usage() - floor;
    }
    Run {
        peak,
        weights: Weights::of::<R, _>(&model).digest(),
        recomputed: optim.last_step().expect("a step was taken").recomputed(),
    }
}

/// Trains in plain Burn, with `Automatic`, and within parts of what all activations take: the
/// weights are the same, and the peaks fall as planned. `part` of the activations is more than
/// `Automatic` plans.
fn saves<S: Scenario>(part: u64) {
    let size = Size::Large;
    let start = Start::new::<S>(size);
    let mib = |bytes: u64| bytes as f64 / (1 << 20) as f64;
    // Thread pools and caches come into being once.
    plain::<S>(&start, size);
    let plain = plain::<S>(&start, size);
    println!("plain Burn: peak {:.2} MiB", mib(plain.peak as u64));

    let measured = |recompute| {
        let run = release::<S>(&start, size, recompute);
        assert_eq!(run.weights, plain.weights, "{recompute:?}");
        let planned = run.recomputed.planned_bytes.expect("there is a plan");
        println!(
            "{recompute:?}: planned {:.2}, peak {:.2} MiB, {} segments, {} operations",
            mib(planned),
            mib(run.peak as u64),
            run.recomputed.segments,
            run.recomputed.operations,
        );
        (planned, run)
    };
    let (all, kept) = measured(Recompute::Budget(u64::MAX));
    assert_eq!(kept.recomputed.segments, 0);
    let (half, within_half) = measured(Recompute::Budget(all / 2));
    let (automatic, least) = measured(Recompute::Automatic);

    assert!(half <= all / 2);
    assert!(automatic <= all / part);
    assert!(least.recomputed.segments > 2);
    assert!(within_half.recomputed.operations < least.recomputed.operations);
    // What else there is at the peak is there without recomputing, too.
    let saved = |planned: u64| (all - planned) as usize * 3 / 4;
    assert!(within_half.peak + saved(half) <= kept.peak);
    assert!(least.peak + saved(automatic) <= kept.peak);
}

#[test]
fn a_u_net_keeps_its_skip_connections_and_one_segment() {
    alone(
        "recompute::deep::a_u_net_keeps_its_skip_connections_and_one_segment",
        || saves::<UNet>(4),
    );
}

#[test]
fn five_hundred_blocks() {
    alone("recompute::deep::five_hundred_blocks", || saves::<Deep>(12));
}

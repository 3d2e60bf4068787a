//! An activation with five uses: the sum of its gradients has an order.

use std::ops::Range;

use super::*;
use crate::accumulation::bits_of;

type Fan = (Linear, Vec<Linear>);

fn fan(device: &Device) -> Fan {
    let branch = |_| linear(12, 12, device);
    (linear(12, 12, device), (0..5).map(branch).collect())
}

fn fan_input(fan: &Fan, step: usize, device: &Device) -> Tensor<2> {
    fan.0.forward(numbers([8, 12], step, device)).tanh()
}

fn sum_of_branches(fan: &Fan, reversed: bool, step: usize, device: &Device) -> Tensor<1> {
    let x = fan_input(fan, step, device);
    let outs = fan.1.iter().map(|branch| branch.forward(x.clone()));
    let mut outs: Vec<_> = outs.collect();
    if reversed {
        outs.reverse();
    }
    let sum = outs.into_iter().reduce(Tensor::add);
    sum.expect("there are five").square().mean()
}

#[test]
fn fan_out_summed_forward() {
    assert_equal(fan, |fan, step, device| {
        sum_of_branches(fan, false, step, device)
    });
}

/// A small first pass differs: [`a_small_first_pass_that_is_not_plain`].
#[test]
fn fan_out_summed_in_reverse() {
    for device in devices() {
        assert_equal_on(
            &device,
            BOTH,
            &[FirstPass::Auto],
            fan,
            |fan, step, device| sum_of_branches(fan, true, step, device),
        );
    }
}

/// The first branch written is the deepest.
#[test]
fn fan_out_with_a_deep_first_branch() {
    assert_equal(fan, |fan, step, device| {
        let x = fan_input(fan, step, device);
        let [a, b, c, d, e] = &fan.1[..] else {
            unreachable!("there are five");
        };
        let deepest = c.forward(b.forward(a.forward(x.clone()).tanh()).tanh());
        let short = d.forward(x.clone());
        let shortest = e.forward(x.clone());
        (deepest + short + shortest + x).square().mean()
    });
}

fn fan_grads(fan: &Fan, batch: usize) -> GradientsParams {
    let loss = sum_of_branches(fan, true, batch, &flex());
    GradientsParams::from_grads(loss.backward(), fan)
}

fn window(
    mut sums: ReleaseAccumulator,
    mut fan: Fan,
    batches: Range<usize>,
) -> (ReleaseAccumulator, Fan) {
    for batch in batches {
        fan = sums.arm(fan);
        let grads = fan_grads(&fan, batch);
        sums.accumulate(&fan, grads);
    }
    (sums, fan)
}

/// The accumulator knows no pass yet.
#[test]
fn fan_out_in_a_window_that_goes_on_from_a_record() {
    let model = || seeded(&flex(), fan);
    let (plain, mut expected) = (model(), GradientsAccumulator::new());
    for batch in 0..3 {
        expected.accumulate(&plain, fan_grads(&plain, batch));
    }
    let (sums, begun) = window(ReleaseAccumulator::new(), model(), 0..1);
    let (record, fan) = (sums.to_record(&begun), model());
    let sums = ReleaseAccumulator::new().load_record(&fan, record).unwrap();
    let (mut sums, fan) = window(sums, fan, 1..3);
    let (found, expected) = (sums.grads(), expected.grads());
    assert_eq!(bits_of(&found, &fan), bits_of(&expected, &plain));
}

/// What is not plain Burn's in a window is in the report of its step.
#[test]
fn fan_out_in_a_window_that_is_not_plain() {
    let step = |mut sums: ReleaseAccumulator, fan, is_armed| {
        let mut optim = adamw().with_gradient_release();
        let mut grads = sums.grads();
        let mut fan: Fan = fan;
        if is_armed {
            fan = optim.arm_accumulated(LR, fan, grads);
            grads = fan_grads(&fan, 3);
        }
        drop(optim.step(LR, fan, grads));
        optim.last_step().unwrap().is_plain()
    };
    for is_armed in [true, false] {
        let model = seeded(&flex(), fan);
        let (sums, model) = window(ReleaseAccumulator::new(), model, 0..2);
        assert!(step(sums, model, is_armed), "passes that are alike");
        // Parameters that are new to the accumulator.
        let mut sums = ReleaseAccumulator::new();
        let model = sums.arm(seeded(&flex(), fan));
        let loss = fan_input(&model, 0, &flex()).square().mean();
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        sums.accumulate(&model, grads);
        let (sums, model) = window(sums, model, 1..3);
        assert!(!step(sums, model, is_armed), "a pass that is not plain");
    }
}

/// The only known model whose first step differs with [`FirstPass::Small`], and says so.
#[test]
fn a_small_first_pass_that_is_not_plain() {
    for device in devices() {
        for (name, optim) in BOTH {
            let what = format!("{name}, {device:?}");
            let loss = |fan: &Fan, step| sum_of_branches(fan, true, step, &device);
            let model = seeded(&device, fan);
            let (_, all_plain) = plain_run(model, &mut optim(), 0..STEPS, loss);

            let small = optim().with_gradient_release();
            let mut small = small.with_first_pass(FirstPass::Small);
            let model = release_step(seeded(&device, fan), &mut small, |fan| loss(fan, 0));
            let report = small.last_step().unwrap();
            assert!(!report.is_plain(), "{what}: {report:?}");
            // Adam divides a gradient by its own size, so that last bits of a small one show.
            let tolerance = if *name == "AdamW" { 2e-6 } else { 1e-6 };
            for (found, expected) in bits(&model).iter().zip(&all_plain[0]) {
                let distance = distance(from_ref(found), from_ref(expected));
                let is_close = distance <= tolerance;
                assert!(is_close, "{what}: {}, {distance:e}", found.0);
            }

            // From here on it is plain Burn that begins with these weights and states.
            let bytes = small.to_record().into_bytes().unwrap();
            let mut plain = optim().load_record(OptimizerRecord::from_bytes(bytes).unwrap());
            let (_, expected) = plain_run(model.clone(), &mut plain, 1..STEPS, loss);
            assert_ne!(
                expected.last(),
                all_plain.last(),
                "{what}: the first step was plain after all"
            );
            let (_, reports) = release_run(model, &mut small, 1..STEPS, loss, &expected, &what);
            assert_released(&reports, 0, &what);
            let is_plain = reports.iter().all(|report| report.is_plain());
            assert!(is_plain, "{what}: {reports:?}");
        }
    }
}

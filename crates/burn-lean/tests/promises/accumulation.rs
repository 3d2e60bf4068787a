//! Windows of micro-batches: the sums, and the weights, of Burn's accumulator.

use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::{Linear, LinearConfig};
use burn::optim::{GradientsAccumulator, GradientsParams, ModuleOptimizer};
use burn::tensor::Tensor;
use burn::tensor::activation::gelu;
use burn_lean::{
    FirstPass, Outcome, ReleaseAccumulator, ReleaseError, ReleaseOptimizer, WithGradientRelease,
};

use crate::harness::{Bits, LR, adamw, assert_bits, bits, flex, momentum, numbers, seeded};

const WINDOWS: usize = 8;

/// Two heads, so that a micro-batch can use one of them.
#[derive(Module, Debug)]
struct Net {
    body: Vec<Linear>,
    heads: [Linear; 2],
}

/// Which head a micro-batch uses.
type Heads = fn(usize) -> &'static [usize];

fn both(_: usize) -> &'static [usize] {
    &[0, 1]
}

impl Net {
    fn new() -> Self {
        seeded(&flex(), |device| {
            let linear = |inputs, outputs| LinearConfig::new(inputs, outputs).init(device);
            Self {
                body: vec![linear(5, 8), linear(8, 5)],
                heads: [linear(5, 3), linear(5, 3)],
            }
        })
    }

    fn loss(&self, batch: usize, heads: &[usize]) -> Tensor<1> {
        let x = numbers([4, 5], batch, &flex());
        let x = x.clone() + self.body[1].forward(gelu(self.body[0].forward(x)));
        let losses = heads.iter().map(|head| {
            let target = numbers([4, 3], batch + head, &flex());
            (self.heads[*head].forward(x.clone()) - target)
                .square()
                .mean()
        });
        losses.reduce(Tensor::add).expect("a head is used")
    }

    fn grads(&self, batch: usize, heads: &[usize]) -> GradientsParams {
        GradientsParams::from_grads(self.loss(batch, heads).backward(), self)
    }
}

/// The bits after each window of plain Burn.
fn plain_windows(size: usize, optim: &mut ModuleOptimizer, heads: Heads) -> Vec<Bits> {
    let mut model = Net::new();
    let mut sums = GradientsAccumulator::new();
    let mut run: Vec<Bits> = Vec::new();
    for window in 0..WINDOWS {
        for micro in 0..size {
            let grads = model.grads(window * size + micro, heads(micro));
            sums.accumulate(&model, grads);
        }
        model = optim.step(LR, model, sums.grads());
        let after = bits(&model);
        assert_ne!(Some(&after), run.last());
        run.push(after);
    }
    run
}

/// The same with gradient release, compared after each window.
fn assert_windows(size: usize, optim: &mut ReleaseOptimizer, heads: Heads, expected: &[Bits]) {
    let mut model = Net::new();
    let mut sums = ReleaseAccumulator::new();
    for (window, expected) in expected.iter().enumerate() {
        let before = bits(&model);
        for micro in 0..size {
            let is_last = micro + 1 == size;
            model = if is_last {
                optim.arm_accumulated(LR, model, sums.grads())
            } else {
                sums.arm(model)
            };
            let grads = model.grads(window * size + micro, heads(micro));
            if is_last {
                model = optim.step(LR, model, grads);
            } else {
                sums.accumulate(&model, grads);
                // A visitor would find the placeholders: the weights are in the slots until `step`.
                let now = bits(&model.clone().materialize());
                assert_bits(&now, &before, "a micro-batch steps nothing");
            }
        }
        assert_bits(&bits(&model), expected, &format!("after window {window}"));
    }
}

const OPTIMS: [fn() -> ModuleOptimizer; 2] = [adamw, momentum];

#[test]
fn windows_of_burn() {
    for size in [1, 2, 4] {
        for optim in OPTIMS {
            let expected = plain_windows(size, &mut optim(), both);
            for first_pass in [FirstPass::Auto, FirstPass::Small] {
                let release = optim().with_gradient_release();
                let mut release = release.with_first_pass(first_pass);
                assert_windows(size, &mut release, both, &expected);
                let report = release.last_step().unwrap();
                assert_eq!(report.count(Outcome::Released), 8, "{report:?}");
                assert!(report.is_plain(), "{report:?}");
            }
        }
    }
}

#[test]
fn a_parameter_used_in_some_micro_batches() {
    // Only in the last, only before the last, in turn, in none.
    let uses: [(Heads, usize); 5] = [
        (|micro| if micro == 3 { &[0, 1] } else { &[0] }, 8),
        (|micro| if micro == 3 { &[0] } else { &[0, 1] }, 6),
        (|micro| if micro % 2 == 0 { &[0] } else { &[1] }, 6),
        (|micro| if micro == 1 { &[1] } else { &[0] }, 6),
        (|_| &[1], 6),
    ];
    for (at, (heads, released)) in uses.into_iter().enumerate() {
        for optim in OPTIMS {
            let expected = plain_windows(4, &mut optim(), heads);
            let mut release = optim().with_gradient_release();
            assert_windows(4, &mut release, heads, &expected);
            let report = release.last_step().unwrap();
            let inside = report.count(Outcome::Released) + report.count(Outcome::ReleasedLate);
            assert_eq!(inside, released, "use {at}: {report:?}");
            let left = if at == 4 {
                Outcome::Unused
            } else {
                Outcome::Ordinary
            };
            assert_eq!(report.count(left), 8 - released, "use {at}: {report:?}");
        }
    }
}

/// The last micro-batch is armed with what Burn's accumulator has.
#[test]
fn sums_of_burn() {
    for optim in OPTIMS {
        let expected = plain_windows(4, &mut optim(), both);
        let (mut model, mut release) = (Net::new(), optim().with_gradient_release());
        let mut sums = GradientsAccumulator::new();
        for (window, expected) in expected.iter().enumerate() {
            for micro in 0..3 {
                sums.accumulate(&model, model.grads(window * 4 + micro, &[0, 1]));
            }
            model = release.arm_accumulated(LR, model, sums.grads());
            let grads = model.grads(window * 4 + 3, &[0, 1]);
            model = release.step(LR, model, grads);
            assert_bits(&bits(&model), expected, &format!("after window {window}"));
        }
    }
}

/// Some micro-batches are armed, and some have ordinary gradients.
#[test]
fn ordinary_gradients_among_the_micro_batches() {
    for armed in [
        [true, false, true],
        [false, true, false],
        [false, false, false],
    ] {
        let expected = plain_windows(4, &mut adamw(), both);
        let (mut model, mut release) = (Net::new(), adamw().with_gradient_release());
        let mut sums = ReleaseAccumulator::new();
        for (window, expected) in expected.iter().enumerate() {
            for (micro, armed) in armed.into_iter().enumerate() {
                if armed {
                    model = sums.arm(model);
                }
                let grads = model.grads(window * 4 + micro, &[0, 1]);
                sums.accumulate(&model, grads);
            }
            model = release.arm_accumulated(LR, model, sums.grads());
            let grads = model.grads(window * 4 + 3, &[0, 1]);
            model = release.step(LR, model, grads);
            assert_bits(
                &bits(&model),
                expected,
                &format!("{armed:?}, after window {window}"),
            );
        }
    }
}

/// The last window of an epoch may be cut short: the sums are stepped without another micro-batch.
#[test]
fn a_window_that_is_cut_short() {
    let expected = plain_windows(2, &mut adamw(), both);
    let (mut model, mut release) = (Net::new(), adamw().with_gradient_release());
    let mut sums = ReleaseAccumulator::new();
    for (window, expected) in expected.iter().enumerate() {
        for micro in 0..2 {
            model = sums.arm(model);
            let grads = model.grads(window * 2 + micro, &[0, 1]);
            sums.accumulate(&model, grads);
        }
        model = release.arm_accumulated(LR, model, sums.grads());
        model = release.step(LR, model, GradientsParams::new());
        assert_bits(&bits(&model), expected, &format!("after window {window}"));
        let report = release.last_step().unwrap();
        assert_eq!(report.count(Outcome::Ordinary), 8, "{report:?}");
    }
}

/// The same, with the sums as ordinary gradients.
#[test]
fn sums_as_ordinary_gradients() {
    let expected = plain_windows(2, &mut adamw(), both);
    let (mut model, mut release) = (Net::new(), adamw().with_gradient_release());
    let mut sums = ReleaseAccumulator::new();
    for (window, expected) in expected.iter().enumerate() {
        for micro in 0..2 {
            model = sums.arm(model);
            let grads = model.grads(window * 2 + micro, &[0, 1]);
            sums.accumulate(&model, grads);
        }
        model = match release.try_step(LR, model, sums.grads()) {
            Ok(model) => model,
            Err(refused) => panic!("in window {window}: {}", refused.error()),
        };
        assert_bits(&bits(&model), expected, &format!("after window {window}"));
    }
}

/// The bits of gradients, parameter by parameter.
fn bits_of(grads: &GradientsParams, model: &Net) -> Vec<(usize, Vec<u32>)> {
    struct Visitor<'a> {
        grads: &'a GradientsParams,
        bits: Vec<(usize, Vec<u32>)>,
    }
    impl ModuleVisitor for Visitor<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if let Some(grad) = self.grads.get::<D>(param.id) {
                let data = grad.into_data();
                self.bits.push((
                    self.bits.len(),
                    data.iter::<f32>().map(f32::to_bits).collect(),
                ));
            }
        }
    }
    let mut visitor = Visitor {
        grads,
        bits: Vec::new(),
    };
    model.visit(&mut visitor);
    visitor.bits
}

#[test]
fn the_sums_are_those_of_burn() {
    let mut model = Net::new();
    let (mut plain, mut sums) = (GradientsAccumulator::new(), ReleaseAccumulator::new());
    for micro in 0..3 {
        plain.accumulate(&model, model.grads(micro, &[0, 1]));
    }
    let expected = bits_of(&plain.grads(), &model);
    for micro in 0..3 {
        model = sums.arm(model);
        let grads = model.grads(micro, &[0, 1]);
        sums.accumulate(&model, grads);
    }
    let grads = sums.grads();
    assert_eq!(grads.len(), 8);
    assert_eq!(bits_of(&grads, &model), expected);
    assert!(sums.grads().is_empty(), "the window is over");
}

fn assert_error<T>(result: Result<T, ReleaseError>, is_expected: impl Fn(&ReleaseError) -> bool) {
    let error = result.err().expect("it is refused");
    assert!(is_expected(&error), "{error:?}");
}

/// A window of two whose end is compared with plain Burn's: a refusal has changed nothing.
fn finish(mut model: Net, mut sums: ReleaseAccumulator) {
    let expected = plain_windows(2, &mut adamw(), both);
    let mut release = adamw().with_gradient_release();
    model = release.arm_accumulated(LR, model, sums.grads());
    let grads = model.grads(1, &[0, 1]);
    model = release.step(LR, model, grads);
    assert_bits(&bits(&model), &expected[0], "after the refusal");
}

#[test]
fn a_micro_batch_has_to_be_ended() {
    let mut sums = ReleaseAccumulator::new();
    let model = sums.arm(Net::new());
    let is_begun = |added| {
        move |error: &ReleaseError| *error == ReleaseError::NotAccumulated { added, armed: 8 }
    };
    // Armed, and no backward has run: arming again is allowed, the sums are with the model.
    assert_error(sums.try_grads(), is_begun(0));
    let model = sums.arm(model);
    let grads = model.grads(0, &[0, 1]);
    assert_error(sums.try_grads(), is_begun(8));
    let refused = sums.try_arm(model).unwrap_err();
    assert!(is_begun(8)(refused.error()), "{refused:?}");
    let model = refused.into_model();
    sums.accumulate(&model, grads);
    finish(model, sums);
}

#[test]
fn gradients_have_to_be_asked_for() {
    let mut sums = ReleaseAccumulator::new();
    let model = sums.arm(Net::new());
    let grads = model.grads(0, &[0, 1]);
    let refused = sums
        .try_accumulate(&model, GradientsParams::new())
        .unwrap_err();
    let first = ReleaseError::Unclaimed {
        path: "body.0.weight".into(),
    };
    assert_eq!(*refused.error(), first);
    assert!(refused.into_given().1.is_empty());
    // Of all but one.
    let mut fewer = grads;
    let bias = model.heads[1].bias.as_ref().unwrap().id;
    let grad = fewer.remove::<1>(bias).unwrap();
    let refused = sums.try_accumulate(&model, fewer).unwrap_err();
    let last = ReleaseError::Unclaimed {
        path: "heads.1.bias".into(),
    };
    assert_eq!(*refused.error(), last);
    let ((), mut all) = refused.into_given();
    all.register(bias, grad);
    sums.accumulate(&model, all);
    finish(model, sums);
}

#[test]
fn another_model_is_refused() {
    let mut sums = ReleaseAccumulator::new();
    let model = sums.arm(Net::new());
    let copy = model.clone();
    let grads = model.grads(0, &[0, 1]);
    let is_other = |error: &ReleaseError| matches!(error, ReleaseError::WrongModel { .. });
    let is_copy = |error: &ReleaseError| matches!(error, ReleaseError::Copy { .. });

    let refused = sums.try_accumulate(&Net::new(), grads).unwrap_err();
    assert!(is_other(refused.error()), "{refused:?}");
    let refused = sums
        .try_accumulate(&copy, refused.into_given().1)
        .unwrap_err();
    assert!(is_copy(refused.error()), "{refused:?}");
    sums.accumulate(&model, refused.into_given().1);
    finish(model, sums);
}

#[test]
fn two_backward_passes_in_a_micro_batch_are_refused() {
    let mut sums = ReleaseAccumulator::new();
    let model = sums.arm(Net::new());
    let _first = model.grads(0, &[0, 1]);
    let second = model.grads(1, &[0, 1]);
    let refused = sums.try_accumulate(&model, second).unwrap_err();
    assert!(
        matches!(refused.error(), ReleaseError::AlreadyStepped { .. }),
        "{refused:?}"
    );
}

/// The same, with both forward passes before the first backward pass.
#[test]
fn two_forward_passes_and_then_two_backward_passes_are_refused() {
    let mut sums = ReleaseAccumulator::new();
    let model = sums.arm(Net::new());
    let [first, second] = [0, 1].map(|batch| model.loss(batch, &[0, 1]));
    let grads = GradientsParams::from_grads(first.backward(), &model);
    second_is_refused(second);
    sums.accumulate(&model, grads);
}

/// By Burn, whose tape has one node for a parameter in all forward passes of an arming.
fn second_is_refused(second: Tensor<1>) {
    let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| second.backward()));
    let panic = refused.map(|_| ()).unwrap_err();
    let text = panic.downcast::<String>().unwrap();
    assert!(text.contains("Combine losses before backward"), "{text}");
}

/// Two forward passes and then two backward passes, armed by an optimizer.
#[test]
fn two_forward_passes_and_then_two_backward_passes_of_a_step_are_refused() {
    let mut optim = adamw().with_gradient_release();
    let model = optim.arm(LR, Net::new());
    let [first, second] = [0, 1].map(|batch| model.loss(batch, &[0, 1]));
    let grads = GradientsParams::from_grads(first.backward(), &model);
    second_is_refused(second);
    optim.step(LR, model, grads);
}

/// A forward pass that nobody runs backward is no second one.
#[test]
fn a_forward_pass_without_backward_does_not_count() {
    let expected = plain_windows(2, &mut adamw(), both);
    let mut sums = ReleaseAccumulator::new();
    let model = sums.arm(Net::new());
    let [_unused, used] = [1, 0].map(|batch| model.loss(batch, &[0, 1]));
    let grads = GradientsParams::from_grads(used.backward(), &model);
    sums.accumulate(&model, grads);
    let mut release = adamw().with_gradient_release();
    let model = release.arm_accumulated(LR, model, sums.grads());
    let [_unused, used] = [0, 1].map(|batch| model.loss(batch, &[0, 1]));
    let grads = GradientsParams::from_grads(used.backward(), &model);
    let model = release.step(LR, model, grads);
    assert_bits(&bits(&model), &expected[0], "after the window");
}

#[test]
fn an_optimizer_cannot_arm_in_the_middle_of_a_micro_batch() {
    let mut sums = ReleaseAccumulator::new();
    let mut optim = adamw().with_gradient_release();
    let model = sums.arm(Net::new());
    let refused = optim.try_arm(LR, model).unwrap_err();
    assert!(
        matches!(refused.error(), ReleaseError::ArmedElsewhere { .. }),
        "{refused:?}"
    );
    let model = refused.into_model();
    let grads = model.grads(0, &[0, 1]);
    sums.accumulate(&model, grads);
    finish(model, sums);
}

#[test]
fn an_accumulator_cannot_arm_in_the_middle_of_a_step() {
    let mut sums = ReleaseAccumulator::new();
    let mut optim = adamw().with_gradient_release();
    let model = optim.arm(LR, Net::new());
    let refused = sums.try_arm(model).unwrap_err();
    assert!(
        matches!(refused.error(), ReleaseError::ArmedElsewhere { .. }),
        "{refused:?}"
    );
    let model = optim.disarm(refused.into_model());
    let model = sums.arm(model);
    let grads = model.grads(0, &[0, 1]);
    sums.accumulate(&model, grads);
    finish(model, sums);
}

/// Refused, `arm_accumulated` hands the sums back.
#[test]
fn sums_are_not_lost_by_a_refusal() {
    let mut plain = GradientsAccumulator::new();
    let model = Net::new();
    plain.accumulate(&model, model.grads(0, &[0, 1]));
    let sums = plain.grads();
    let before = bits_of(&sums, &model);

    let mut other = adamw().with_gradient_release();
    let model = other.arm(LR, model);
    let mut release = adamw().with_gradient_release();
    let refused = release.try_arm_accumulated(LR, model, sums).unwrap_err();
    assert!(
        matches!(refused.error(), ReleaseError::ArmedElsewhere { .. }),
        "{refused:?}"
    );
    let (model, sums) = refused.into_given();
    assert_eq!(bits_of(&sums, &model), before);

    let model = other.disarm(model);
    let model = release.arm_accumulated(LR, model, sums);
    let grads = model.grads(1, &[0, 1]);
    let model = release.step(LR, model, grads);
    let expected = plain_windows(2, &mut adamw(), both);
    assert_bits(&bits(&model), &expected[0], "after the refusal");
}

/// Disarmed or armed again before backward, the sums of the window are not lost.
#[test]
fn sums_stay_when_a_micro_batch_begins_again() {
    let mut sums = ReleaseAccumulator::new();
    let mut model = sums.arm(Net::new());
    let grads = model.grads(0, &[0, 1]);
    sums.accumulate(&model, grads);
    // Armed twice, without a backward in between, and ended without one.
    model = sums.arm(model);
    model = sums.arm(model);
    sums.accumulate(&model, GradientsParams::new());
    finish(model, sums);
}

#[test]
fn an_optimizer_that_arms_again_keeps_the_sums() {
    let mut sums = ReleaseAccumulator::new();
    let mut model = sums.arm(Net::new());
    let grads = model.grads(0, &[0, 1]);
    sums.accumulate(&model, grads);
    let mut release = adamw().with_gradient_release();
    model = release.arm_accumulated(LR / 3.0, model, sums.grads());
    // A new rate for the same step.
    model = release.arm(LR, model);
    let grads = model.grads(1, &[0, 1]);
    model = release.step(LR, model, grads);
    let expected = plain_windows(2, &mut adamw(), both);
    assert_bits(&bits(&model), &expected[0], "armed twice");
}

/// Nobody would ever step with these sums.
#[test]
fn disarming_does_not_lose_sums_in_silence() {
    let mut sums = ReleaseAccumulator::new();
    let mut model = sums.arm(Net::new());
    let grads = model.grads(0, &[0, 1]);
    sums.accumulate(&model, grads);
    let mut release = adamw().with_gradient_release();
    model = release.arm_accumulated(LR, model, sums.grads());
    assert!(release.try_disarm(model).is_err(), "the sums are gone");
}

/// The same accumulator and model go on after windows of different sizes.
#[test]
fn windows_of_changing_size() {
    let sizes = [2, 1, 4, 3, 2];
    let (mut model, mut plain) = (Net::new(), adamw());
    let mut sums = GradientsAccumulator::new();
    let mut expected = Vec::new();
    let mut batch = 0;
    for size in sizes {
        for _ in 0..size {
            sums.accumulate(&model, model.grads(batch, &[0, 1]));
            batch += 1;
        }
        model = plain.step(LR, model, sums.grads());
        expected.push(bits(&model));
    }

    let (mut model, mut release) = (Net::new(), adamw().with_gradient_release());
    let mut sums = ReleaseAccumulator::new();
    let mut batch = 0;
    for (size, expected) in sizes.into_iter().zip(&expected) {
        for _ in 1..size {
            model = sums.arm(model);
            let grads = model.grads(batch, &[0, 1]);
            sums.accumulate(&model, grads);
            batch += 1;
        }
        model = release.arm_accumulated(LR, model, sums.grads());
        let grads = model.grads(batch, &[0, 1]);
        batch += 1;
        model = release.step(LR, model, grads);
        assert_bits(
            &bits(&model),
            expected,
            &format!("after a window of {size}"),
        );
    }
}

//! Windows of micro-batches: the sums, and the weights, of Burn's accumulator.

use crate::harness::FIRST_PASSES;
use crate::harness::prelude::*;

const WINDOWS: usize = 5;
const PARAMS: usize = 8;

/// Two heads, so that a micro-batch can use one of them.
#[derive(Module, Debug)]
struct Net {
    body: Vec<Linear>,
    heads: [Linear; 2],
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

    fn grads_with(&self, batch: usize, heads: &[usize]) -> GradientsParams {
        GradientsParams::from_grads(self.loss(batch, heads).backward(), self)
    }

    fn grads(&self, batch: usize) -> GradientsParams {
        self.grads_with(batch, &[0, 1])
    }
}

/// What ends a window.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    /// An armed micro-batch.
    Armed,
    /// The model is armed with the sums of all micro-batches, and none follows: an epoch was over.
    CutShort,
    /// The sums of all micro-batches are given to `step`, as ordinary gradients.
    Ordinary,
}

/// A way to accumulate. `micro` counts the micro-batches of a window.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    size: fn(window: usize) -> usize,
    /// The heads that a micro-batch uses.
    heads: fn(micro: usize) -> &'static [usize],
    /// Whether a micro-batch before the end is armed, rather than ordinary.
    is_armed: fn(micro: usize) -> bool,
    end: End,
    /// Number of parameters that the last window's end steps inside backward.
    inside: usize,
    /// What happens to the others.
    left: Outcome,
}

const ALL_ARMED: Case = Case {
    name: "four armed",
    size: |_| 4,
    heads: |_| &[0, 1],
    is_armed: |_| true,
    end: End::Armed,
    inside: PARAMS,
    left: Outcome::Ordinary,
};

const CASES: &[Case] = &[
    ALL_ARMED,
    Case {
        name: "windows of changing size",
        size: |window| [2, 1, 4, 3][window % 4],
        ..ALL_ARMED
    },
    Case {
        name: "one ordinary micro-batch among armed ones",
        is_armed: |micro| micro != 1,
        ..ALL_ARMED
    },
    Case {
        name: "one armed micro-batch among ordinary ones",
        is_armed: |micro| micro == 1,
        ..ALL_ARMED
    },
    Case {
        name: "only the last is armed",
        is_armed: |_| false,
        ..ALL_ARMED
    },
    Case {
        name: "cut short",
        size: |_| 2,
        end: End::CutShort,
        inside: 0,
        ..ALL_ARMED
    },
    Case {
        name: "sums as ordinary gradients",
        size: |_| 2,
        end: End::Ordinary,
        inside: 0,
        ..ALL_ARMED
    },
    Case {
        name: "a head used in the last micro-batch alone",
        heads: |micro| if micro == 3 { &[0, 1] } else { &[0] },
        ..ALL_ARMED
    },
    Case {
        name: "a head used before the last alone",
        heads: |micro| if micro == 3 { &[0] } else { &[0, 1] },
        inside: 6,
        ..ALL_ARMED
    },
    Case {
        name: "heads in turn",
        heads: |micro| if micro % 2 == 0 { &[0] } else { &[1] },
        inside: 6,
        ..ALL_ARMED
    },
    Case {
        name: "a head used once, not in the last",
        heads: |micro| if micro == 1 { &[1] } else { &[0] },
        inside: 6,
        ..ALL_ARMED
    },
    Case {
        name: "a head that is never used",
        heads: |_| &[1],
        inside: 6,
        left: Outcome::Unused,
        ..ALL_ARMED
    },
];

/// The bits after each window of plain Burn.
fn plain_windows(case: &Case, optim: &mut ModuleOptimizer) -> Vec<Bits> {
    let mut model = Net::new();
    let mut sums = GradientsAccumulator::new();
    let mut run: Vec<Bits> = Vec::new();
    let mut batches = 0..;
    for window in 0..WINDOWS {
        for micro in 0..(case.size)(window) {
            let batch = batches.next().unwrap();
            let grads = model.grads_with(batch, (case.heads)(micro));
            sums.accumulate(&model, grads);
        }
        model = optim.step(LR, model, sums.grads());
        let after = bits(&model);
        assert_ne!(Some(&after), run.last(), "{}", case.name);
        run.push(after);
    }
    run
}

/// The same with gradient release, compared after each window. Returns what the last one did.
fn release_windows(
    case: &Case,
    optim: ModuleOptimizer,
    first_pass: FirstPass,
    expected: &[Bits],
    what: &str,
) -> StepReport {
    let mut optim = optim.with_gradient_release().with_first_pass(first_pass);
    let (mut model, mut sums) = (Net::new(), ReleaseAccumulator::new());
    let mut batches = 0..;
    for (window, expected) in expected.iter().enumerate() {
        let before = bits(&model);
        let size = (case.size)(window);
        let summed = size - usize::from(case.end == End::Armed);
        for micro in 0..summed {
            if (case.is_armed)(micro) {
                model = sums.arm(model);
            }
            let batch = batches.next().unwrap();
            let grads = model.grads_with(batch, (case.heads)(micro));
            sums.accumulate(&model, grads);
            // A visitor would find the placeholders: the weights are in the slots until `step`.
            let now = bits(&model.clone().materialize());
            assert_bits(
                &now,
                &before,
                &format!("{what}: a micro-batch steps nothing"),
            );
        }
        if case.end != End::Ordinary {
            model = optim.arm_accumulated(LR, model, sums.grads());
        }
        let grads = match case.end {
            End::Ordinary => sums.grads(),
            End::CutShort => GradientsParams::new(),
            End::Armed => {
                let batch = batches.next().unwrap();
                model.grads_with(batch, (case.heads)(summed))
            }
        };
        model = optim.step(LR, model, grads);
        assert_bits(&bits(&model), expected, &format!("{what}, window {window}"));
    }
    optim.last_step().unwrap().clone()
}

#[test]
fn windows_of_burn() {
    for case in CASES {
        for (name, optim) in BOTH {
            let expected = plain_windows(case, &mut optim());
            for first_pass in FIRST_PASSES.iter().copied() {
                let what = format!("{}, {name}, {first_pass:?}", case.name);
                let report = release_windows(case, optim(), first_pass, &expected, &what);
                let inside = report.count(Outcome::Released) + report.count(Outcome::ReleasedLate);
                assert_eq!(inside, case.inside, "{what}: {report:?}");
                let left = PARAMS - case.inside;
                assert_eq!(report.outcomes().count(), PARAMS, "{what}: {report:?}");
                if left > 0 {
                    assert_eq!(report.count(case.left), left, "{what}: {report:?}");
                } else {
                    assert!(report.is_plain(), "{what}: {report:?}");
                }
            }
        }
    }
}

/// The bits of gradients, in the order of the parameters.
pub(crate) fn bits_of<M: Module>(grads: &GradientsParams, model: &M) -> Vec<Option<Vec<u32>>> {
    struct Visitor<'a> {
        grads: &'a GradientsParams,
        bits: Vec<Option<Vec<u32>>>,
    }
    impl ModuleVisitor for Visitor<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let grad = self.grads.get::<D>(param.id);
            self.bits.push(grad.map(crate::small::bits_of));
        }
    }
    let bits = Vec::new();
    let mut visitor = Visitor { grads, bits };
    model.visit(&mut visitor);
    visitor.bits
}

/// A sum of Burn's accumulator.
fn sums_of_burn(model: &Net, batches: usize) -> GradientsParams {
    let mut sums = GradientsAccumulator::new();
    for batch in 0..batches {
        sums.accumulate(model, model.grads(batch));
    }
    sums.grads()
}

/// What is not trained has no sum: running statistics, and what is frozen.
#[test]
fn a_record_has_sums_of_what_is_trained_alone() {
    type Normed = (Linear, BatchNorm);
    let make = || -> Normed {
        seeded(&flex(), |device| {
            let linear = LinearConfig::new(5, 3).init(device);
            (linear, BatchNormConfig::new(3).init(device))
        })
    };
    let mut sums = ReleaseAccumulator::new();
    let (linear, norm) = sums.arm(make());
    let out = norm.forward(linear.forward(numbers([4, 5], 0, &flex())));
    let model: Normed = (linear, norm);
    let grads =
        GradientsParams::from_grads((out * numbers([4, 3], 1, &flex())).sum().backward(), &model);
    sums.accumulate(&model, grads);
    let weight = |sums: &mut ReleaseAccumulator| {
        let grads = sums.grads();
        (
            grads.len(),
            crate::small::bits_of(grads.get::<2>(model.0.weight.id).unwrap()),
        )
    };
    let (record, cast) = (
        sums.to_record(&model),
        sums.to_record(&model).cast_to_module_dtype(),
    );
    let frozen = sums.to_record(&model);
    let expected = weight(&mut sums);
    assert_eq!(expected.0, 4);
    for record in [record, cast] {
        let mut loaded = sums.load_record(&model, record).unwrap();
        assert_eq!(weight(&mut loaded), expected);
        sums = loaded;
    }
    assert!(sums.load_record(&model.no_grad(), frozen).is_err());
}

/// An armed micro-batch.
fn micro_batch(model: Net, sums: &mut ReleaseAccumulator, batch: usize) -> Net {
    let model = sums.arm(model);
    let grads = model.grads(batch);
    sums.accumulate(&model, grads);
    model
}

/// Ends a window of two, whose first micro-batch is in the sums.
fn assert_goes_on(model: Net, sums: GradientsParams) {
    let mut optim = adamw().with_gradient_release();
    let model = optim.arm_accumulated(LR, model, sums);
    let grads = model.grads(1);
    assert_window_of_two(&optim.step(LR, model, grads));
}

fn assert_window_of_two(model: &Net) {
    let plain = Net::new();
    let grads = sums_of_burn(&plain, 2);
    let plain = adamw().step(LR, plain, grads);
    assert_bits(&bits(model), &bits(&plain), "after the window");
}

/// Ended with a part of the model, so that the sums of the rest are not the accumulator's.
#[test]
fn sums_that_are_left_in_the_model_are_not_left_out_of_a_record() {
    let (mut model, mut sums) = (Net::new(), ReleaseAccumulator::new());
    model = sums.arm(model);
    let grads = model.grads(0);
    sums.accumulate(&model, grads);
    model = sums.arm(model);
    sums.accumulate(&model.body, GradientsParams::new());
    let error = sums.try_to_record(&model).unwrap_err();
    assert!(matches!(error, ReleaseError::WrongModel { .. }), "{error}");
    model = sums.arm(model);
    sums.accumulate(&model, GradientsParams::new());
    assert_eq!(sums.to_record(&model).len(), PARAMS);
}

/// The sums of a window are saved after each of its micro-batches, and go on in a model made anew.
#[test]
fn a_window_goes_on_from_a_record() {
    let saved = |record: ModuleRecord| ModuleRecord::from_bytes(record.into_bytes().unwrap());
    let (mut model, mut sums) = (Net::new(), ReleaseAccumulator::new());
    assert!(sums.to_record(&model).is_empty());
    for batch in 0..3 {
        let armed = sums.arm(model);
        let is_begun = ReleaseError::NotAccumulated {
            added: 0,
            armed: PARAMS,
        };
        assert_eq!(sums.try_to_record(&armed).unwrap_err(), is_begun);
        let grads = armed.grads(batch);
        sums.accumulate(&armed, grads);
        let record = saved(sums.to_record(&armed)).unwrap();
        assert_eq!(record.len(), PARAMS);
        model = Net::new().load_record(saved(armed.clone().into_record()).unwrap());
        // What it has is replaced, in mid-micro-batch too.
        drop(sums.arm(armed));
        sums = sums.load_record(&model, record).unwrap();
    }
    let other = Vec::from([Param::from_tensor(Tensor::<1>::zeros([3], &flex()))]);
    let error = sums.try_to_record(&other).unwrap_err();
    assert!(matches!(error, ReleaseError::WrongModel { .. }), "{error}");
    let record = sums.to_record(&model);
    assert!(
        ReleaseAccumulator::new()
            .load_record(&other, record)
            .is_err()
    );

    let grads = sums.grads();
    let expected = sums_of_burn(&model, 3);
    assert_eq!(bits_of(&grads, &model), bits_of(&expected, &model));
    let mut optim = adamw().with_gradient_release();
    let model = optim.arm_accumulated(LR, model, grads);
    let grads = model.grads(3);
    let model = optim.step(LR, model, grads);
    let plain = Net::new();
    let grads = sums_of_burn(&plain, 4);
    assert_bits(
        &bits(&model),
        &bits(&adamw().step(LR, plain, grads)),
        "resumed",
    );
}

#[test]
fn gradients_have_to_be_asked_for() {
    let mut sums = ReleaseAccumulator::new();
    let model = sums.arm(Net::new());
    let grads = model.grads(0);
    let unclaimed = |path: &str| ReleaseError::Unclaimed { path: path.into() };
    let none = GradientsParams::new();
    let refused = sums.try_accumulate(&model, none).unwrap_err();
    assert_eq!(*refused.error(), unclaimed("body.0.weight"));
    assert!(refused.into_given().1.is_empty());
    // Of all but one.
    let mut fewer = grads;
    let bias = model.heads[1].bias.as_ref().unwrap().id;
    let grad = fewer.remove::<1>(bias).unwrap();
    let refused = sums.try_accumulate(&model, fewer).unwrap_err();
    assert_eq!(*refused.error(), unclaimed("heads.1.bias"));
    let ((), mut all) = refused.into_given();
    all.register(bias, grad);
    sums.accumulate(&model, all);
    assert_goes_on(model, sums.grads());
}

#[test]
fn sums_stay_with_the_model_that_was_armed() {
    let mut sums = ReleaseAccumulator::new();
    let model = micro_batch(Net::new(), &mut sums, 0);
    // Armed twice, without a backward in between, and ended without one.
    let model = sums.arm(model);
    let model = sums.arm(model);
    let others = [model.clone(), model.clone().fork(&flex()), Net::new()];
    for other in others.clone() {
        let refused = sums.try_arm(other).unwrap_err();
        assert_error!(refused.error(), Copy | WrongModel);
    }
    sums.accumulate(&model, GradientsParams::new());
    let mut optim = adamw().with_gradient_release();
    let model = optim.arm_accumulated(LR, model, sums.grads());
    for other in others {
        let refused = optim.try_arm(LR, other).unwrap_err();
        assert_error!(refused.error(), Copy | WrongModel);
    }
    let grads = model.grads(1);
    assert_window_of_two(&optim.step(LR, model, grads));
}

/// A head is frozen, or frozen and unfrozen, before a micro-batch of a window of three.
#[test]
fn frozen_within_a_window() {
    let set = |mut model: Net, is_active| {
        let [head, other] = model.heads;
        model.heads = [head.set_require_grad(is_active), other];
        model
    };
    for (frozen, unfrozen) in [(1, 3), (2, 3), (1, 2), (0, 1)] {
        let change = |model, micro| match micro {
            _ if micro == frozen => set(model, false),
            _ if micro == unfrozen => set(model, true),
            _ => model,
        };
        let (mut plain, mut plain_sums) = (Net::new(), GradientsAccumulator::new());
        let (mut model, mut sums) = (Net::new(), ReleaseAccumulator::new());
        let (mut plain_optim, mut optim) = (adamw(), adamw().with_gradient_release());
        for window in 0..2 {
            for micro in 0..3 {
                let batch = 3 * window + micro;
                plain = change(plain, micro);
                plain_sums.accumulate(&plain, plain.grads(batch));
                model = change(model, micro);
                if micro < 2 {
                    model = micro_batch(model, &mut sums, batch);
                }
            }
            plain = plain_optim.step(LR, plain, plain_sums.grads());
            model = optim.arm_accumulated(LR, model, sums.grads());
            let grads = model.grads(3 * window + 2);
            model = optim.step(LR, model, grads);
            let what = format!("frozen before {frozen}, until {unfrozen}, window {window}");
            assert_bits(&bits(&model), &bits(&plain), &what);
            (plain, model) = (set(plain, true), set(model, true));
        }
    }
}

#[test]
fn two_backward_passes_in_a_micro_batch_are_refused() {
    let mut sums = ReleaseAccumulator::new();
    let model = sums.arm(Net::new());
    let _first = model.grads(0);
    let second = model.grads(1);
    let refused = sums.try_accumulate(&model, second).unwrap_err();
    assert_error!(refused.error(), AccumulatedTwice, "begin the window anew");
    let refused = sums.try_arm(model).unwrap_err();
    assert_error!(refused.error(), NotAccumulated, "begin the window anew");
    sums = ReleaseAccumulator::new();
    let model = micro_batch(refused.into_model(), &mut sums, 0);
    assert_goes_on(model, sums.grads());
}

/// Refused, `arm_accumulated` hands the sums back.
#[test]
fn sums_are_not_lost_by_a_refusal() {
    let model = Net::new();
    let sums = sums_of_burn(&model, 1);
    let before = bits_of(&sums, &model);
    let mut other = adamw().with_gradient_release();
    let model = other.arm(LR, model);
    let mut optim = adamw().with_gradient_release();
    let refused = optim.try_arm_accumulated(LR, model, sums).unwrap_err();
    assert_error!(
        refused.error(),
        ArmedElsewhere,
        "`disarm` the other step first"
    );
    assert!(!optim.is_armed());
    let (model, sums) = refused.into_given();
    assert_eq!(bits_of(&sums, &model), before);
    assert_goes_on(other.disarm(model), sums);
}

/// The window of one model is over before that of the other begins, whose loss goes through both.
#[test]
fn one_accumulator_for_two_models_in_turns() {
    let sgd = || SgdConfig::new().init();
    let make = || (small(), numbered_from(small(), 70));
    let grads_of_both = |first: &Small, second: &Small| {
        let x = numbers([3, 4], 2, &flex());
        let loss = first.forward(second.forward(x)).square().mean();
        GradientsParams::from_grads(loss.backward(), second)
    };
    let (first, second) = make();
    let of_first = grads_of(&first, 1);
    let of_second = grads_of_both(&first, &second);
    let expected = bits(&sgd().step(LR, first, of_first));
    let expected_second = bits(&sgd().step(LR, second, of_second));

    type Way = fn(Small, &mut ReleaseOptimizer, GradientsParams) -> Small;
    let ways: [Way; 2] = [
        |model, optim, sums| optim.step(LR, model, sums),
        |model, optim, sums| {
            let model = optim.arm_accumulated(LR, model, sums);
            optim.step(LR, model, GradientsParams::new())
        },
    ];
    for way in ways {
        for is_within in [false, true] {
            let (first, second) = make();
            let mut sums = ReleaseAccumulator::new();
            let first = sums.arm(first);
            let grads = grads_of(&first, 1);
            sums.accumulate(&first, grads);
            let of_first = sums.grads();
            let second = sums.arm(second);
            let of_second = grads_of_both(&first, &second);
            let mut optim = sgd().with_gradient_release();
            // While the second is armed, or after its micro-batch.
            let first = if is_within {
                let first = way(first, &mut optim, of_first);
                sums.accumulate(&second, of_second);
                first
            } else {
                sums.accumulate(&second, of_second);
                way(first, &mut optim, of_first)
            };
            let mut optim = sgd().with_gradient_release();
            let second = optim.step(LR, second, sums.grads());
            assert_bits(&bits(&first), &expected, "the first");
            assert_bits(&bits(&second), &expected_second, "the second");
        }
    }

    // Within one window, the second takes the place of the first.
    let (first, second) = make();
    let mut sums = ReleaseAccumulator::new();
    let first = sums.arm(first);
    let grads = grads_of(&first, 1);
    sums.accumulate(&first, grads);
    let _second = sums.arm(second);
    let grads = grads_of(&first, 1);
    let refused = sums.try_accumulate(&first, grads).unwrap_err();
    assert_error!(refused.error(), Copy, "has armed another");
}

//! Windows of micro-batches: the sums, and the weights, of Burn's accumulator.

use crate::harness::prelude::*;

const WINDOWS: usize = 4;
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

    fn loss_of(&self, batch: usize, heads: &[usize]) -> Tensor<1> {
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

    fn loss(&self, batch: usize) -> Tensor<1> {
        self.loss_of(batch, &[0, 1])
    }

    fn grads_of(&self, batch: usize, heads: &[usize]) -> GradientsParams {
        GradientsParams::from_grads(self.loss_of(batch, heads).backward(), self)
    }

    fn grads(&self, batch: usize) -> GradientsParams {
        self.grads_of(batch, &[0, 1])
    }
}

/// A way to accumulate; `edges::sequences` walks through others. `micro` counts the micro-batches of a window.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    size: fn(window: usize) -> usize,
    /// The heads that a micro-batch uses.
    heads: fn(micro: usize) -> &'static [usize],
    /// The sums are taken at the end, and given to `step`, in place of `backward` of the last micro-batch.
    is_taken: bool,
    /// Number of parameters that the last window's end steps inside backward.
    inside: usize,
    /// What happens to the others.
    left: Outcome,
}

const FOUR: Case = Case {
    name: "four",
    size: |_| 4,
    heads: |_| &[0, 1],
    is_taken: false,
    inside: PARAMS,
    left: Outcome::AtEnd,
};

const CASES: &[Case] = &[
    Case {
        name: "windows of changing size",
        size: |window| [2, 1, 4, 3][window % 4],
        ..FOUR
    },
    Case {
        name: "taken",
        is_taken: true,
        inside: 0,
        ..FOUR
    },
    Case {
        name: "a head used in the last micro-batch alone",
        heads: |micro| if micro == 3 { &[0, 1] } else { &[0] },
        ..FOUR
    },
    Case {
        name: "a head used before the last alone",
        heads: |micro| if micro == 3 { &[0] } else { &[0, 1] },
        inside: 6,
        ..FOUR
    },
    Case {
        name: "heads in turn",
        heads: |micro| if micro % 2 == 0 { &[0] } else { &[1] },
        inside: 6,
        ..FOUR
    },
    Case {
        name: "a head that is never used",
        heads: |_| &[1],
        inside: 6,
        left: Outcome::Unused,
        ..FOUR
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
            let grads = model.grads_of(batches.next().unwrap(), (case.heads)(micro));
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
    expected: &[Bits],
    what: &str,
) -> StepReport {
    let mut optim = optim.with_gradient_release();
    let mut model = Net::new();
    let mut batches = 0..;
    for (window, expected) in expected.iter().enumerate() {
        let before = bits(&model);
        let last = (case.size)(window) - usize::from(!case.is_taken);
        let mut loss =
            |model: &Net, micro| model.loss_of(batches.next().unwrap(), (case.heads)(micro));
        for micro in 0..last {
            optim.accumulate(loss(&model, micro), &model);
            assert_bits(&bits(&model), &before, what);
        }
        model = match case.is_taken {
            true => {
                let sums = optim.take_sums(&model);
                optim.step(LR, model, sums)
            }
            false => optim.backward(LR, loss(&model, last), model),
        };
        assert!(!optim.has_sums(), "{what}");
        assert_bits(&bits(&model), expected, &format!("{what}, window {window}"));
    }
    optim.last_step().unwrap().clone()
}

#[test]
fn windows_of_burn() {
    for case in CASES {
        for (name, optim) in BOTH {
            let expected = plain_windows(case, &mut optim());
            let what = format!("{}, {name}", case.name);
            let report = release_windows(case, optim(), &expected, &what);
            let inside = report.count(Outcome::Released);
            assert_eq!(inside, case.inside, "{what}: {report:?}");
            let left = report.count(case.left);
            assert_eq!(left, PARAMS - case.inside, "{what}: {report:?}");
            let is_in_place = case.left == Outcome::Unused || report.in_place() == PARAMS;
            assert!(is_in_place, "{what}: {report:?}");
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
fn sums_of_burn(model: &Net, batches: &[usize]) -> GradientsParams {
    let mut sums = GradientsAccumulator::new();
    for batch in batches {
        sums.accumulate(model, model.grads(*batch));
    }
    sums.grads()
}

/// An optimizer and a model, amid a window of these batches.
fn amid(batches: &[usize]) -> (ReleaseOptimizer, Net) {
    let (mut optim, model) = (adamw().with_gradient_release(), Net::new());
    for batch in batches {
        optim.accumulate(model.loss(*batch), &model);
    }
    (optim, model)
}

/// Ends the window, of which plain Burn has had these batches.
fn assert_ends(mut optim: ReleaseOptimizer, model: Net, batches: &[usize]) {
    let plain = Net::new();
    let grads = sums_of_burn(&plain, batches);
    let plain = adamw().step(LR, plain, grads);
    let loss = model.loss(*batches.last().unwrap());
    let model = optim.backward(LR, loss, model);
    assert_bits(&bits(&model), &bits(&plain), "after the window");
}

/// What is not trained has no sum: running statistics, and what is frozen.
#[test]
fn a_record_has_sums_of_what_is_trained_alone() {
    let model: (Linear, BatchNorm) = seeded(&flex(), |device| {
        let linear = LinearConfig::new(5, 3).init(device);
        (linear, BatchNormConfig::new(3).init(device))
    });
    let mut optim = adamw().with_gradient_release();
    let out = model
        .1
        .forward(model.0.forward(numbers([4, 5], 0, &flex())));
    optim.accumulate((out * numbers([4, 3], 1, &flex())).sum(), &model);
    let record = || optim.sums_to_record(&model);
    let (records, frozen) = ([record(), record().cast_to_module_dtype()], record());
    let expected = optim.take_sums(&model);
    assert_eq!(expected.len(), 4);
    for record in records {
        optim.load_sums(&model, record).unwrap();
        let found = optim.take_sums(&model);
        assert_eq!(bits_of(&found, &model), bits_of(&expected, &model));
    }
    assert!(optim.load_sums(&model.no_grad(), frozen).is_err());
    assert!(!optim.has_sums());
}

/// The sums of a window are saved after each of its micro-batches, and go on in a model made anew,
/// also in an optimizer that has sums of its own, which they replace.
#[test]
fn a_window_goes_on_from_a_record() {
    let saved = |record: ModuleRecord| ModuleRecord::from_bytes(record.into_bytes().unwrap());
    let (mut optim, mut model) = amid(&[]);
    assert!(optim.sums_to_record(&model).is_empty());
    for batch in 0..3 {
        optim.accumulate(model.loss(batch), &model);
        let record = saved(optim.sums_to_record(&model)).unwrap();
        assert_eq!(record.len(), PARAMS);
        model = Net::new().load_record(saved(model.into_record()).unwrap());
        optim = adamw().with_gradient_release();
        optim.accumulate(model.loss(7), &model);
        optim.load_sums(&model, record).unwrap();
    }
    let other = Vec::from([Param::from_tensor(Tensor::<1>::zeros([3], &flex()))]);
    let error = optim.try_sums_to_record(&other).unwrap_err();
    assert!(matches!(error, ReleaseError::WrongModel { .. }), "{error}");
    let record = optim.sums_to_record(&model);
    assert!(optim.load_sums(&other, record).is_err());
    assert_ends(optim, model, &[0, 1, 2, 3]);
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
        let mut model = Net::new();
        let (mut plain_optim, mut optim) = (adamw(), adamw().with_gradient_release());
        for window in 0..2 {
            for micro in 0..3 {
                let batch = 3 * window + micro;
                plain = change(plain, micro);
                plain_sums.accumulate(&plain, plain.grads(batch));
                model = change(model, micro);
                let loss = model.loss(batch);
                if micro < 2 {
                    optim.accumulate(loss, &model);
                } else {
                    model = optim.backward(LR, loss, model);
                }
            }
            plain = plain_optim.step(LR, plain, plain_sums.grads());
            let what = format!("frozen before {frozen}, until {unfrozen}, window {window}");
            assert_bits(&bits(&model), &bits(&plain), &what);
            (plain, model) = (set(plain, true), set(model, true));
        }
    }
}

/// A refused call gives the loss or the gradients back, and the window goes on. A copy has the
/// parameters of its model, as in plain Burn.
#[test]
fn a_refused_call_loses_no_sum() {
    let (mut optim, model) = amid(&[0]);
    let other = Net::new();
    let refused = optim.try_accumulate(other.loss(1), &other).unwrap_err();
    assert_error!(refused.error(), WrongModel, "`take_sums`");
    let (_, loss) = refused.into_given();
    let refused = optim.try_backward(LR, loss.unwrap(), other).unwrap_err();
    assert_error!(refused.error(), WrongModel);
    let (other, loss) = refused.into_given();
    assert!(loss.is_some());
    let grads = other.grads(1);
    let refused = optim.try_step(LR, other, grads).unwrap_err();
    assert_error!(refused.error(), WrongModel);
    let (other, grads) = refused.into_given();
    assert_eq!(grads.len(), PARAMS);
    // The loss of another model, which backward alone can tell.
    let refused = optim.try_accumulate(other.loss(1), &model).unwrap_err();
    assert_error!(refused.error(), NotInGraph);
    let refused = optim.try_backward(LR, other.loss(1), model).unwrap_err();
    assert_error!(refused.error(), NotInGraph);
    let model = refused.into_model();

    let copy = model.clone();
    optim.accumulate(copy.loss(1), &copy);
    let batches = [0, 1, 2];
    let expected = bits_of(&sums_of_burn(&model, &batches[..2]), &model);
    let record = optim.sums_to_record(&model);
    assert_eq!(bits_of(&optim.take_sums(&model), &model), expected);
    optim.load_sums(&model, record).unwrap();
    assert_ends(optim, model, &batches);

    // A window whose model is lost ends with any model.
    let (mut optim, _) = amid(&[0]);
    assert!(optim.take_sums(&other).is_empty() && !optim.has_sums());
    assert_ends(optim, Net::new(), &[1]);
}

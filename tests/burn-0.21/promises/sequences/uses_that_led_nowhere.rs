//! Uses that lead to no loss, and the step after. On the processor alone: nothing in them depends
//! on the device.

use super::Call;
use crate::harness::prelude::*;

/// Which graphs Burn merges and forgets is decided by the order of a hash set, so each case is run
/// often.
const RUNS: usize = 25;

/// Three weights, of which each loss has one, and uses that lead to no loss.
#[derive(Module, Debug)]
struct InTurn<B: Backend> {
    a: Param<Tensor<B, 2>>,
    b: Param<Tensor<B, 2>>,
    c: Param<Tensor<B, 2>>,
}

impl<B: AutodiffBackend> InTurn<B> {
    fn new() -> Self {
        let device = B::Device::default();
        let [a, b, c] = [1, 2, 3].map(|number| {
            let weight: Tensor<B, 2> = noise(number, [4, 4], &device);
            Param::initialized(ParamId::from(number), weight.require_grad())
        });
        Self { a, b, c }
    }

    fn loss(&self, step: u64) -> Tensor<B, 1> {
        let x = noise::<B, 2>(step, [4, 4], &B::Device::default());
        let (a, b, c) = (self.a.val(), self.b.val(), self.c.val());
        if step == 0 {
            let _metric = x.clone().matmul(b).tanh().matmul(c).sum();
            a.matmul(x).square().mean()
        } else {
            let live = b.tanh();
            let _metric = (live.clone() * a + c).sum();
            live.matmul(x).square().mean()
        }
    }

    /// A loss over the first weight, and results over all of them that lead to none.
    fn loss_and_others(&self) -> (Tensor<B, 1>, [Tensor<B, 2>; 2]) {
        let x = noise::<B, 2>(0, [4, 4], &B::Device::default());
        let a = self.a.val();
        let first = (a.clone().matmul(self.a.val()) + self.c.val()).tanh();
        let second = a.clone().matmul(self.b.val()).tanh();
        (a.tanh().matmul(x).square().mean(), [first, second])
    }
}

/// Plain Burn's weights after these steps.
fn plain(steps: &[u64]) -> Weights {
    let mut optim = SgdConfig::new().init();
    let step = |model: InTurn<P>, step: &u64| {
        let loss = model.loss(*step);
        ordinary_step(RATE, model, &mut optim, loss)
    };
    Weights::of(&steps.iter().fold(InTurn::new(), step))
}

type Optim = ReleaseOptimizer<Sgd<Flex>, InTurn<R>, R>;

/// Runs each case often, without recomputing and with: the weights are these.
fn same<C: Copy + std::fmt::Debug>(
    expected: &Weights,
    cases: impl IntoIterator<Item = C>,
    run: impl Fn(&mut Optim, C) -> InTurn<R>,
) {
    for case in cases {
        for policy in [Recompute::None, Recompute::Automatic] {
            for number in 0..RUNS {
                let optim = SgdConfig::new().init().with_gradient_release();
                let model = run(&mut optim.with_recompute(policy), case);
                let context = format!("{policy:?}, {case:?}, run {number}");
                Weights::of(&model).assert_same(expected, context);
            }
        }
    }
}

#[test]
fn a_step_that_is_not_armed_gets_its_gradient_after_them() {
    let armed = [[true, false], [false, true], [true, true], [false, false]];
    same(&plain(&[0, 1]), armed, |optim, armed| {
        let mut model = InTurn::new();
        for (step, is_armed) in (0..).zip(armed) {
            if is_armed {
                model = optim.arm(RATE, model);
            }
            let loss = model.loss(step);
            model = ordinary_step(RATE, model, optim, loss);
        }
        model
    });
}

/// When a result that leads to no loss is dropped.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Dropped {
    BeforeTheCall,
    AfterTheCall,
    AfterTheStep,
}

const DROPPED: [[Dropped; 2]; 4] = {
    use Dropped::*;
    [
        [BeforeTheCall, BeforeTheCall],
        [BeforeTheCall, AfterTheStep],
        [AfterTheCall, AfterTheCall],
        [AfterTheStep, AfterTheStep],
    ]
};

/// Makes a call. Returns the results that are to live on.
fn around<T, const D: usize>(
    results: [Tensor<R, D>; 2],
    dropped: [Dropped; 2],
    call: impl FnOnce() -> T,
) -> (T, Vec<(Tensor<R, D>, Dropped)>) {
    let mut results: Vec<_> = results.into_iter().zip(dropped).collect();
    results.retain(|(_, dropped)| *dropped != Dropped::BeforeTheCall);
    let called = call();
    results.retain(|(_, dropped)| *dropped != Dropped::AfterTheCall);
    (called, results)
}

/// Between forward and backward.
#[test]
fn a_call_in_between_loses_no_gradient() {
    let model = InTurn::<P>::new();
    let (loss, _others) = model.loss_and_others();
    let expected = ordinary_step(RATE, model, &mut SgdConfig::new().init(), loss);
    let cases = DROPPED.map(|dropped| [Call::Arm, Call::Disarm].map(|call| (call, dropped)));
    let cases = cases.into_iter().flatten();
    same(&Weights::of(&expected), cases, |optim, (call, dropped)| {
        let model = optim.arm(RATE, InTurn::new());
        let (loss, others) = model.loss_and_others();
        let (model, _others) = around(others, dropped, || match call {
            Call::Disarm => optim.disarm(model),
            _ => optim.arm(RATE, model),
        });
        ordinary_step(RATE, model, optim, loss)
    });
}

/// Forward passes under an arming that is taken back are thrown away, before that and after it.
#[test]
fn a_disarmed_model_gets_its_gradients() {
    let cases = DROPPED.map(|dropped| [false, true].map(|is_again| (dropped, is_again)));
    let cases = cases.into_iter().flatten();
    same(&plain(&[1]), cases, |optim, (dropped, is_again)| {
        let model = optim.arm(RATE, InTurn::new());
        let others = [model.loss(0), model.loss(1)];
        let (model, _others) = around(others, dropped, || optim.disarm(model));
        if is_again {
            drop(model.loss(0).backward());
        }
        let loss = model.loss(1);
        ordinary_step(RATE, model, optim, loss)
    });
}

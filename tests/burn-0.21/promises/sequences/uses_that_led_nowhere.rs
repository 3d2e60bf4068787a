//! Uses that lead to no loss, and the step after. On the processor alone: nothing in them depends
//! on the device.

use super::Call;
use crate::harness::prelude::*;

const POLICIES: [Recompute; 2] = [Recompute::None, Recompute::Automatic];
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
    let mut model = InTurn::<P>::new();
    for step in steps {
        let loss = model.loss(*step);
        model = ordinary_step(RATE, model, &mut optim, loss);
    }
    Weights::of::<P, _>(&model)
}

#[test]
fn a_step_that_is_not_armed_gets_its_gradient_after_them() {
    let expected = plain(&[0, 1]);
    let steps = [[true, false], [false, true], [true, true], [false, false]];
    let cases = POLICIES.map(|policy| steps.map(|is_armed| (policy, is_armed)));
    for (policy, is_armed) in cases.into_iter().flatten() {
        for run in 0..RUNS {
            let mut model = InTurn::<R>::new();
            let optim = SgdConfig::new().init().with_gradient_release();
            let mut optim = optim.with_recompute(policy);
            for (step, is_armed) in is_armed.into_iter().enumerate() {
                if is_armed {
                    model = optim.arm(RATE, model);
                }
                let loss = model.loss(step as u64);
                let grads = GradientsParams::from_grads(loss.backward(), &model);
                model = optim.step(RATE, model, grads);
            }
            let context = format!("{policy:?}, {is_armed:?}, run {run}");
            Weights::of::<R, _>(&model).assert_same(&expected, context);
        }
    }
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

/// Between forward and backward.
#[test]
fn a_call_in_between_loses_no_gradient() {
    let expected = {
        let model = InTurn::<P>::new();
        let (loss, _others) = model.loss_and_others();
        Weights::of::<P, _>(&ordinary_step(
            RATE,
            model,
            &mut SgdConfig::new().init(),
            loss,
        ))
    };
    let cases = DROPPED.map(|dropped| [Call::Arm, Call::Disarm].map(|call| (call, dropped)));
    let cases = POLICIES.map(|policy| cases.map(|cases| cases.map(|case| (policy, case))));
    for (policy, (call, dropped)) in cases.into_iter().flatten().flatten() {
        for run in 0..RUNS {
            let optim = SgdConfig::new().init().with_gradient_release();
            let mut optim = optim.with_recompute(policy);
            let mut model = optim.arm(RATE, InTurn::<R>::new());
            let (loss, others) = model.loss_and_others();
            let mut others: Vec<_> = others.into_iter().zip(dropped).collect();
            others.retain(|(_, dropped)| *dropped != Dropped::BeforeTheCall);
            model = match call {
                Call::Disarm => optim.disarm(model),
                _ => optim.arm(RATE, model),
            };
            others.retain(|(_, dropped)| *dropped != Dropped::AfterTheCall);
            let grads = GradientsParams::from_grads(loss.backward(), &model);
            model = optim.step(RATE, model, grads);
            drop(others);
            let context = format!("{policy:?}, {call:?}, {dropped:?}, run {run}");
            Weights::of::<R, _>(&model).assert_same(&expected, context);
        }
    }
}

/// Forward passes under an arming that is taken back are thrown away, before that and after it.
#[test]
fn a_disarmed_model_gets_its_gradients() {
    let expected = plain(&[1]);
    let cases = DROPPED.map(|dropped| [1, 2].map(|backwards| (dropped, backwards)));
    let cases = POLICIES.map(|policy| cases.map(|cases| cases.map(|case| (policy, case))));
    for (policy, (dropped, backwards)) in cases.into_iter().flatten().flatten() {
        for run in 0..RUNS {
            let optim = SgdConfig::new().init().with_gradient_release();
            let mut optim = optim.with_recompute(policy);
            let mut model = optim.arm(RATE, InTurn::<R>::new());
            let others = [model.loss(0), model.loss(1)];
            let mut others: Vec<_> = others.into_iter().zip(dropped).collect();
            others.retain(|(_, dropped)| *dropped != Dropped::BeforeTheCall);
            model = optim.disarm(model);
            others.retain(|(_, dropped)| *dropped != Dropped::AfterTheCall);
            for _ in 1..backwards {
                drop(model.loss(0).backward());
            }
            let grads = GradientsParams::from_grads(model.loss(1).backward(), &model);
            model = optim.step(RATE, model, grads);
            drop(others);
            let context = format!("{policy:?}, {dropped:?}, {backwards} backwards, run {run}");
            Weights::of::<R, _>(&model).assert_same(&expected, context);
        }
    }
}

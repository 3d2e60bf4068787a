//! `TrainStep::optimize`, overridden: free after the optimizer's step, refused before it.

use std::sync::{Arc, Mutex};

use burn::module::{AutodiffModule, Module, ModuleMapper, Param};
use burn::optim::{AdamConfig, GradientsParams, Optimizer};
use burn::tensor::Tensor;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::train::{Learner, TrainOutput, TrainStep};

use super::{rates, refusal, unlogged};
use crate::harness::learner::{
    Batch, LossOutput, Mode, Released, Run, Stock, Task, Training, inference_step, launch, task,
};
use crate::harness::models::{Regression, RegressionModel, Scenario, Size};
use crate::harness::run::Start;
use crate::harness::{Recipe, Weights};

/// Something that `optimize` does besides Burn's default.
#[derive(Clone, Copy, Debug, Default)]
enum Optimize {
    #[default]
    Default,
    /// Clamps the weights once they are stepped, as Burn's documentation suggests.
    ClampAfter,
    /// Clamps the weights before they are stepped.
    ClampBefore,
    /// Steps with half the rate.
    HalfRate,
    /// Does not step when called for this time, counted from 0.
    Skip(usize),
    /// Keeps a copy, and looks at it after the step.
    KeepCopy,
}

/// A regression with an `optimize` of its own.
#[derive(Module, Debug)]
struct CustomModel<B: Backend> {
    inner: RegressionModel<B>,
    #[module(skip)]
    how: Optimize,
    /// The weights that `optimize` was given, in every call.
    #[module(skip)]
    given: Arc<Mutex<Vec<Weights>>>,
}

impl<B: Backend> CustomModel<B> {
    fn loss(&self, size: Size, step: u64) -> Tensor<B, 1> {
        self.inner.loss(size, step)
    }
}

impl<B: AutodiffBackend> TrainStep for CustomModel<B> {
    type Input = Batch;
    type Output = LossOutput<B>;

    fn step(&self, batch: Batch) -> TrainOutput<LossOutput<B>> {
        batch.note(self);
        let loss = self.loss(batch.size, batch.seed);
        TrainOutput::new(self, loss.backward(), LossOutput(loss))
    }

    fn optimize<A, O>(self, optim: &mut O, lr: f64, grads: GradientsParams) -> Self
    where
        A: AutodiffBackend,
        O: Optimizer<Self, A>,
        Self: AutodiffModule<A>,
    {
        let call = {
            let mut given = self.given.lock().expect("not poisoned");
            given.push(Weights::of::<A, _>(&self));
            given.len() - 1
        };
        match self.how {
            Optimize::Default => optim.step(lr, self, grads),
            Optimize::ClampAfter => optim.step(lr, self, grads).map(&mut Clamp),
            Optimize::ClampBefore => optim.step(lr, self.map(&mut Clamp), grads),
            Optimize::HalfRate => optim.step(lr / 2.0, self, grads),
            Optimize::Skip(skipped) if call == skipped => self,
            Optimize::Skip(_) => optim.step(lr, self, grads),
            Optimize::KeepCopy => {
                let copy = self.clone();
                let given = self.given.clone();
                let model = optim.step(lr, self, grads);
                given
                    .lock()
                    .expect("not poisoned")
                    .push(Weights::of::<A, _>(&copy));
                model
            }
        }
    }
}

inference_step!(CustomModel);

/// Many weights are larger at first.
const LARGEST: f32 = 0.3;

/// Clamps every weight, and keeps it a leaf.
struct Clamp;

impl<B: Backend> ModuleMapper<B> for Clamp {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        let (id, tensor, mapper) = param.consume();
        let require_grad = tensor.is_require_grad();
        let clamped = tensor.clamp(-LARGEST, LARGEST).detach();
        Param::from_mapped_value(id, clamped.set_require_grad(require_grad), mapper)
    }
}

struct Custom;

impl Scenario for Custom {
    type Model<B: AutodiffBackend> = CustomModel<B>;

    fn init<B: AutodiffBackend>(size: Size, device: &B::Device) -> CustomModel<B> {
        CustomModel {
            inner: Regression::init(size, device),
            how: Optimize::default(),
            given: Arc::default(),
        }
    }

    fn loss<B: AutodiffBackend>(model: &CustomModel<B>, size: Size, step: u64) -> Tensor<B, 1> {
        model.loss(size, step)
    }
}

task!(Custom, CustomModel);

/// A run, and the weights that each call of `optimize` was given.
fn run<D: Mode>(start: &Start, how: Optimize, training: Training) -> (Run, Vec<Weights>) {
    let given = Arc::default();
    let model = CustomModel {
        how,
        given: Arc::clone(&given),
        ..<Custom as Task>::model::<D::B>(start)
    };
    let optim = D::optim(AdamConfig::new().make());
    let strategy = D::strategy::<Custom, _, _>(training.monitor.clone());
    let run = launch(Learner::new(model, optim, rates()), strategy, &training);
    let given = std::mem::take(&mut *given.lock().expect("not poisoned"));
    (run, given)
}

/// The text with which release refuses what stock takes without a word.
fn refused(how: Optimize) -> String {
    let start = Start::new::<Custom>(Size::Small);
    let (stock, _) = run::<Stock>(&start, how, Training::new());
    assert!(stock.last.finite(), "stock takes it");
    refusal(|| run::<Released>(&start, how, unlogged()).0)
}

#[test]
fn weights_clamped_after_the_step() {
    let start = Start::new::<Custom>(Size::Small);
    for accumulation in [None, Some(2)] {
        let training = || Training {
            accumulation,
            ..Training::new()
        };
        let (stock, stock_given) = run::<Stock>(&start, Optimize::ClampAfter, training());
        let (release, given) = run::<Released>(&start, Optimize::ClampAfter, training());
        release.assert_same(&stock, "clamped");
        let calls = 3 * (training().batches / accumulation.unwrap_or(1));
        assert_eq!(
            [stock_given.len(), given.len()],
            [calls; 2],
            "once per optimizer step"
        );
        assert!(stock.last.largest() <= LARGEST);
        let (unclamped, _) = run::<Stock>(&start, Optimize::Default, training());
        assert!(
            unclamped.last.largest() > LARGEST,
            "there was something to clamp"
        );
    }
}

#[test]
fn weights_changed_before_the_step_are_refused() {
    let said = refused(Optimize::ClampBefore);
    assert!(
        said.contains("the model given is not the one that was armed"),
        "{said}"
    );
    assert!(
        said.contains("pass the model that `arm` returned"),
        "{said}"
    );
}

#[test]
fn a_rate_changed_before_the_step_is_refused() {
    let said = refused(Optimize::HalfRate);
    assert!(
        said.contains("armed with the learning rate 0.05, but `step` was given 0.025"),
        "{said}"
    );
}

/// In the iteration that leaves it out, the very last one included.
#[test]
fn a_step_left_out_is_refused() {
    for skipped in [0, 4, 3 * Training::new().batches - 1] {
        let said = refused(Optimize::Skip(skipped));
        assert!(
            said.contains("6 of 6 armed parameters have been stepped inside backward"),
            "{said}"
        );
        assert!(
            said.contains("call `step` with the model and the gradients first"),
            "{said}"
        );
    }
}

/// What is not refused: the model that `optimize` gets is the one that backward has stepped.
#[test]
fn the_weights_before_the_step_are_the_stepped_ones() {
    let start = Start::new::<Custom>(Size::Small);
    let (stock, stock_given) = run::<Stock>(&start, Optimize::Default, Training::new());
    let (release, given) = run::<Released>(&start, Optimize::Default, Training::new());
    release.assert_same(&stock, "the run");
    for (step, (stock_given, given)) in stock_given.iter().zip(&given).enumerate() {
        let after = stock.found.get(step + 1).unwrap_or(&stock.last);
        assert!(stock_given.same(&stock.found[step]));
        assert!(given.same(after));
    }
}

/// A copy of it that is kept, as slow weights are, would have other weights than stock's.
#[test]
fn a_copy_kept_over_the_step_is_refused() {
    let said = refused(Optimize::KeepCopy);
    assert!(
        said.contains("taken after backward had stepped it"),
        "{said}"
    );
    assert!(
        said.contains("take a copy that is to be kept before backward"),
        "{said}"
    );
}

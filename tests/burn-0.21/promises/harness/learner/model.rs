//! The one model that the `Learner` trains in all tests: its training is compiled once for each
//! [`Mode`](super::Mode). What differs between tests is a [`Kind`].

use std::fmt::Debug;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use burn::module::list_param_ids;
use burn::nn::{BatchNorm, BatchNormConfig, Dropout, DropoutConfig};
use burn::train::metric::{Adaptor, ItemLazy, LossInput};
use burn::train::{InferenceStep, TrainOutput, TrainStep};

use super::data::Batch;
use crate::harness::noise::reseed;
use crate::harness::prelude::*;
use crate::harness::scopes::block;

/// The layers, and how the loss is computed with them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum Net {
    /// Linear layers with tanh between: goes on learning at any rate, where ReLU dies of a high
    /// one.
    #[default]
    Chain,
    /// Batch norm after each layer: its running means are neither stepped nor lost.
    Norm,
    /// The first layer's weight a second time, transposed, at the end.
    Tied,
    /// A trunk, and three heads that take turns: most batches give most heads no gradient.
    Turns,
    /// The lowest use of the first layer does not lead to the loss.
    DeadEnd,
    /// The layer in the middle is not trained.
    Frozen,
    /// Parameters that come into being when they are first looked at, always the same.
    Lazy,
    /// Dropout, and weights that are drawn when they are first looked at.
    Random,
    /// Activations are nearly all of the memory.
    Tall,
    /// A loss that grows with every forward pass.
    Drifting,
}

/// How the training step gets its gradients.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum Step {
    /// The step of Burn's book.
    #[default]
    Book,
    /// Two losses of two batches, added up.
    Sum,
    /// A backward for the first layer, and another for the second.
    Disjoint,
    /// Two backward passes through all layers.
    Twice,
    /// No gradients are returned, as for a batch that is to be left out.
    ThrowAway,
    /// The gradients of the first layer only, as for freezing by hand.
    Partly,
    /// Every second batch is left out.
    EverySecond,
    /// A forward pass for a number to log, without backward.
    TwoForwards,
    /// Forward through a copy of the model.
    Copy,
    /// Gradients collected for a copy of the model.
    GradsOfCopy,
    /// Forward and backward through a fork of the model.
    Fork,
    /// Forward through the model without autodiff first, as for a teacher.
    Valid,
    /// Backward on a thread of its own.
    Thread,
}

/// What `TrainStep::optimize` does.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum Optimize {
    /// Burn's default.
    #[default]
    Default,
    /// The same, but the weights that it is given are noted, as in all that follow.
    Noted,
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

/// What is trained, and how the user has written it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Kind {
    net: Net,
    step: Step,
    optimize: Optimize,
}

macro_rules! kind_from {
    ($type:ident, $field:ident) => {
        impl From<$type> for Kind {
            fn from($field: $type) -> Self {
                Self {
                    $field,
                    ..Self::default()
                }
            }
        }
    };
}

kind_from!(Net, net);
kind_from!(Step, step);
kind_from!(Optimize, optimize);

impl Net {
    /// Rows of a batch, width of the layers, and their number.
    fn dims(self, size: Size) -> [usize; 3] {
        match (self, size) {
            (Self::Tall, _) => [2048, 16, 10],
            (Self::Turns, _) => [4, 8, 4],
            (_, Size::Small) => [4, 8, 3],
            (_, Size::Large) => [4, 512, 8],
        }
    }
}

/// Bytes of what goes from layer to layer in [`Net::Tall`].
pub(crate) const TALL_ACTIVATION: usize = 2048 * 16 * size_of::<f32>();

/// What the copies of a model share.
#[derive(Debug, Default)]
struct Notes {
    passes: AtomicUsize,
    given: Mutex<Vec<Weights>>,
}

#[derive(Module, Debug)]
pub(crate) struct RegressionModel<B: Backend> {
    pub(crate) layers: Vec<Linear<B>>,
    norm: Option<BatchNorm<B>>,
    dropout: Dropout,
    #[module(skip)]
    kind: Kind,
    #[module(skip)]
    notes: Arc<Notes>,
}

impl<B: Backend> RegressionModel<B> {
    fn new(kind: Kind, size: Size, device: &B::Device) -> Self {
        let [_, width, depth] = kind.net.dims(size);
        let linear = |_| LinearConfig::new(width, width).init(device);
        Self {
            layers: (0..depth).map(linear).collect(),
            norm: (kind.net == Net::Norm).then(|| BatchNormConfig::new(width).init(device)),
            dropout: DropoutConfig::new(if kind.net == Net::Random { 0.3 } else { 0.0 }).init(),
            kind,
            notes: Arc::default(),
        }
    }

    /// With or without autodiff: for training and for validation.
    pub(crate) fn loss(&self, size: Size, step: u64) -> Tensor<B, 1> {
        let (net, device) = (self.kind.net, B::Device::default());
        let [rows, width, _] = net.dims(size);
        let mut x = noise::<B, 2>(step, [rows, width], &device);
        // Held until the loss is there, and lower on the tape than the use that leads to it.
        let dead_end = (net == Net::DeadEnd).then(|| self.layers[0].forward(x.clone()));
        if dead_end.is_some() {
            x = x.tanh();
        }
        for (place, layer) in self.layers.iter().enumerate() {
            let is_used = net != Net::Turns || place == 0 || place as u64 == 1 + step % 3;
            if is_used {
                x = block(|| self.activation(layer.forward(x)));
            }
        }
        if net == Net::Tied {
            x = x.matmul(self.layers[0].weight.val().transpose());
        }
        let target = noise::<B, 2>(step + 1000, [rows, width], &device);
        let loss = (x - target).square().mean();
        let passes = self.notes.passes.fetch_add(1, Ordering::Relaxed);
        match net {
            Net::Drifting => loss * (1 + passes) as f64,
            _ => loss,
        }
    }

    fn activation(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        let y = self.dropout.forward(x.tanh());
        match (&self.norm, self.kind.net) {
            (Some(norm), _) => norm.forward(y),
            (None, Net::Tall) => (y.clone().exp() * y.clone().sin() + y.cos()).tanh(),
            (None, _) => y,
        }
    }

    /// The weights that each call of `optimize` was given.
    pub(super) fn given(&self) -> Vec<Weights> {
        self.notes.given.lock().expect("not poisoned").clone()
    }
}

/// A model to train, with its first weights: equal for every backend and run.
#[derive(Clone)]
pub(crate) struct Task {
    kind: Kind,
    pub(crate) size: Size,
    weights: Vec<u8>,
}

impl Task {
    pub(crate) fn new(kind: impl Into<Kind>) -> Self {
        Self::sized(kind, Size::Small)
    }

    pub(crate) fn sized(kind: impl Into<Kind>, size: Size) -> Self {
        Self::seeded(kind.into(), size, 42)
    }

    /// A large model takes memory.
    pub(crate) fn large() -> Self {
        Self::sized(Net::Chain, Size::Large)
    }

    /// One that begins with the [`weights`](Self::weights) of another process.
    pub(crate) fn from_weights(weights: Vec<u8>) -> Self {
        Self {
            kind: Kind::default(),
            size: Size::Small,
            weights,
        }
    }

    /// The same model with other weights and ids, which a checkpoint has to replace.
    pub(crate) fn with_other_weights(&self) -> Self {
        Self::seeded(self.kind, self.size, 1)
    }

    fn seeded(kind: Kind, size: Size, seed: u64) -> Self {
        let model = RegressionModel::<Plain>::new(kind, size, &Default::default());
        Self {
            kind,
            size,
            weights: save(reseed(model, seed)),
        }
    }

    pub(crate) fn weights(&self) -> &[u8] {
        &self.weights
    }

    /// The model as it is before the first step.
    pub(crate) fn model<B: AutodiffBackend>(&self) -> RegressionModel<B> {
        let device = B::Device::default();
        if self.kind.net == Net::Random {
            B::seed(&device, 5);
        }
        let mut model = RegressionModel::new(self.kind, self.size, &device);
        match self.kind.net {
            Net::Random => return model,
            Net::Lazy => {
                model.layers = [1, 2, 3].map(lazy).into();
                return model;
            }
            _ => model = load::<B, _>(model, &self.weights, &device),
        }
        if self.kind.net == Net::Frozen {
            model.layers[1] = model.layers[1].clone().no_grad();
        }
        model
    }
}

fn lazy<B: AutodiffBackend>(id: u64) -> Linear<B> {
    let weight = Param::uninitialized(
        ParamId::from(id),
        move |device: &B::Device, require_grad| {
            noise::<B, 2>(id, [8, 8], device).set_require_grad(require_grad)
        },
        B::Device::default(),
        true,
        [8, 8].into(),
    );
    assert!(!weight.is_initialized());
    Linear { weight, bias: None }
}

impl<B: AutodiffBackend> RegressionModel<B> {
    /// A loss, and the gradients of this model.
    fn collect(&self, loss: Tensor<B, 1>) -> (Tensor<B, 1>, GradientsParams) {
        let grads = GradientsParams::from_grads(loss.backward(), self);
        (loss, grads)
    }

    /// The sum of two losses and the gradients of each, merged as a user would.
    fn merged(&self, losses: [Tensor<B, 1>; 2]) -> (Tensor<B, 1>, GradientsParams) {
        let mut accumulator = GradientsAccumulator::new();
        let [first, second] = losses.map(|loss| {
            let (loss, grads) = self.collect(loss);
            accumulator.accumulate(self, grads);
            loss
        });
        (first + second, accumulator.grads())
    }

    /// The loss of one layer alone.
    fn layer_loss(&self, layer: usize, step: u64) -> Tensor<B, 1> {
        let x = noise::<B, 2>(step, [4, 8], &B::Device::default());
        self.layers[layer].forward(x).square().mean()
    }
}

impl<B: AutodiffBackend> TrainStep for RegressionModel<B> {
    type Input = Batch;
    type Output = LossOutput<B>;

    fn step(&self, batch: Batch) -> TrainOutput<LossOutput<B>> {
        batch.note(self);
        let Batch { seed, size, .. } = batch;
        let loss = |seed| self.loss(size, seed);
        let (loss, grads) = match self.kind.step {
            Step::Book => {
                let loss = loss(seed);
                return TrainOutput::new(self, loss.backward(), LossOutput(loss));
            }
            Step::Sum => self.collect(loss(seed) + loss(seed + 7)),
            Step::Disjoint => self.merged([0, 1].map(|layer| self.layer_loss(layer, seed))),
            Step::Twice => self.merged([loss(seed), loss(seed + 7)]),
            Step::ThrowAway => {
                let loss = loss(seed);
                drop(loss.backward());
                (loss, GradientsParams::new())
            }
            Step::Partly => {
                let loss = loss(seed);
                let first = list_param_ids(&self.layers[0]);
                let grads = GradientsParams::from_params(&mut loss.backward(), self, &first);
                (loss, grads)
            }
            Step::EverySecond if seed % 4 == 0 => (loss(seed), GradientsParams::new()),
            Step::EverySecond => self.collect(loss(seed)),
            Step::TwoForwards => {
                let _logged = loss(seed + 7);
                self.collect(loss(seed))
            }
            Step::Copy => {
                let copy = self.clone();
                let loss = copy.loss(size, seed);
                drop(copy);
                self.collect(loss)
            }
            Step::GradsOfCopy => {
                let copy = self.clone();
                copy.collect(loss(seed))
            }
            Step::Fork => {
                let fork = self.clone().fork(&B::Device::default());
                fork.collect(fork.loss(size, seed))
            }
            Step::Valid => {
                let teacher = Tensor::from_inner(self.valid().loss(size, seed + 7));
                self.collect(loss(seed) * teacher)
            }
            Step::Thread => std::thread::scope(|scope| {
                let step = scope.spawn(|| self.collect(loss(seed)));
                step.join().expect("no panic")
            }),
        };
        TrainOutput {
            grads,
            item: LossOutput(loss.detach()),
        }
    }

    fn optimize<A, O>(self, optim: &mut O, lr: f64, grads: GradientsParams) -> Self
    where
        A: AutodiffBackend,
        O: Optimizer<Self, A>,
        Self: AutodiffModule<A>,
    {
        let how = self.kind.optimize;
        if how == Optimize::Default {
            return optim.step(lr, self, grads);
        }
        let notes = self.notes.clone();
        let note = |weights| {
            let mut given = notes.given.lock().expect("not poisoned");
            given.push(weights);
            given.len() - 1
        };
        let call = note(Weights::of(&self));
        match how {
            Optimize::ClampAfter => optim.step(lr, self, grads).map(&mut Clamp),
            Optimize::ClampBefore => optim.step(lr, self.map(&mut Clamp), grads),
            Optimize::HalfRate => optim.step(lr / 2.0, self, grads),
            Optimize::Skip(skipped) if call == skipped => self,
            Optimize::KeepCopy => {
                let copy = self.clone();
                let model = optim.step(lr, self, grads);
                note(Weights::of(&copy));
                model
            }
            Optimize::Default | Optimize::Noted | Optimize::Skip(_) => optim.step(lr, self, grads),
        }
    }
}

impl<B: Backend> InferenceStep for RegressionModel<B> {
    type Input = Batch;
    type Output = LossOutput<B>;

    fn step(&self, batch: Batch) -> LossOutput<B> {
        batch.note(self);
        LossOutput(self.loss(batch.size, batch.seed))
    }
}

/// Output of a step for the metrics.
pub(crate) struct LossOutput<B: Backend>(Tensor<B, 1>);

impl<B: Backend> ItemLazy for LossOutput<B> {
    type ItemSync = LossOutput<Flex>;

    fn sync(self) -> LossOutput<Flex> {
        LossOutput(Tensor::from_data(self.0.into_data(), &Default::default()))
    }
}

impl Adaptor<LossInput<Flex>> for LossOutput<Flex> {
    fn adapt(&self) -> LossInput<Flex> {
        LossInput::new(self.0.clone())
    }
}

/// The largest weight that [`Optimize::ClampAfter`] leaves. Many are larger at first.
pub(crate) const CLAMPED_TO: f32 = 0.3;

/// Clamps every weight, and keeps it a leaf.
struct Clamp;

impl<B: Backend> ModuleMapper<B> for Clamp {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        let (id, tensor, mapper) = param.consume();
        let require_grad = tensor.is_require_grad();
        let clamped = tensor.clamp(-CLAMPED_TO, CLAMPED_TO).detach();
        Param::from_mapped_value(id, clamped.set_require_grad(require_grad), mapper)
    }
}

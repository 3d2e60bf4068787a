//! Parameters that are not all alike: frozen, tied, lazy, and those that no optimizer steps.

use burn::backend::Flex;
use burn::module::{Module, Param, ParamId};
use burn::nn::{Dropout, DropoutConfig, Linear, LinearConfig};
use burn::optim::AdamConfig;
use burn::tensor::Tensor;
use burn::tensor::backend::{AutodiffBackend, Backend};

use super::{full_name, rates, refusal, unlogged};
use crate::harness::learner::{
    Mode, Released, Run, Stock, Task, Training, inference_step, task, train, train_step,
};
use crate::harness::memory::alone;
use crate::harness::models::{Cnn, Regression, RegressionModel, Scenario, Size, Tied};
use crate::harness::run::{Start, trainable};
use crate::harness::{Plain, Weights, noise};

/// Stock and release; how many parameters were released, out of how many, at every step.
#[track_caller]
fn same<T: Task>(start: &Start, released: &str) -> Run {
    let adam = AdamConfig::new();
    let stock = train::<Stock, T, _, _, _>(start, &adam, rates(), &Training::new());
    let release = train::<Released, T, _, _, _>(start, &adam, rates(), &Training::new());
    release.assert_same(&stock, "release");
    for shown in release.renderer.train("Released") {
        assert!(shown.text.ends_with(released), "{}", shown.text);
    }
    release
}

/// A regression whose middle layer is not trained.
struct Frozen;

impl Task for Frozen {
    type Model<B: AutodiffBackend<InnerBackend = Flex>> = RegressionModel<B>;

    fn model<B: AutodiffBackend<InnerBackend = Flex>>(start: &Start) -> RegressionModel<B> {
        let mut model = start.model::<Regression, B>();
        let middle = model.layers.remove(1).no_grad();
        model.layers.insert(1, middle);
        model
    }
}

#[test]
fn frozen_layers() {
    let start = Start::new::<Regression>(Size::Small);
    let model = Frozen::model::<Plain>(&start);
    let run = same::<Frozen>(&start, "(4 of 4 parameters)");
    let before = Weights::of::<Plain, _>(&model.layers[1]);
    assert_eq!(before.distance_within(&run.last, 2), 0.0, "as it was");
}

#[test]
fn tied_weights() {
    let start = Start::new::<Tied>(Size::Small);
    same::<Tied>(&start, "(5 of 5 parameters)");
}

/// Running statistics are neither stepped nor lost.
#[test]
fn batch_norm() {
    let start = Start::new::<Cnn>(Size::Small);
    let parameters = trainable::<Plain, _>(&<Cnn as Task>::model::<Plain>(&start));
    let run = same::<Cnn>(
        &start,
        &format!("({parameters} of {parameters} parameters)"),
    );
    // Two blocks with two norms each, of a mean and a variance each.
    assert_eq!(
        run.last.len() - parameters,
        2 * 2 * 2,
        "the statistics are compared too"
    );
}

/// One parameter in two fields by cloning: two states would fight over one id.
struct Twins;

impl Task for Twins {
    type Model<B: AutodiffBackend<InnerBackend = Flex>> = RegressionModel<B>;

    fn model<B: AutodiffBackend<InnerBackend = Flex>>(start: &Start) -> RegressionModel<B> {
        let mut model = start.model::<Regression, B>();
        model.layers[2] = model.layers[0].clone();
        model
    }
}

#[test]
fn one_parameter_in_two_fields_is_refused() {
    let start = Start::new::<Regression>(Size::Small);
    let adam = AdamConfig::new();
    let said = refusal(|| train::<Released, Twins, _, _, _>(&start, &adam, rates(), &unlogged()));
    assert!(
        said.contains("two parameters of the model share the id"),
        "{said}"
    );
    assert!(
        said.contains("keep one `Param` and use it in both places"),
        "{said}"
    );
}

/// Parameters that come into being when they are first looked at, always the same.
#[derive(Module, Debug)]
struct LazyModel<B: Backend> {
    first: Param<Tensor<B, 2>>,
    second: Param<Tensor<B, 2>>,
}

impl<B: Backend> LazyModel<B> {
    fn new() -> Self {
        let lazy = |id: u64| {
            Param::uninitialized(
                ParamId::from(id),
                move |device: &B::Device, require_grad| {
                    noise::<B, 2>(id, [8, 8], device).set_require_grad(require_grad)
                },
                B::Device::default(),
                true,
                [8, 8].into(),
            )
        };
        Self {
            first: lazy(1),
            second: lazy(2),
        }
    }

    fn loss(&self, _: Size, step: u64) -> Tensor<B, 1> {
        let x = noise::<B, 2>(step, [4, 8], &B::Device::default());
        let x = x.matmul(self.first.val()).tanh().matmul(self.second.val());
        x.square().mean()
    }
}

struct Lazy;

impl Task for Lazy {
    type Model<B: AutodiffBackend<InnerBackend = Flex>> = LazyModel<B>;

    fn model<B: AutodiffBackend<InnerBackend = Flex>>(_: &Start) -> LazyModel<B> {
        let model = LazyModel::new();
        assert!(!model.first.is_initialized() && !model.second.is_initialized());
        model
    }
}

train_step!(LazyModel);
inference_step!(LazyModel);

#[test]
fn lazily_initialised() {
    same::<Lazy>(
        &Start::new::<Regression>(Size::Small),
        "(2 of 2 parameters)",
    );
}

/// One layer takes part in every second batch.
#[derive(Module, Debug)]
struct SometimesModel<B: Backend> {
    always: RegressionModel<B>,
    sometimes: RegressionModel<B>,
}

impl<B: Backend> SometimesModel<B> {
    fn loss(&self, size: Size, step: u64) -> Tensor<B, 1> {
        let loss = self.always.loss(size, step);
        match step % 4 {
            0 => loss + self.sometimes.loss(size, step),
            _ => loss,
        }
    }
}

struct Sometimes;

impl Scenario for Sometimes {
    type Model<B: AutodiffBackend> = SometimesModel<B>;

    fn init<B: AutodiffBackend>(size: Size, device: &B::Device) -> SometimesModel<B> {
        SometimesModel {
            always: Regression::init(size, device),
            sometimes: Regression::init(size, device),
        }
    }

    fn loss<B: AutodiffBackend>(model: &SometimesModel<B>, size: Size, step: u64) -> Tensor<B, 1> {
        model.loss(size, step)
    }
}

train_step!(SometimesModel);
inference_step!(SometimesModel);
task!(Sometimes, SometimesModel);

/// Neither a step nor a state where there is no gradient.
#[test]
fn used_now_and_then() {
    let start = Start::new::<Sometimes>(Size::Small);
    let run = same::<Sometimes>(&start, "parameters)");
    let shown = run.renderer.train("Released");
    let counts: Vec<_> = shown
        .iter()
        .map(|shown| shown.text.contains("(12 of 12 "))
        .collect();
    assert!(
        counts.contains(&true) && counts.contains(&false),
        "{counts:?}"
    );
}

/// Dropout, and weights that are drawn when they are first looked at.
#[derive(Module, Debug)]
struct RandomModel<B: Backend> {
    first: Linear<B>,
    dropout: Dropout,
    second: Linear<B>,
}

impl<B: Backend> RandomModel<B> {
    fn loss(&self, _: Size, step: u64) -> Tensor<B, 1> {
        let x = noise::<B, 2>(step, [4, 8], &B::Device::default());
        let x = self.dropout.forward(self.first.forward(x).tanh());
        self.second.forward(x).square().mean()
    }
}

struct Random;

impl Task for Random {
    type Model<B: AutodiffBackend<InnerBackend = Flex>> = RandomModel<B>;

    fn model<B: AutodiffBackend<InnerBackend = Flex>>(_: &Start) -> RandomModel<B> {
        let device = B::Device::default();
        B::seed(&device, 5);
        let linear = || LinearConfig::new(8, 8).init(&device);
        RandomModel {
            first: linear(),
            dropout: DropoutConfig::new(0.3).init(),
            second: linear(),
        }
    }
}

train_step!(RandomModel);
inference_step!(RandomModel);

/// Alone, because the numbers are drawn from one source per process.
#[test]
fn the_same_random_numbers() {
    let name = full_name(module_path!(), "the_same_random_numbers");
    alone(&name, || {
        fn run<D: Mode>(training: &Training) -> Run {
            let start = Start::new::<Regression>(Size::Small);
            train::<D, Random, _, _, _>(&start, &AdamConfig::new(), rates(), training)
        }
        for accumulation in [None, Some(3)] {
            let training = || Training {
                accumulation,
                ..Training::new()
            };
            let stock = run::<Stock>(&training());
            let release = run::<Released>(&training());
            stock.assert_trained();
            // Each model has ids of its own.
            let steps = stock.found.iter().chain([&stock.last]);
            for (step, (found, expected)) in release
                .found
                .iter()
                .chain([&release.last])
                .zip(steps)
                .enumerate()
            {
                assert_eq!(found.distance(expected), 0.0, "before step {step}");
            }
        }
    });
}

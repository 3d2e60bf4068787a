//! `GradientReleaseStrategy::with_recompute`: stock Burn's weights at every step, at a lower peak.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamConfig;
use burn::tensor::Tensor;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::train::Learner;
use burn_gradient_release::Recompute;
use burn_gradient_release_train::GradientReleaseStrategy;

use super::{full_name, rates};
use crate::ALLOCATIONS;
use crate::harness::learner::{
    Mode, ModelOf, Released, Run, Stock, Training, inference_step, launch, task, train, train_step,
};
use crate::harness::memory::alone;
use crate::harness::models::{Scenario, Size};
use crate::harness::noise;
use crate::harness::run::Start;

const LAYERS: usize = 10;
const WIDTH: usize = 16;
const ROWS: usize = 4096;
/// Bytes of what goes from layer to layer: `[rows, width]`.
const UNIT: usize = ROWS * WIDTH * size_of::<f32>();

/// Activations are nearly all of the memory.
#[derive(Module, Debug)]
struct TallModel<B: Backend> {
    layers: Vec<Linear<B>>,
}

impl<B: Backend> TallModel<B> {
    fn loss(&self, _: Size, step: u64) -> Tensor<B, 1> {
        let x = noise::<B, 2>(step, [ROWS, WIDTH], &Default::default());
        let x = self.layers.iter().fold(x, |x, layer| {
            let y = layer.forward(x).tanh();
            (y.clone().exp() * y.clone().sin() + y.cos()).tanh()
        });
        x.square().mean()
    }
}

struct Tall;

impl Scenario for Tall {
    type Model<B: AutodiffBackend> = TallModel<B>;

    fn init<B: AutodiffBackend>(_: Size, device: &B::Device) -> TallModel<B> {
        let layer = || LinearConfig::new(WIDTH, WIDTH).init(device);
        TallModel {
            layers: (0..LAYERS).map(|_| layer()).collect(),
        }
    }

    fn loss<B: AutodiffBackend>(model: &TallModel<B>, size: Size, step: u64) -> Tensor<B, 1> {
        model.loss(size, step)
    }
}

train_step!(TallModel);
inference_step!(TallModel);
task!(Tall, TallModel);

/// The last window of an epoch is not filled by two micro-batches.
fn training(accumulation: Option<usize>) -> Training {
    Training {
        epochs: 2,
        batches: 5,
        valid_batches: 1,
        accumulation,
        ..Training::new()
    }
}

/// What `run` leaves behind, and the most bytes that lived at once meanwhile, over those before.
fn measured(run: impl FnOnce() -> Run) -> (Run, usize) {
    let floor = ALLOCATIONS.current_usage();
    ALLOCATIONS.reset_peak_usage();
    let run = run();
    (run, ALLOCATIONS.peak_usage() - floor)
}

fn stock(start: &Start, accumulation: Option<usize>) -> Run {
    let training = training(accumulation);
    train::<Stock, Tall, _, _, _>(start, &AdamConfig::new(), rates(), &training)
}

fn release(start: &Start, accumulation: Option<usize>, recompute: Recompute) -> Run {
    let training = training(accumulation);
    let strategy = GradientReleaseStrategy::new(Default::default())
        .with_recompute(recompute)
        .with_monitor(training.monitor.clone());
    let model = Start::model::<Tall, <Released as Mode>::B>(start);
    let optim = Released::optim::<_, ModelOf<Released, Tall>>(AdamConfig::new().init());
    launch(
        Learner::new(model, optim, rates()),
        Some(strategy.into()),
        &training,
    )
}

#[test]
fn recomputing_in_the_learner() {
    let name = full_name(module_path!(), "recomputing_in_the_learner");
    alone(&name, || {
        let start = Start::new::<Tall>(Size::Small);
        // Thread pools and caches come into being once.
        stock(&start, None);
        for accumulation in [None, Some(2)] {
            let stock = measured(|| stock(&start, accumulation));
            let kept = measured(|| release(&start, accumulation, Recompute::None));
            let automatic = measured(|| release(&start, accumulation, Recompute::Automatic));
            let budget = Recompute::Budget(24 * UNIT as u64);
            let within = measured(|| release(&start, accumulation, budget));
            let unit = |peak: usize| peak as f64 / UNIT as f64;
            println!(
                "peaks with windows of {accumulation:?}, in activations of a layer: stock {:.1}, \
                 release {:.1}, automatic {:.1}, within 24 {:.1}",
                unit(stock.1),
                unit(kept.1),
                unit(automatic.1),
                unit(within.1),
            );
            for (run, context) in [
                (&kept.0, "kept"),
                (&automatic.0, "automatic"),
                (&within.0, "within"),
            ] {
                run.assert_same(&stock.0, format!("{context}, windows of {accumulation:?}"));
            }
            // Both kinds of arming are in the run: that of the last micro-batch, and of those
            // before.
            assert!(3 * automatic.1 < stock.1 && 3 * automatic.1 < kept.1);
            assert!(2 * within.1 < stock.1);
            // It keeps as much as it may.
            assert!(within.1 > automatic.1 + 4 * UNIT);
        }
    });
}

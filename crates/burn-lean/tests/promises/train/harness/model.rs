//! The model that is trained, and what the code of its user does.

use super::*;

pub(crate) const WIDTH: usize = 8;
/// Batches in an epoch.
pub(crate) const BATCHES: usize = 7;

/// One activation has four uses, one parameter none, and one layer has running statistics.
#[derive(Module, Debug)]
pub(crate) struct Net {
    pub(crate) input: Linear,
    pub(crate) norm: LayerNorm,
    pub(crate) query: Linear,
    pub(crate) key: Linear,
    pub(crate) value: Linear,
    pub(crate) batch_norm: BatchNorm,
    pub(crate) head: Linear,
    pub(crate) unused: Param<Tensor<1>>,
    #[module(skip)]
    pub(crate) user: User,
}

/// What the code of the user does.
#[derive(Clone, Default)]
pub(crate) struct User {
    pub(crate) step: Step,
    pub(crate) optimize: Optimize,
    /// The bits of the loss of every training step.
    pub(crate) losses: Arc<Mutex<Vec<u32>>>,
    /// Called in every training step.
    pub(crate) on_step: OnStep,
    /// Changes gradients before the step, by hand: for a stock training.
    pub(crate) by_hand: Option<Arc<dyn ByHand>>,
    /// Takes an ordinary step in place of the optimizer: for a stock training.
    pub(crate) stepper: Option<Arc<Mutex<ReleaseOptimizer>>>,
    /// Scales the loss.
    pub(crate) scaler: Option<LossScaler>,
    /// The head is in this type, and not in f32.
    pub(crate) half: Option<DType>,
    /// Multiplies the residuals of training, for large gradients.
    pub(crate) residuals: Option<f64>,
}

/// What plain Burn does with all gradients at hand.
pub(crate) trait ByHand: Send + Sync {
    fn change(&self, model: &Net, grads: &mut GradientsParams);
}

/// Told how many training steps there were before.
#[derive(Clone)]
pub(crate) struct OnStep(pub(crate) Arc<dyn Fn(usize) + Send + Sync>);

impl Default for OnStep {
    fn default() -> Self {
        Self(Arc::new(|_| ()))
    }
}

impl std::fmt::Debug for User {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{:?} in `step`, {:?} in `optimize`",
            self.step, self.optimize
        )
    }
}

/// What `TrainStep::step` does.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum Step {
    /// Leaves its loss with `output`.
    #[default]
    Leave,
    /// Leaves two.
    LeaveTwo,
    /// Leaves one, and returns gradients.
    LeaveAndReturn,
    /// Runs backward itself, as without gradient release.
    Backward,
    /// Two backward passes, each over parameters of its own.
    TwoParts,
    /// Two backward passes over the same parameters.
    Twice,
    /// Returns the gradients of some parameters.
    Some,
    /// Returns no gradients every third time, and leaves its loss else.
    Skip,
}

/// What `TrainStep::optimize` does.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum Optimize {
    #[default]
    Default,
    ClampBefore,
    ClampAfter,
    HalfRate,
    Nothing,
    ScaleGradient,
    DropGradient,
    /// Of the head.
    Freeze,
}

#[derive(Clone, Debug)]
pub(crate) struct Batch {
    seed: usize,
    device: Device,
}

pub(crate) struct Batches;

impl Batcher<usize, Batch> for Batches {
    fn batch(&self, items: Vec<usize>, device: &Device) -> Batch {
        Batch {
            seed: items.iter().fold(0, |seed, item| 100 * seed + item),
            device: device.clone(),
        }
    }
}

impl Net {
    pub(crate) fn new(device: &Device) -> Self {
        let linear = |out| LinearConfig::new(WIDTH, out).init(device);
        seeded(device, |device| Self {
            input: linear(WIDTH),
            norm: LayerNormConfig::new(WIDTH).init(device),
            query: linear(WIDTH),
            key: linear(WIDTH),
            value: linear(WIDTH),
            batch_norm: BatchNormConfig::new(WIDTH).init(device),
            head: linear(1),
            unused: Param::from_tensor(Tensor::ones([3], device)),
            user: User::default(),
        })
    }

    /// Of some batch.
    pub(crate) fn gradients(&self) -> GradientsParams {
        let batch = Batches.batch(vec![1, 2], &self.head.weight.device());
        GradientsParams::from_grads(self.output(&batch).loss.backward(), self)
    }

    fn hidden(&self, batch: &Batch) -> Tensor<2> {
        let x = numbers([4, WIDTH], batch.seed, &batch.device);
        let x = self.norm.forward(self.input.forward(x));
        let mixed = self.query.forward(x.clone()) * self.key.forward(x.clone());
        let mixed = mixed + self.value.forward(x.clone()) + x;
        self.batch_norm.forward(mixed)
    }

    fn output(&self, batch: &Batch) -> RegressionOutput {
        let output = match self.user.half {
            None => self.head.forward(self.hidden(batch)),
            Some(half) => {
                let hidden = self.hidden(batch).cast(half);
                self.head.forward(hidden).cast(DType::F32)
            }
        };
        let targets = numbers([4, 1], batch.seed + 1, &batch.device);
        let loss = (output.clone() - targets.clone()).square().mean();
        RegressionOutput::new(loss, output, targets)
    }

    fn note(&self, output: &RegressionOutput) -> usize {
        let loss = output.loss.clone().into_scalar::<f32>();
        let mut losses = self.user.losses.lock().unwrap();
        losses.push(loss.to_bits());
        losses.len() - 1
    }
}

impl TrainStep for Net {
    type Input = Batch;
    type Output = RegressionOutput;

    fn step(&self, batch: Batch) -> TrainOutput<RegressionOutput> {
        let output = match self.user.step {
            Step::TwoParts => {
                let output = self.head.forward(self.hidden(&batch).detach());
                let loss = output.clone().square().mean();
                RegressionOutput::new(loss, output.clone(), output)
            }
            _ => self.output(&batch),
        };
        let step = self.note(&output);
        (self.user.on_step.0)(step);
        let (mut loss, output, targets) = (output.loss, output.output, output.targets);
        if let Some(factor) = self.user.residuals {
            let residuals = (output.clone() - targets.clone()) * factor;
            loss = residuals.square().mean();
        }
        let item = RegressionOutput::new(loss.clone().detach(), output.detach(), targets);
        let loss = match &self.user.scaler {
            Some(scaler) => scaler.scale(loss),
            None => loss,
        };
        let grads = |loss: Tensor<1>| GradientsParams::from_grads(loss.backward(), self);
        let leave = |loss, item| burn_lean::train::output(self, loss, item);
        let grads = match self.user.step {
            Step::Skip if step % 3 == 2 => GradientsParams::new(),
            Step::Leave | Step::Skip => return leave(loss, item),
            Step::LeaveTwo => {
                let _ = burn_lean::train::output(self, loss.clone(), ());
                return leave(loss, item);
            }
            Step::LeaveAndReturn => {
                let grads = grads(self.output(&batch).loss);
                return TrainOutput {
                    grads,
                    ..leave(loss, item)
                };
            }
            Step::Backward => grads(loss),
            Step::TwoParts => joined(
                self,
                grads(loss),
                grads(self.hidden(&batch).square().mean()),
            ),
            Step::Twice => joined(self, grads(loss), grads(self.output(&batch).loss)),
            Step::Some => {
                let mut grads = grads(loss);
                drop(grads.remove::<2>(self.head.weight.id));
                grads
            }
        };
        TrainOutput { grads, item }
    }

    fn optimize(
        self,
        optim: &mut ModuleOptimizer,
        lr: ModuleLearningRate,
        mut grads: GradientsParams,
    ) -> Self {
        if let Some(by_hand) = &self.user.by_hand {
            by_hand.change(&self, &mut grads);
        }
        if let Some(stepper) = self.user.stepper.clone() {
            return stepper.lock().unwrap().step(lr, self, grads);
        }
        let head = self.head.weight.id;
        match self.user.optimize {
            Optimize::Default => optim.step(lr, self, grads),
            Optimize::ClampBefore => optim.step(lr, self.map(&mut Clamp), grads),
            Optimize::ClampAfter => optim.step(lr, self, grads).map(&mut Clamp),
            Optimize::HalfRate => optim.step(lr.base() / 2.0, self, grads),
            Optimize::Nothing => self,
            Optimize::ScaleGradient => {
                let grad = grads.remove::<2>(head).unwrap();
                grads.register(head, grad * 0.5);
                optim.step(lr, self, grads)
            }
            Optimize::DropGradient => {
                drop(grads.remove::<2>(head));
                optim.step(lr, self, grads)
            }
            Optimize::Freeze => {
                let mut model = optim.step(lr, self, grads);
                model.head = model.head.no_grad();
                model
            }
        }
    }
}

impl InferenceStep for Net {
    type Input = Batch;
    type Output = RegressionOutput;

    fn step(&self, batch: Batch) -> RegressionOutput {
        let output = self.output(&batch);
        // In the same list: what validates is part of what is compared.
        self.note(&output);
        output
    }
}

/// Two sets of gradients, as Burn's accumulator joins them.
fn joined(model: &Net, one: GradientsParams, other: GradientsParams) -> GradientsParams {
    let mut sums = GradientsAccumulator::new();
    sums.accumulate(model, one);
    sums.accumulate(model, other);
    sums.grads()
}

/// Clamps every weight, and keeps it a leaf.
struct Clamp;

impl ModuleMapper for Clamp {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        match param.is_require_grad() {
            true => param.map(|w| w.clamp(-0.3, 0.3).detach().require_grad()),
            false => param,
        }
    }
}

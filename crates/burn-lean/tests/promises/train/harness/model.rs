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
    /// Whether the activation with four uses is used so often.
    #[module(skip)]
    pub(crate) is_mixed: bool,
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
    /// What `optimize` has seen.
    pub(crate) seen: Arc<Mutex<Vec<Bits>>>,
    /// A copy that `step` has taken before backward.
    pub(crate) copy: Arc<Mutex<Option<Box<Net>>>>,
    /// Called in every training step.
    pub(crate) on_step: OnStep,
    /// Changes gradients before the step, by hand: for a stock training.
    pub(crate) by_hand: Option<Arc<dyn ByHand>>,
    /// Scales the loss.
    pub(crate) scaler: Option<LossScaler>,
    /// The head is in this type, and not in f32.
    pub(crate) half: Option<DType>,
    /// Multiplies the residuals of training, for large gradients.
    pub(crate) residuals: Option<f64>,
}

/// What plain Burn does with all gradients at hand.
pub(crate) trait ByHand: Send + Sync {
    /// The scale of the loss.
    fn scale(&self) -> f64 {
        1.0
    }

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
    #[default]
    Default,
    /// Two backward passes, each over parameters of its own.
    TwoParts,
    /// Two backward passes over the same parameters.
    Twice,
    /// Runs backward, and returns no gradients.
    ThrowAway,
    /// Returns the gradients of some parameters.
    Some,
    /// Returns no gradients, every third time.
    Skip,
    /// The same, without a forward pass with the model.
    SkipForward,
}

/// What `TrainStep::optimize` does beside Burn's default.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum Optimize {
    #[default]
    Default,
    ClampAfter,
    ClampBefore,
    /// Of one layer, by its field.
    ScaleFieldBefore,
    HalfRate,
    /// Does not step when it is called for this time.
    Skip(usize),
    KeepCopy,
    /// Keeps a copy for as long as it looks at it, before the step.
    LookAtCopy,
    /// Drops the copy that was taken before backward.
    DropEarlyCopy,
    ScaleGradients,
    DropGradients,
    /// Freezes the head after the second step.
    Freeze,
    /// Looks at the optimizer's states.
    SaveStates,
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
            is_mixed: true,
            user: User::default(),
        })
    }

    /// No activation is used more than twice, so that gradients add up to the same bits in any
    /// order.
    pub(crate) fn without_third_use() -> Self {
        Self {
            is_mixed: false,
            ..Self::new(&flex())
        }
    }

    /// Of some batch.
    pub(crate) fn gradients(&self) -> GradientsParams {
        let batch = Batches.batch(vec![1, 2], &self.head.weight.device());
        GradientsParams::from_grads(self.output(&batch).loss.backward(), self)
    }

    fn hidden(&self, batch: &Batch) -> Tensor<2> {
        let x = numbers([4, WIDTH], batch.seed, &batch.device);
        let x = self.norm.forward(self.input.forward(x));
        if !self.is_mixed {
            let x = self.query.forward(self.key.forward(x.clone())) + x;
            return self.batch_norm.forward(self.value.forward(x.clone()) * x);
        }
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
        if matches!(self.user.optimize, Optimize::DropEarlyCopy) {
            *self.user.copy.lock().unwrap() = Some(Box::new(self.clone()));
        }
        let output = match self.user.step {
            // The head sees what does not lead to the rest.
            Step::SkipForward if self.user.losses.lock().unwrap().len() % 3 == 2 => {
                let zeros = Tensor::zeros([1, 1], &batch.device);
                let loss = Tensor::zeros([1], &batch.device);
                RegressionOutput::new(loss, zeros.clone(), zeros)
            }
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
        let loss = match (&self.user.scaler, &self.user.by_hand) {
            (Some(scaler), _) => scaler.scale(loss),
            (None, Some(by_hand)) => loss * by_hand.scale(),
            (None, None) => loss,
        };
        let mut grads = match self.user.step {
            Step::Skip | Step::SkipForward if step % 3 == 2 => GradientsParams::new(),
            _ => GradientsParams::from_grads(loss.backward(), self),
        };
        match self.user.step {
            Step::Default | Step::Skip | Step::SkipForward => {}
            Step::TwoParts => {
                let rest = self.hidden(&batch).square().mean().backward();
                grads = joined(self, grads, GradientsParams::from_grads(rest, self));
            }
            Step::Twice => {
                let second = self.output(&batch).loss.backward();
                grads = joined(self, grads, GradientsParams::from_grads(second, self));
            }
            Step::ThrowAway => grads = GradientsParams::new(),
            Step::Some => drop(grads.remove::<2>(self.head.weight.id)),
        }
        TrainOutput { grads, item }
    }

    fn optimize(
        self,
        optim: &mut ModuleOptimizer,
        lr: ModuleLearningRate,
        mut grads: GradientsParams,
    ) -> Self {
        let user = self.user.clone();
        let calls = {
            let mut seen = user.seen.lock().unwrap();
            seen.push(bits(&self.clone().materialize()));
            seen.len()
        };
        let head = self.head.weight.id;
        let mut model = self;
        // Before the step.
        match user.optimize {
            Optimize::ClampBefore => model = model.map(&mut Clamp),
            Optimize::ScaleFieldBefore => {
                let weight = model.head.weight.clone();
                model.head.weight = weight.map(|w| (w * 0.5).detach().require_grad());
            }
            Optimize::Skip(skipped) if calls == skipped => return model,
            Optimize::HalfRate => return optim.step(lr.base() / 2.0, model, grads),
            Optimize::LookAtCopy => assert!(!bits(&model.clone().materialize()).is_empty()),
            Optimize::DropEarlyCopy => drop(user.copy.lock().unwrap().take()),
            Optimize::ScaleGradients => {
                let grad = grads.remove::<2>(head).unwrap();
                grads.register(head, grad * 0.5);
            }
            Optimize::DropGradients => drop(grads.remove::<2>(head)),
            _ => {}
        }
        if let Some(by_hand) = &user.by_hand {
            by_hand.change(&model, &mut grads);
        }
        let copy = matches!(user.optimize, Optimize::KeepCopy).then(|| model.clone());
        let mut model = optim.step(lr, model, grads);
        drop(copy);
        // After it.
        match user.optimize {
            Optimize::ClampAfter => model = model.map(&mut Clamp),
            Optimize::Freeze if calls >= 2 => model.head = model.head.no_grad(),
            Optimize::SaveStates => drop(optim.to_record()),
            _ => {}
        }
        model
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

/// Some weights are larger.
pub(crate) const LARGEST: f32 = 0.3;

/// Clamps every weight, and keeps it a leaf.
struct Clamp;

impl ModuleMapper for Clamp {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        match param.is_require_grad() {
            true => param.map(|w| w.clamp(-LARGEST, LARGEST).detach().require_grad()),
            false => param,
        }
    }
}

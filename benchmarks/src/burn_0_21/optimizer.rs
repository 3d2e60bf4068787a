//! Optimizers with the defaults of their configurations, with and without gradient release.

use anyhow::{Result, bail};
use benchmarks::subject::{Burn, Checkpointing, Mode, OptimizerKind};
use burn::module::AutodiffModule;
use burn::optim::adaptor::OptimizerAdaptor;
use burn::optim::{
    AdamConfig, AdamWConfig, GradientsParams, LearningRate, Optimizer, SimpleOptimizer,
};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Device, Tensor};
use burn_gradient_release::{
    Recompute, ReleaseBackend, ReleaseError, ReleaseOptimizer, WithGradientRelease,
};
use burn_gradient_release_optim::{
    AdafactorConfig, EightBitMoments, InOnePass, LeanBackend, LionConfig,
};

/// An optimizer with or without gradient release.
pub(super) trait Stepper<M, B: AutodiffBackend> {
    /// Prepares the model for the forward pass of a step.
    fn arm(&mut self, rate: LearningRate, model: M) -> Result<M>;

    /// The model after the step.
    fn step(&mut self, rate: LearningRate, model: M, grads: GradientsParams) -> Result<M>;
}

impl<O, M, B> Stepper<M, B> for OptimizerAdaptor<O, M, B>
where
    O: SimpleOptimizer<B::InnerBackend>,
    M: AutodiffModule<B>,
    B: AutodiffBackend,
{
    fn arm(&mut self, _rate: LearningRate, model: M) -> Result<M> {
        Ok(model)
    }

    fn step(&mut self, rate: LearningRate, model: M, grads: GradientsParams) -> Result<M> {
        Ok(Optimizer::step(self, rate, model, grads))
    }
}

impl<O, M, B> Stepper<M, B> for ReleaseOptimizer<O, M, B>
where
    O: SimpleOptimizer<B::InnerBackend> + 'static,
    M: AutodiffModule<B>,
    B: ReleaseBackend,
{
    fn arm(&mut self, rate: LearningRate, model: M) -> Result<M> {
        Ok(self.try_arm(rate, model).map_err(ReleaseError::from)?)
    }

    fn step(&mut self, rate: LearningRate, model: M, grads: GradientsParams) -> Result<M> {
        let stepped = self.try_step(rate, model, grads);
        Ok(stepped.map_err(ReleaseError::from)?)
    }
}

pub(super) type Boxed<M, B> = Box<dyn Stepper<M, B>>;

/// Makes optimizers, all with or all without gradient release.
pub(super) trait Optimizers<B: AutodiffBackend> {
    /// The optimizer before its first step.
    fn optimizer<M>(kind: OptimizerKind, run: &Burn, model: &M) -> Result<Boxed<M, B>>
    where
        M: AutodiffModule<B> + 'static;

    /// One that drops all gradients, for the floor.
    fn discard<M: AutodiffModule<B> + 'static>(run: &Burn) -> Option<Boxed<M, B>>;
}

macro_rules! with_optimizer {
    ($kind:expr, $model:expr, |$optimizer:ident| $made:expr) => {{
        macro_rules! made {
            ($from:expr) => {{
                let $optimizer = OptimizerAdaptor::<_, M, B>::from($from);
                Ok(Box::new($made))
            }};
        }
        let (adam, adamw) = (AdamConfig::new(), AdamWConfig::new());
        match $kind {
            OptimizerKind::Adam => made!(adam.build()),
            OptimizerKind::AdamOnePass => made!(adam.in_one_pass()),
            OptimizerKind::Adam8bit => made!(adam.in_one_pass().with_8_bit_moments($model)),
            OptimizerKind::AdamW => made!(adamw.build()),
            OptimizerKind::AdamWOnePass => made!(adamw.in_one_pass()),
            OptimizerKind::AdamW8bit => made!(adamw.in_one_pass().with_8_bit_moments($model)),
            OptimizerKind::Adafactor => made!(AdafactorConfig::new().build()),
            OptimizerKind::Lion => made!(LionConfig::new().build()),
            // Each one is compiled for every model and backend.
            kind => bail!("{kind} is measured on Burn 0.22"),
        }
    }};
}

/// All gradients first, then the step.
pub(super) struct Plain;

impl<B: AutodiffBackend<InnerBackend: LeanBackend>> Optimizers<B> for Plain {
    fn optimizer<M>(kind: OptimizerKind, _run: &Burn, model: &M) -> Result<Boxed<M, B>>
    where
        M: AutodiffModule<B> + 'static,
    {
        with_optimizer!(kind, model, |optimizer| optimizer)
    }

    fn discard<M: AutodiffModule<B> + 'static>(_run: &Burn) -> Option<Boxed<M, B>> {
        None
    }
}

/// Every parameter steps inside the backward pass.
pub(super) struct Release;

impl<B: ReleaseBackend<InnerBackend: LeanBackend>> Optimizers<B> for Release {
    fn optimizer<M>(kind: OptimizerKind, run: &Burn, model: &M) -> Result<Boxed<M, B>>
    where
        M: AutodiffModule<B> + 'static,
    {
        with_optimizer!(kind, model, |optimizer| {
            let optimizer = optimizer.with_gradient_release();
            optimizer.with_recompute(recompute(run))
        })
    }

    fn discard<M: AutodiffModule<B> + 'static>(run: &Burn) -> Option<Boxed<M, B>> {
        let optimizer = OptimizerAdaptor::<Discard, M, B>::from(Discard).with_gradient_release();
        let is_floor = run.mode == Mode::Ideal;
        is_floor.then(|| Box::new(optimizer.with_recompute(recompute(run))) as Boxed<M, B>)
    }
}

fn recompute(run: &Burn) -> Recompute {
    match run.checkpointing {
        Checkpointing::Automatic => Recompute::Automatic,
        _ => Recompute::None,
    }
}

/// Leaves every parameter as it is.
#[derive(Clone, Copy, Debug)]
struct Discard;

impl<B: Backend> SimpleOptimizer<B> for Discard {
    type State<const D: usize> = ();

    fn step<const D: usize>(
        &self,
        _lr: LearningRate,
        tensor: Tensor<B, D>,
        _grad: Tensor<B, D>,
        _state: Option<()>,
    ) -> (Tensor<B, D>, Option<()>) {
        (tensor, None)
    }

    fn to_device<const D: usize>(_state: (), _device: &Device<B>) {}
}

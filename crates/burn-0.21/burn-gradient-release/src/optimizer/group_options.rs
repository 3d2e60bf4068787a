//! Settings of a group of parameters.

use std::fmt::{self, Formatter};

use burn::{
    grad_clipping::GradientClipping,
    module::AutodiffModule,
    optim::{SimpleOptimizer, adaptor::OptimizerAdaptor},
    tensor::backend::AutodiffBackend,
};

/// How the parameters of a [`ParamGroup`](crate::ParamGroup) differ from the rest. Options that are
/// not set are those of the rest.
///
/// ```
/// use burn::{
///     backend::{Autodiff, Flex},
///     nn::{Linear, LinearConfig},
///     optim::{AdamWConfig, GradientsParams, Optimizer},
///     tensor::Tensor,
/// };
/// use burn_gradient_release::{GradientRelease, GroupOptions, ParamGroup, WithGradientRelease};
///
/// type B = GradientRelease<Autodiff<Flex>>;
///
/// let device = Default::default();
/// let mut model: Linear<B> = LinearConfig::new(4, 2).init(&device);
/// let adamw = AdamWConfig::new().with_weight_decay(0.05);
/// let undecayed = AdamWConfig::new().with_weight_decay(0.0).init::<B, Linear<B>>();
///
/// let mut optim = adamw.init().with_gradient_release().with_group(
///     ParamGroup::no_decay(&model),
///     GroupOptions::new().with_optimizer(&undecayed).with_lr_factor(0.5),
/// );
///
/// model = optim.arm(1e-3, model);
/// let loss = model.forward(Tensor::<B, 2>::ones([8, 4], &device)).mean();
/// let grads = GradientsParams::from_grads(loss.backward(), &model);
/// model = optim.step(1e-3, model, grads);
///
/// let bias = model.bias.as_ref().unwrap().id;
/// assert_eq!(optim.last_step().unwrap().learning_rate_of(bias), 5e-4);
/// ```
#[derive(Clone)]
pub struct GroupOptions<O> {
    optim: Option<O>,
    grad_clipping: Option<Option<GradientClipping>>,
    lr_factor: f64,
    clips_by_norm: bool,
    is_frozen: bool,
}

impl<O> Default for GroupOptions<O> {
    fn default() -> Self {
        Self::new()
    }
}

impl<O> GroupOptions<O> {
    /// Options that change nothing.
    pub fn new() -> Self {
        Self {
            optim: None,
            grad_clipping: None,
            lr_factor: 1.0,
            clips_by_norm: true,
            is_frozen: false,
        }
    }

    /// Another configuration of the same optimizer, with its clipping if it has one. For two kinds
    /// of optimizer, see [`Either`](crate::Either).
    pub fn with_optimizer<M, B>(mut self, optim: &OptimizerAdaptor<O, M, B>) -> Self
    where
        O: SimpleOptimizer<B::InnerBackend>,
        M: AutodiffModule<B>,
        B: AutodiffBackend,
    {
        if let Some(clipping) = optim.grad_clipping() {
            self.grad_clipping = Some(Some(clipping.clone()));
        }
        self.with_simple_optimizer(optim.optim().clone())
    }

    /// As [`with_optimizer`](Self::with_optimizer), for an optimizer without the adaptor that
    /// Burn's configurations put around it. Clipping that is a part of its step comes after that of
    /// the rest or of the group.
    pub fn with_simple_optimizer(mut self, optim: O) -> Self {
        self.optim = Some(optim);
        self
    }

    /// Multiplies the learning rate by a factor.
    pub fn with_lr_factor(mut self, factor: f64) -> Self {
        self.lr_factor = factor;
        self
    }

    /// Burn's clipping, which clips each gradient by itself.
    pub fn with_grad_clipping(mut self, clipping: GradientClipping) -> Self {
        self.grad_clipping = Some(Some(clipping));
        self
    }

    /// No clipping of a gradient by itself: neither Burn's nor that of
    /// [`Adaptive`](crate::NormClipping::Adaptive) and [`AutoClip`](crate::NormClipping::AutoClip).
    pub fn without_grad_clipping(mut self) -> Self {
        self.grad_clipping = Some(None);
        self.clips_by_norm = false;
        self
    }

    /// Freezes the group: each gradient is dropped as soon as it is complete, and is part of no
    /// norm. [`no_grad`](burn::module::Module::no_grad) does not even compute it, if nothing else
    /// needs it.
    pub fn frozen(mut self) -> Self {
        self.is_frozen = true;
        self
    }

    pub(super) fn lr_factor(&self) -> f64 {
        self.lr_factor
    }

    pub(super) fn is_frozen(&self) -> bool {
        self.is_frozen
    }

    /// Settings of the group, given those of the rest.
    pub(super) fn settings<'a>(&'a self, rest: StepSettings<'a, O>) -> StepSettings<'a, O> {
        StepSettings {
            optim: self.optim.as_ref().unwrap_or(rest.optim),
            grad_clipping: match &self.grad_clipping {
                Some(own) => own.as_ref(),
                None => rest.grad_clipping,
            },
            clips_by_norm: self.clips_by_norm && rest.clips_by_norm,
        }
    }
}

impl<O> fmt::Debug for GroupOptions<O> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupOptions")
            .field("lr_factor", &self.lr_factor)
            .field("is_frozen", &self.is_frozen)
            .finish_non_exhaustive()
    }
}

/// Optimizer and clipping for one parameter.
pub(crate) struct StepSettings<'a, O> {
    pub(crate) optim: &'a O,
    pub(crate) grad_clipping: Option<&'a GradientClipping>,
    /// Whether the optimizer's own clipping by norms may clip this gradient by itself.
    pub(crate) clips_by_norm: bool,
}

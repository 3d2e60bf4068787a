//! Loss scaling.

use std::sync::{Arc, Mutex, MutexGuard, Weak};

use burn::Tensor;
use burn::config::Config;
use lean_arithmetic::OutOfRange;
use lean_arithmetic::scaling::{LossScale, LossScaleRule};

use crate::error::ReleaseError;
use crate::lock::lock;

/// Dynamic loss scaling for training in fp16, by the rule and with the defaults of PyTorch's
/// `GradScaler` ([Micikevicius et al., 2018](https://arxiv.org/abs/1710.03740)).
///
/// Gradients in fp16 vanish below `6e-8`. Scaling the loss up scales its gradients up, and the
/// optimizer divides them by the scale, in 32 bits, before it clips and steps. If one has
/// overflowed, the step is skipped and the scale falls; after `growth_interval` steps without an
/// overflow, it rises. It stays between 2^-24 and 2^126; where a gradient overflows at the least
/// scale, steps are refused from then on. bf16 has the range of fp32 and needs no scaling.
///
/// Keep the weights in 32 bits and cast them to fp16 in the forward pass: gradients of fp16 weights
/// are fp16, in which dividing by the scale would lose them again.
#[derive(Config, Debug, Copy, PartialEq)]
pub struct LossScalerConfig {
    /// The first scale.
    #[config(default = 65536.0)]
    pub init_scale: f64,
    /// Factor by which the scale rises.
    #[config(default = 2.0)]
    pub growth_factor: f64,
    /// Factor by which the scale falls.
    #[config(default = 0.5)]
    pub backoff_factor: f64,
    /// Steps without overflow before the scale rises.
    #[config(default = 2000)]
    pub growth_interval: usize,
}

impl LossScalerConfig {
    /// A scaler at its first scale.
    pub fn init(&self) -> LossScaler {
        let rule = LossScaleRule {
            init_scale: self.init_scale,
            growth_factor: self.growth_factor,
            backoff_factor: self.backoff_factor,
            growth_interval: self.growth_interval,
        };
        LossScaler {
            rule,
            state: Arc::new(Mutex::new(State {
                scale: LossScale::new(&rule),
                optimizers: Vec::new(),
                has_overflown: false,
            })),
            optimizer: None,
        }
    }
}

/// Scales losses for an optimizer [with this scaler](crate::ReleaseOptimizer::with_loss_scaler).
/// Clones share the scale: keep one for the code that computes the loss.
///
/// Several optimizers may share a scaler, for one loss or for a loss each. The scale changes when each
/// of them has ended a step, or one of them its second: once for all of them, as with PyTorch, and it
/// falls if a gradient of any has overflowed.
#[derive(Clone, Debug)]
pub struct LossScaler {
    rule: LossScaleRule,
    state: Arc<Mutex<State>>,
    /// The optimizer that holds this clone. Dropped with it.
    optimizer: Option<Arc<()>>,
}

#[derive(Debug)]
struct State {
    scale: LossScale,
    optimizers: Vec<Member>,
    /// Whether a gradient has overflowed since the scale was updated.
    has_overflown: bool,
}

/// An optimizer of a scaler.
#[derive(Debug)]
struct Member {
    optimizer: Weak<()>,
    /// The scale of the loss since the optimizer's last step, if one was scaled.
    asked: Option<f64>,
    /// Whether it has ended a step since the scale was updated.
    has_stepped: bool,
}

impl State {
    /// The optimizers that are still there.
    fn optimizers(&mut self) -> &mut [Member] {
        self.optimizers
            .retain(|member| member.optimizer.strong_count() > 0);
        &mut self.optimizers
    }

    fn member(&mut self, optimizer: &Option<Arc<()>>) -> Option<&mut Member> {
        let optimizer = Arc::downgrade(optimizer.as_ref()?);
        let mut optimizers = self.optimizers.iter_mut();
        optimizers.find(|member| member.optimizer.ptr_eq(&optimizer))
    }

    fn update(&mut self, rule: &LossScaleRule) {
        self.scale.update(rule, self.has_overflown);
        self.has_overflown = false;
        for member in self.optimizers() {
            member.has_stepped = false;
        }
    }
}

impl LossScaler {
    /// Ignores poisoning: each change of the state is whole.
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Returns the scaled loss, to run backward from.
    pub fn scale<const D: usize>(&self, loss: Tensor<D>) -> Tensor<D> {
        let mut state = self.state();
        let scale = state.scale.current();
        for member in state.optimizers() {
            member.asked = Some(scale);
        }
        loss * scale
    }

    /// The current scale.
    pub fn current(&self) -> f64 {
        self.state().scale.current()
    }

    /// The scaler as an optimizer holds it.
    pub(super) fn for_optimizer(self) -> Self {
        let optimizer = Arc::new(());
        self.state().optimizers.push(Member {
            optimizer: Arc::downgrade(&optimizer),
            asked: None,
            has_stepped: false,
        });
        Self {
            optimizer: Some(optimizer),
            ..self
        }
    }

    /// The scale of the loss that an optimizer has the gradients of.
    fn asked(&self) -> Option<f64> {
        self.state().member(&self.optimizer)?.asked
    }

    /// Factor that unscales a gradient.
    pub(super) fn inverse(&self) -> f64 {
        1.0 / self.asked().unwrap_or_else(|| self.current())
    }

    pub(super) fn out_of_range(&self) -> Option<OutOfRange> {
        self.rule.out_of_range()
    }

    /// Refuses steps that would all be skipped.
    pub(super) fn check(&self) -> Result<(), ReleaseError> {
        let scale = self.state().scale;
        match scale.is_exhausted() {
            true => Err(ReleaseError::LossScale {
                scale: scale.current(),
            }),
            false => Ok(()),
        }
    }

    /// Begins another pass of the same step, whose loss must be scaled, too.
    pub(super) fn begin_pass(&self) {
        if let Some(member) = self.state().member(&self.optimizer) {
            member.asked = None;
        }
    }

    pub(super) fn is_asked(&self) -> bool {
        self.asked().is_some()
    }

    /// Ends a step of an optimizer. Returns its scale.
    pub(super) fn update(&self, has_overflown: bool) -> f64 {
        let mut state = self.state();
        let current = state.scale.current();
        let member = state.member(&self.optimizer);
        if member.is_some_and(|member| member.has_stepped) {
            state.update(&self.rule);
        }
        state.has_overflown |= has_overflown;
        let member = state.member(&self.optimizer);
        let asked = member.and_then(|member| {
            member.has_stepped = true;
            member.asked.take()
        });
        if state.optimizers().iter().all(|member| member.has_stepped) {
            state.update(&self.rule);
        }
        asked.unwrap_or(current)
    }

    pub(super) fn to_record(&self) -> LossScale {
        self.state().scale
    }

    pub(super) fn load_record(&self, scale: LossScale) {
        self.state().scale = scale;
    }
}

//! Weights in 16 bits with the bits that their optimizer keeps beside them, one weight at a time.
//!
//! The bits are in states of Burn's `ModuleOptimizer`, which hands a state out to a step alone. So the
//! optimizer is asked by a step to do something else.

use std::cell::Cell;

use burn::module::{Module, Param, ParamGroup, ParamId};
use burn::optim::ModuleOptimizer;
use burn::tensor::{DType, Tensor};

use super::ReleaseOptimizer;
use super::model::with_value;
use super::one_param::{stateless, step_one};
use crate::error::{Refused, ReleaseError};
use crate::path::{Path, PathMapper, PathVisitor, WithPaths, path_text};

/// What an optimizer of weights in 16 bits does in place of a step.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Request {
    /// Rounds a weight in f32 to this type, and keeps the other bits in a new state.
    Round(DType),
    /// Gives the weight with the bits of its state, in f32. The state is dropped.
    #[cfg(feature = "safetensors")]
    Widen,
}

thread_local! {
    static REQUEST: Cell<Option<Request>> = const { Cell::new(None) };
}

/// What is asked for, for an optimizer to read first in its step.
pub(crate) fn request() -> Option<Request> {
    REQUEST.get()
}

/// Called by an optimizer that does what is asked for.
pub(crate) fn fulfil() {
    REQUEST.set(None);
}

/// Asks for something. `None` if the optimizer of this parameter cannot do it: it may have taken a step in
/// place of it.
fn ask<const D: usize>(
    request: Request,
    optim: &mut ModuleOptimizer,
    (id, path): (ParamId, &str),
    weight: Tensor<D>,
) -> Option<Tensor<D>> {
    /// A step that panics is not to make the next one a request.
    struct Asking;
    impl Drop for Asking {
        fn drop(&mut self) {
            REQUEST.set(None);
        }
    }
    // A single number in memory.
    let grad = Tensor::<D>::zeros([1; D], (&weight.device(), weight.dtype()));
    let grad = grad.expand(weight.shape());
    REQUEST.set(Some(request));
    let _asking = Asking;
    let weight = step_one(optim, 0.0.into(), id, path, weight, grad);
    REQUEST.get().is_none().then_some(weight)
}

impl ReleaseOptimizer {
    /// Rounds the f32 parameters of a group to bf16 or f16. The optimizer keeps the other bits, as
    /// [`Bf16Weights`](crate::optim::Bf16Weights) does: [in five
    /// bytes](crate::optim::InFiveBytes::in_five_bytes), 24 of the 32 bits are kept. States of
    /// these parameters are dropped.
    ///
    /// One parameter after another is read, and rounded in place. So a model whose weights are
    /// [in files](crate::safetensors) in f32 is never in f32 as a whole.
    ///
    /// ```
    /// use burn::nn::{Linear, LinearConfig};
    /// use burn::optim::AdamWConfig;
    /// use burn::tensor::{DType, Device};
    /// use burn_lean::optim::InFiveBytes;
    /// use burn_lean::{MixedPrecision, WithGradientRelease};
    ///
    /// let model: Linear = LinearConfig::new(64, 64).init(&Device::flex().autodiff());
    /// let mut optim = AdamWConfig::new().in_five_bytes(42).init().with_gradient_release();
    /// let group = MixedPrecision::bf16().params(&model)?;
    /// let model = optim.round_weights(model, &group, DType::BF16)?;
    /// assert_eq!(model.weight.val().dtype(), DType::BF16);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`NotSteppable`](ReleaseError::NotSteppable), with the model: the optimizer of a parameter has no
    /// weights in this type. [`Interrupted`](ReleaseError::Interrupted), too.
    pub fn round_weights<M: Module>(
        &mut self,
        model: M,
        group: &ParamGroup,
        dtype: DType,
    ) -> Result<M, Refused<M, (), ReleaseError>> {
        let optim = match self.own_optimizer() {
            Ok(optim) => stateless(&optim),
            Err(error) => return Err(Refused::new(model, error)),
        };
        let mut check = CanRound {
            optim,
            group,
            dtype,
            refused: None,
        };
        model.visit(&mut WithPaths::new(&mut check));
        if let Some(path) = check.refused {
            let reason = format!(
                "its optimizer steps no weights in {dtype:?} with other bits beside them: make it one of \
                 `Bf16Weights`, as by `in_five_bytes`"
            );
            return Err(Refused::new(
                model,
                ReleaseError::NotSteppable { path, reason },
            ));
        }
        // States of another kind are there.
        self.asked = Default::default();
        let optim = &mut self.stepper_mut().optim;
        let mut round = Round {
            optim,
            group,
            dtype,
        };
        Ok(model.map(&mut WithPaths::new(&mut round)))
    }
}

/// Looks for a parameter that cannot be rounded, without reading it.
struct CanRound<'a> {
    /// Without states.
    optim: ModuleOptimizer,
    group: &'a ParamGroup,
    dtype: DType,
    refused: Option<String>,
}

impl PathVisitor for CanRound<'_> {
    fn visit<const D: usize>(&mut self, path: &Path, param: &Param<Tensor<D>>) {
        let path = path_text(path);
        if self.refused.is_none() && self.group.matches(&param.id, Some(&path)) {
            let one = Tensor::<D>::zeros([1; D], (&param.lazy_device().inner(), DType::F32));
            let (of, request) = ((param.id, path.as_str()), Request::Round(self.dtype));
            if ask(request, &mut self.optim, of, one).is_none() {
                self.refused = Some(path);
            }
        }
    }
}

struct Round<'a> {
    optim: &'a mut ModuleOptimizer,
    group: &'a ParamGroup,
    dtype: DType,
}

impl PathMapper for Round<'_> {
    fn map<const D: usize>(&mut self, path: &Path, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, path) = (param.id, path_text(path));
        // In this order: a parameter is drawn, or read from its file, when it is first looked at.
        if !self.group.matches(&id, Some(&path)) || param.base().dtype() != DType::F32 {
            return param;
        }
        with_value(param, |weight| {
            let weight = ask(Request::Round(self.dtype), self.optim, (id, &path), weight);
            weight.expect("its optimizer was asked before")
        })
    }
}

/// Weights with the bits that an optimizer keeps beside them.
#[cfg(feature = "safetensors")]
pub(crate) struct MasterWeights(ModuleOptimizer);

#[cfg(feature = "safetensors")]
impl MasterWeights {
    /// Those of an optimizer, whose states are shared and not copied.
    pub(crate) fn of(optim: &ReleaseOptimizer) -> Result<Self, ReleaseError> {
        optim.own_optimizer().map(Self)
    }

    /// The parameter in f32, or as it is, if nothing is kept beside it. Asked once for each.
    pub(crate) fn of_param<const D: usize>(
        &mut self,
        path: &Path,
        param: &Param<Tensor<D>>,
    ) -> Tensor<D> {
        let (weight, path) = (param.base().inner(), path_text(path));
        let widened = ask(
            Request::Widen,
            &mut self.0,
            (param.id, &path),
            weight.clone(),
        );
        widened.unwrap_or(weight)
    }
}

//! Checks of the gradients that are given to a step or to a micro-batch.

use burn::Tensor;
use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;

use super::survey::{Survey, is_same};
use crate::backend::reading_waits;
use crate::error::ReleaseError;
use crate::path::path_text;
use crate::session::Session;
use crate::tape::{is_placeholder, is_replaced};

/// Checks that `grads` has the mark of each gradient that was taken inside backward, and that the
/// parameters are those that were armed.
pub(super) fn check_claims<M: Module>(
    session: &Session,
    survey: &Survey,
    model: &M,
    grads: &GradientsParams,
) -> Result<(), ReleaseError> {
    let mut claims = Claims {
        session,
        grads,
        survey,
        has_gradients: false,
        error: None,
    };
    survey.check_computed()?;
    model.visit(&mut claims);
    if let Some(error) = claims.error {
        return Err(error);
    }
    let slots = session.slots();
    let is_used = slots.values().any(|slot| slot.is_used() || slot.has_sum());
    match !session.is_armed() || slots.is_empty() || is_used || claims.has_gradients {
        true => Ok(()),
        false => Err(ReleaseError::NoForward),
    }
}

/// Checks that no sum of earlier micro-batches has the mark of a gradient that was taken.
pub(super) fn check_sums<M: Module>(
    survey: &Survey,
    model: &M,
    sums: &GradientsParams,
) -> Result<(), ReleaseError> {
    struct Sums<'a>(&'a Survey, &'a GradientsParams, Result<(), ReleaseError>);
    impl ModuleVisitor for Sums<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if self.2.is_ok() {
                self.2 = self.0.check_gradient(param, self.1.get::<D>(param.id));
            }
        }
    }
    if sums.is_empty() {
        return Ok(());
    }
    let mut checked = Sums(survey, sums, Ok(()));
    model.visit(&mut checked);
    checked.2
}

struct Claims<'a> {
    session: &'a Session,
    grads: &'a GradientsParams,
    survey: &'a Survey,
    has_gradients: bool,
    error: Option<ReleaseError>,
}

impl Claims<'_> {
    fn check<const D: usize>(&mut self, param: &Param<Tensor<D>>) -> Result<(), ReleaseError> {
        let grad = self.grads.get::<D>(param.id);
        self.has_gradients |= grad.is_some();
        let slot = self.session.slots().get(&param.id).cloned();
        let Some(slot) = slot else {
            let found = self.survey.found.get(&param.id).filter(|_| grad.is_some());
            let Some(found) = found.filter(|found| found.is_copy || found.is_armed) else {
                return self.survey.check_gradient(param, grad);
            };
            let path = path_text(found.slot.path());
            return Err(match found.is_copy {
                true => ReleaseError::Copy { path },
                false => ReleaseError::ArmedElsewhere { path },
            });
        };
        let path = || path_text(slot.path());
        // A `Param` that was taken apart and built again has lost its reparameterization.
        let found = self.survey.found.get(&param.id);
        let has_slot = found.is_some_and(|found| is_same(&slot, &found.slot));
        let is_replaced = is_replaced(slot.leaf_id(), param.base());
        let is_stepped = slot.phase().is_taken();
        let is_rebuilt_since = is_stepped && self.survey.is_bare(param.id);
        if !(has_slot || is_replaced || is_rebuilt_since) {
            return Err(ReleaseError::Placeholder { path: path() });
        }
        if is_stepped && is_replaced {
            return Err(ReleaseError::WrongModel { path: path() });
        }
        if !is_stepped {
            return self.survey.check_gradient(param, grad);
        }
        let Some(grad) = grad else {
            return Err(ReleaseError::Unclaimed { path: path() });
        };
        let waits = reading_waits(&grad.clone().into_dispatch().kind);
        let is_mark = grad.dims() == [1; D] && (waits || is_placeholder(grad));
        match is_mark {
            true => Ok(()),
            false => Err(ReleaseError::GradientChanged { path: path() }),
        }
    }
}

impl ModuleVisitor for Claims<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Err(error) = self.check(param) {
            self.error.get_or_insert(error);
        }
    }
}

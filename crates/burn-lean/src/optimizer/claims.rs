//! Checks of the gradients that are given to a step or to a micro-batch.

use std::sync::Arc;

use burn::backend::{DispatchTensor, TensorMetadata};
use burn::optim::GradientsParams;

use super::survey::{Survey, Surveyed, is_own};
use crate::backend::reading_waits;
use crate::error::ReleaseError;
use crate::parameter::Found;
use crate::path::path_text;
use crate::session::Session;
use crate::tape::is_placeholder;

/// Checks that `grads` has the mark of each gradient that was taken inside backward, and that the
/// parameters are those that were armed.
pub(super) fn check_claims(
    session: &Session,
    survey: &Survey,
    grads: &GradientsParams,
) -> Result<(), ReleaseError> {
    survey.check_computed()?;
    let mut has_gradients = false;
    for surveyed in &survey.params {
        let grad = surveyed.param.grad(grads);
        has_gradients |= grad.is_some();
        check_claim(session, survey, surveyed, grad)?;
    }
    let slots = session.slots();
    let is_used = slots.values().any(|slot| slot.is_used() || slot.has_sum());
    match !session.is_armed() || slots.is_empty() || is_used || has_gradients {
        true => Ok(()),
        false => Err(ReleaseError::NoForward),
    }
}

/// Checks that no sum of earlier micro-batches has the mark of a gradient that was taken.
pub(super) fn check_sums(survey: &Survey, sums: &GradientsParams) -> Result<(), ReleaseError> {
    let mut params = survey.params.iter();
    params.try_for_each(|surveyed| surveyed.check_gradient(surveyed.param.grad(sums).as_ref()))
}

fn check_claim(
    session: &Session,
    survey: &Survey,
    surveyed: &Surveyed,
    grad: Option<DispatchTensor>,
) -> Result<(), ReleaseError> {
    let id = surveyed.param.id;
    let found = survey.found.get(&id);
    let Some(slot) = session.slots().get(&id).cloned() else {
        // A parameter that was loaded under another id is stepped after backward.
        let is_elsewhere = |found: &&Found| found.is_armed && !is_own(session, found);
        let found =
            found.filter(|found| grad.is_some() && (found.is_copy() || is_elsewhere(found)));
        let Some(found) = found else {
            return surveyed.check_gradient(grad.as_ref());
        };
        let path = path_text(&found.slot.path());
        return Err(match found.is_copy() {
            true => ReleaseError::Copy { path },
            false => ReleaseError::ArmedElsewhere { path },
        });
    };
    let path = || path_text(&slot.path());
    // A `Param` that was taken apart and built again has lost its reparameterization.
    let has_slot = found.is_some_and(|found| Arc::ptr_eq(&slot, &found.slot));
    let is_replaced = surveyed.is_replaced(&slot);
    let is_stepped = slot.phase().is_taken();
    let is_rebuilt_since = is_stepped && survey.is_bare(surveyed);
    if !(has_slot || is_replaced || is_rebuilt_since) {
        return Err(ReleaseError::Placeholder { path: path() });
    }
    if is_stepped && is_replaced {
        return Err(ReleaseError::WrongModel { path: path() });
    }
    if !is_stepped {
        return surveyed.check_gradient(grad.as_ref());
    }
    let Some(grad) = grad else {
        return Err(ReleaseError::Unclaimed { path: path() });
    };
    let is_one = grad.shape().iter().all(|dim| *dim == 1);
    match is_one && (reading_waits(&grad) || is_placeholder(&grad)) {
        true => Ok(()),
        false => Err(ReleaseError::GradientChanged { path: path() }),
    }
}

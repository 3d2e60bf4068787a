//! Reduction of ordinary gradients over replicas.

use burn::Tensor;
use burn::module::{Module, ModuleMapper, Param, ParamId};
use burn::optim::GradientsParams;

use super::restoring::with_value;
use super::survey::{Survey, Surveyed};
use crate::error::ReleaseError;
use crate::reduction::{InFlight, Recipients, flat, shaped};

/// Reduces the gradients of a model, in the order of its fields. Drops those that another replica
/// steps with. Returns the parameters that had a gradient.
pub(super) fn reduce(
    in_flight: &InFlight,
    survey: &Survey,
    recipients: Recipients,
    grads: &mut GradientsParams,
) -> Result<Vec<ParamId>, ReleaseError> {
    let mut reduced = Vec::new();
    let mut receiver = |param, grad| {
        reduced.push((param, grad));
        Ok(())
    };
    for Surveyed { param, .. } in &survey.params {
        if let Some(grad) = param.take_grad(grads) {
            in_flight.send(param.id, flat(grad), recipients, &mut receiver)?;
        }
    }
    in_flight.wait_for_all(&mut receiver)?;
    let params = reduced.iter().map(|(param, _)| *param).collect();
    for (param, grad) in reduced {
        if let (Some(surveyed), Some(grad)) = (survey.param(param), grad) {
            let grad = shaped(grad, surveyed.param.shape.clone());
            surveyed.param.put_grad(grads, grad);
        }
    }
    Ok(params)
}

/// Sends the stepped weights from their owners to all replicas.
pub(super) fn weights_from_owners<M: Module>(
    in_flight: &InFlight,
    model: M,
    params: &[ParamId],
) -> Result<M, (M, ReleaseError)> {
    let mut owners = Owners {
        in_flight,
        params,
        error: None,
    };
    if !in_flight.reduction().is_sharded() {
        return Ok(model);
    }
    let model = model.map(&mut owners);
    match owners.error {
        None => Ok(model),
        Some(error) => Err((model, error)),
    }
}

struct Owners<'a> {
    in_flight: &'a InFlight,
    params: &'a [ParamId],
    error: Option<ReleaseError>,
}

impl ModuleMapper for Owners<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if self.error.is_some() || !self.params.contains(&param.id) {
            return param;
        }
        let id = param.id;
        with_value(param, |weight| {
            let own = weight.clone().into_dispatch();
            match self.in_flight.weight_from_owner(id, own) {
                Ok(weight) => Tensor::from_dispatch(weight),
                Err(error) => {
                    self.error = Some(error);
                    weight
                }
            }
        })
    }
}

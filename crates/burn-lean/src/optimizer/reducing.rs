//! Reduction of ordinary gradients over replicas.

use burn::Tensor;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;

use super::restoring::as_param;
use crate::error::ReleaseError;
use crate::reduction::{InFlight, Recipients};

/// Reduces the gradients of a model, in the order of its fields. Drops those that another replica
/// steps with. Returns the parameters that had a gradient.
pub(super) fn reduce<M: Module>(
    in_flight: &InFlight,
    model: &M,
    recipients: Recipients,
    grads: &mut GradientsParams,
) -> Result<Vec<ParamId>, ReleaseError> {
    let mut send = Send {
        in_flight,
        recipients,
        grads,
        reduced: Vec::new(),
        error: None,
    };
    model.visit(&mut send);
    let Send {
        mut reduced, error, ..
    } = send;
    if let Some(error) = error {
        return Err(error);
    }
    in_flight.wait_for_all(&mut |param, grad| {
        reduced.push((param, grad));
        Ok(())
    })?;
    let params = reduced.iter().map(|(param, _)| *param).collect();
    reduced.reverse();
    model.visit(&mut Receive { grads, reduced });
    Ok(params)
}

/// Takes gradients out, flattens them and sends them.
struct Send<'a> {
    in_flight: &'a InFlight,
    recipients: Recipients,
    grads: &'a mut GradientsParams,
    reduced: Vec<(ParamId, Option<Tensor<1>>)>,
    error: Option<ReleaseError>,
}

impl ModuleVisitor for Send<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(grad) = self.grads.remove::<D>(param.id) else {
            return;
        };
        let reduced = &mut self.reduced;
        let mut receiver = |param, grad| {
            reduced.push((param, grad));
            Ok(())
        };
        let numbers = grad.shape().num_elements();
        let grad = grad.reshape([numbers]);
        let sent = self
            .in_flight
            .send(param.id, grad, self.recipients, &mut receiver);
        if let Err(error) = sent {
            self.error.get_or_insert(error);
        }
    }
}

/// Puts reduced gradients back.
struct Receive<'a> {
    grads: &'a mut GradientsParams,
    /// The reduced gradients, in reverse order.
    reduced: Vec<(ParamId, Option<Tensor<1>>)>,
}

impl ModuleVisitor for Receive<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some((_, grad)) = self.reduced.pop_if(|(id, _)| *id == param.id)
            && let Some(grad) = grad
        {
            self.grads
                .register(param.id, grad.reshape(param.shape().dims::<D>()));
        }
    }
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
        let is_active = param.is_require_grad();
        let (id, weight, mapper) = param.consume();
        let strategy = weight.gradient_checkpointing_strategy();
        let shape = weight.shape();
        let flat = weight.clone().inner().reshape([shape.num_elements()]);
        let weight = match self.in_flight.weight_from_owner(id, flat) {
            Ok(flat) => as_param(flat.reshape(shape.dims::<D>()), strategy, is_active),
            Err(error) => {
                self.error = Some(error);
                weight
            }
        };
        Param::from_mapped_value(id, weight, mapper)
    }
}

//! A module with one parameter under its full path. Burn's optimizer steps it with its groups,
//! rates and clipping.

use std::collections::HashSet;

use burn::Tensor;
use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
#[cfg(any(feature = "data-parallel", feature = "optim"))]
use burn::module::ParamGroup;
use burn::module::{Devices, Module, ModuleMapper, ModuleVisitor, Param, ParamId, ParamMapper};
#[cfg(any(feature = "data-parallel", feature = "optim"))]
use burn::optim::SgdConfig;
#[cfg(feature = "optim")]
use burn::optim::join_path;
use burn::optim::{GradientsParams, ModuleOptimizer, OptimizerRecord};
#[cfg(feature = "optim")]
use burn::store::RecordError;
use burn::tensor::{DType, Device, Shape};
#[cfg(feature = "optim")]
use burn_pack::Writer;

use crate::gradients::{Answer, asked};
use crate::path::AnyParam;

#[derive(Clone, Debug)]
struct OneParam<'a, const D: usize> {
    path: &'a str,
    param: Param<Tensor<D>>,
}

impl<const D: usize> Module for OneParam<'_, D> {
    fn map<M: ModuleMapper>(self, mapper: &mut M) -> Self {
        // Burn joins the names to this text.
        mapper.enter_module(self.path, "");
        let param = Module::map(self.param, mapper);
        mapper.exit_module(self.path, "");
        Self {
            path: self.path,
            param,
        }
    }

    fn visit<V: ModuleVisitor>(&self, visitor: &mut V) {
        self.param.visit(visitor);
    }

    fn collect_devices(&self, devices: Devices) -> Devices {
        self.param.collect_devices(devices)
    }

    fn fork(self, _: &Device) -> Self {
        self
    }

    fn to_device(self, _: &Device) -> Self {
        self
    }

    fn valid(&self) -> Self {
        self.clone()
    }

    fn train(self) -> Self {
        self
    }

    fn materialize(self) -> Self {
        self
    }
}

/// Asks the optimizer of a parameter of rank `D` whether it steps a weight of this shape and type.
pub(super) type Ask = fn(&mut ModuleOptimizer, &AnyParam, Shape, &Device, DType) -> Answer;

/// An [`Ask`], for an optimizer whose states are dropped.
pub(super) fn ask<const D: usize>(
    optim: &mut ModuleOptimizer,
    param: &AnyParam,
    shape: Shape,
    device: &Device,
    dtype: DType,
) -> Answer {
    let one = || Tensor::<D>::ones([1; D], (&device.clone().inner(), dtype));
    // As a `Shape`, it may have no elements.
    let ones = || one().expand::<D, _>(shape.clone());
    asked(|| {
        step_one(optim, 0.0.into(), param.id, &param.path, ones(), ones());
    })
}

/// The parameters that have optimizers which do not step every parameter: those of `optim`. Each
/// comes with whether its device has bf16.
///
/// Found by the states that a record without any is read into, as a step may have effects.
#[cfg(feature = "optim")]
pub(super) fn may_refuse<'a>(
    optim: &ModuleOptimizer,
    params: impl Iterator<Item = (&'a AnyParam, bool)>,
) -> HashSet<ParamId> {
    let mut record = Writer::new(Vec::new());
    let mut without_bf16 = HashSet::new();
    for (param, has_bf16) in params {
        if !has_bf16 {
            without_bf16.insert(param.id);
        }
        let name = param.id.val().to_string();
        let rank = param.shape.num_dims();
        record = record
            .with_scalar(&join_path(&name, "__rank"), rank.into())
            .with_metadata(&name, &param.path);
    }
    let record = record.into_bytes().map_err(RecordError::from);
    let record = record.and_then(OptimizerRecord::from_bytes);
    let record = record.expect("a record of names is written to memory, and read");
    let answer = asked(|| drop(optim.clone().load_record(record)));
    let names = answer.states.iter();
    // The name of a state is that of the parameter, and begins that of a moment in it. Moments may want
    // bf16.
    let states = names.filter_map(|name| match name.split_once('.') {
        None => name.parse().ok().map(|id: u64| (ParamId::from(id), false)),
        Some((name, _)) => name.parse().ok().map(|id: u64| (ParamId::from(id), true)),
    });
    let refusing = states.filter(|(id, is_moment)| !is_moment || without_bf16.contains(id));
    refusing.map(|(id, _)| id).collect()
}

/// The parameters that have optimizers which do not step every parameter.
#[cfg(not(feature = "optim"))]
pub(super) fn may_refuse<'a>(
    _: &ModuleOptimizer,
    _: impl Iterator<Item = (&'a AnyParam, bool)>,
) -> HashSet<ParamId> {
    HashSet::new()
}

/// The settings and the groups of an optimizer, and none of its states.
pub(super) fn stateless(optim: &ModuleOptimizer) -> ModuleOptimizer {
    optim.clone().load_record(OptimizerRecord::default())
}

/// The states of one parameter, where `to_record` copies those of all.
#[cfg(any(feature = "data-parallel", feature = "optim"))]
pub(crate) fn record_of(optim: &ModuleOptimizer, param: ParamId) -> OptimizerRecord {
    // A new group drops the states of its parameters, here those of all others. Cloning the optimizer
    // copies no tensor.
    let others = ParamGroup::all().exclude(ParamGroup::from_ids(vec![param]));
    let optim = optim.clone();
    let optim = optim.with_group(others, SgdConfig::new().build(), None);
    optim.to_record()
}

/// One step of Burn's optimizer, over tensors without autodiff.
pub(crate) fn step_one<const D: usize>(
    optim: &mut ModuleOptimizer,
    lr: ModuleLearningRate,
    id: ParamId,
    path: &str,
    weight: Tensor<D>,
    grad: Tensor<D>,
) -> Tensor<D> {
    let mut grads = GradientsParams::new();
    grads.register::<D>(id, grad);
    // The optimizer steps only tensors with autodiff. A leaf without gradients has no graph.
    let param = Param::from_mapped_value(id, weight.autodiff(), ParamMapper::default());
    let stepped = optim.step(lr, OneParam { path, param }, grads);
    stepped.param.into_value().inner()
}

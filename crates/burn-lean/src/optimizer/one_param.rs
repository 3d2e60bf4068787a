//! A module with one parameter under its full path. Burn's optimizer steps it with its groups,
//! rates and clipping.

use burn::Tensor;
use burn::backend::DispatchTensor;
use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::module::{Devices, Module, ModuleMapper, ModuleVisitor, Param, ParamId, ParamMapper};
use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::tensor::{DType, Device};

use crate::gradients::asked;
use crate::path::{AnyParam, Path};
use crate::session::{Stepper, Taken};

#[derive(Clone, Debug)]
struct OneParam<'a, const D: usize> {
    path: &'a Path,
    param: Param<Tensor<D>>,
}

impl<const D: usize> Module for OneParam<'_, D> {
    fn map<M: ModuleMapper>(self, mapper: &mut M) -> Self {
        for (name, container) in self.path {
            mapper.enter_module(name, container);
        }
        let param = Module::map(self.param, mapper);
        for (name, container) in self.path.iter().rev() {
            mapper.exit_module(name, container);
        }
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

/// Steps a weight of rank `D` with Burn's optimizer: a [`StepFn`](crate::session::StepFn).
pub(super) fn step<const D: usize>(
    stepper: &mut Stepper,
    id: ParamId,
    path: &Path,
    weight: DispatchTensor,
    grad: DispatchTensor,
    is_owner: bool,
) -> (DispatchTensor, Taken) {
    let weight = Tensor::<D>::from_dispatch(weight);
    let grad = Tensor::<D>::from_dispatch(grad);
    // A sum of micro-batches, or a mean over replicas, may be in f32.
    stepper.gradients.note_widened([id]);
    let Some(grad) = stepper.gradients.apply(id, &weight, grad) else {
        return (weight.into_dispatch(), Taken::Skipped);
    };
    if !is_owner {
        return (weight.into_dispatch(), Taken::Stepped);
    }
    let (Some(optim), Some(lr)) = (&mut stepper.optim, &stepper.lr) else {
        unreachable!("a slot steps only while its optimizer is armed");
    };
    let weight = step_one(optim, lr.clone(), id, path, weight, grad);
    (weight.into_dispatch(), Taken::Stepped)
}

/// Asks whether the optimizer of a parameter of rank `D` takes gradients in f32 of a weight of this
/// type.
pub(super) type TakesF32 = fn(&mut ModuleOptimizer, &AnyParam, &Device, DType) -> bool;

/// A [`TakesF32`], for an optimizer that has no states to keep.
pub(super) fn takes_f32<const D: usize>(
    optim: &mut ModuleOptimizer,
    param: &AnyParam,
    device: &Device,
    dtype: DType,
) -> bool {
    let ones = || Tensor::<D>::ones([1; D], (&device.clone().inner(), dtype));
    asked(|| {
        step_one(optim, 0.0.into(), param.id, &param.path, ones(), ones());
    })
}

/// One step of Burn's optimizer, over tensors without autodiff.
pub(crate) fn step_one<const D: usize>(
    optim: &mut ModuleOptimizer,
    lr: ModuleLearningRate,
    id: ParamId,
    path: &Path,
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

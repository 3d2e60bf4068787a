//! Models that must be equal on all replicas.

use burn::Tensor;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::kind::Basic;
use burn::tensor::{Bool, Int, TensorData};
use lean_replicas::{Comparison, Known, Reception, ReplicaError, Replicas, kind};

use crate::optimizer::as_param;
use crate::parameter::armed_path;

/// Sends the model of the first replica, with its ids, to all of them.
pub(super) fn broadcast<M: Module>(replicas: &Replicas, model: M) -> Result<M, ReplicaError> {
    check_unarmed(&model)?;
    synchronize(&model);
    let mut receive = Receive(Reception::new(replicas));
    let model = model.map(&mut receive);
    receive.0.finish().map(|()| model)
}

/// Refuses armed parameters, which hold placeholders.
fn check_unarmed<M: Module>(model: &M) -> Result<(), ReplicaError> {
    match armed_path(model) {
        None => Ok(()),
        Some(path) => Err(ReplicaError::Armed { path }),
    }
}

/// Applies the updates of running statistics that are pending, as Burn does at the next update: they
/// would overwrite what was received.
fn synchronize<M: Module>(model: &M) {
    drop(model.valid());
}

struct Receive<'a>(Reception<'a>);

impl Receive<'_> {
    /// Replaces a parameter by that of the first replica.
    fn receive<const D: usize, K: Basic>(
        &mut self,
        id: ParamId,
        tensor: Tensor<D, K>,
    ) -> (ParamId, Tensor<D, K>) {
        let device = tensor.device();
        let data = tensor.clone().into_data();
        let (bytes, shape, dtype) = data.into_parts();
        let kind = kind(shape.as_slice(), dtype);
        match self.0.receive(id.val(), &kind, bytes.to_vec()) {
            Some((id, bytes)) => {
                let data = TensorData::from_bytes_vec(bytes, shape, dtype);
                (ParamId::from(id), Tensor::from_data(data, (&device, dtype)))
            }
            None => (id, tensor),
        }
    }
}

impl ModuleMapper for Receive<'_> {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.0.enter(name);
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.0.exit();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let is_trained = param.is_require_grad();
        let (id, tensor, mapper) = param.consume();
        let strategy = tensor.gradient_checkpointing_strategy();
        let (id, tensor) = self.receive(id, tensor.inner());
        Param::from_mapped_value(id, as_param(tensor, strategy, is_trained), mapper)
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        let (id, tensor, mapper) = param.consume();
        let (id, tensor) = self.receive(id, tensor);
        Param::from_mapped_value(id, tensor, mapper)
    }

    fn map_bool<const D: usize>(
        &mut self,
        param: Param<Tensor<D, Bool>>,
    ) -> Param<Tensor<D, Bool>> {
        let (id, tensor, mapper) = param.consume();
        let (id, tensor) = self.receive(id, tensor);
        Param::from_mapped_value(id, tensor, mapper)
    }
}

/// Compares the models of all replicas. Returns the float parameters, in the order of the model.
pub(super) fn verify<M: Module>(
    replicas: &Replicas,
    model: &M,
) -> Result<Vec<Known>, ReplicaError> {
    check_unarmed(model)?;
    synchronize(model);
    let mut compare = Compare(Comparison::new(replicas));
    model.visit(&mut compare);
    compare.0.finish()
}

struct Compare<'a>(Comparison<'a>);

impl Compare<'_> {
    fn compare<const D: usize, K: Basic>(&mut self, id: Option<ParamId>, tensor: Tensor<D, K>) {
        let id = id.map(|id| id.to_string());
        let kind = kind(tensor.shape().as_slice(), tensor.dtype());
        let bytes = || tensor.into_data().as_bytes().to_vec();
        self.0.compare(id.as_deref(), &kind, bytes);
    }
}

impl ModuleVisitor for Compare<'_> {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.0.enter(name);
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.0.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let size = param.shape().num_elements();
        let is_trained = param.is_require_grad();
        self.0.know(param.id.val(), size, is_trained);
        // Each replica has ids of its own for running statistics, which keep them for good.
        self.compare(is_trained.then_some(param.id), param.base());
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        self.compare(Some(param.id), param.base());
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        self.compare(Some(param.id), param.base());
    }
}

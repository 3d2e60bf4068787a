//! Models that must be equal on all replicas.

use burn::Tensor;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::kind::Basic;
use burn::tensor::{Bool, Int, TensorData};
use lean_replicas::{Known, ModelWalk, ReplicaError, Replicas, kind};

use crate::backend::reading_waits;
use crate::optimizer::as_param;
use crate::path::params_of;

/// Sends the model of the first replica, with its ids, to all of them. Of a model that trains, what
/// is trained is compared instead.
pub(super) fn broadcast<M: Module>(
    replicas: &Replicas,
    model: M,
    trains: bool,
) -> Result<M, ReplicaError> {
    synchronize(&model);
    let mut receive = Receive {
        walk: ModelWalk::new(replicas),
        trains,
    };
    let model = model.map(&mut receive);
    receive.walk.finish().map(|()| model)
}

/// The float parameters, in the order of the model.
pub(super) fn known<M: Module>(model: &M) -> Vec<Known> {
    let params = params_of(model).into_iter();
    let known = params.map(|param| Known {
        id: param.id.val(),
        path: param.path.to_string(),
        size: param.shape.num_elements(),
        is_trained: param.is_trained,
    });
    known.collect()
}

/// Applies the updates of running statistics that are pending, as Burn does at the next update: they
/// would overwrite what was received.
fn synchronize<M: Module>(model: &M) {
    drop(model.valid());
}

struct Receive<'a> {
    walk: ModelWalk<'a>,
    trains: bool,
}

impl Receive<'_> {
    /// Replaces a parameter by that of the first replica.
    fn receive<const D: usize, K: Basic>(
        &mut self,
        id: ParamId,
        is_trained: bool,
        tensor: Tensor<D, K>,
    ) -> (ParamId, Tensor<D, K>) {
        let device = tensor.device();
        let data = tensor.clone().into_data();
        let (bytes, shape, dtype) = data.into_parts();
        let kind = kind(shape.as_slice(), dtype);
        let received = self
            .walk
            .receive(id.val(), is_trained, &kind, bytes.to_vec());
        match received {
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
        self.walk.enter(name);
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.walk.exit();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let is_trained = param.is_require_grad();
        // On a GPU, a sum may end in other bits in each process: those of the first are for all.
        if is_trained && self.trains && !reading_waits(&param.base().into_dispatch()) {
            compare(&mut self.walk, Some(param.id), param.base());
            return param;
        }
        let (id, tensor, mapper) = param.consume();
        let strategy = tensor.gradient_checkpointing_strategy();
        let (id, tensor) = self.receive(id, is_trained, tensor.inner());
        Param::from_mapped_value(id, as_param(tensor, strategy, is_trained), mapper)
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        let (id, tensor, mapper) = param.consume();
        let (id, tensor) = self.receive(id, false, tensor);
        Param::from_mapped_value(id, tensor, mapper)
    }

    fn map_bool<const D: usize>(
        &mut self,
        param: Param<Tensor<D, Bool>>,
    ) -> Param<Tensor<D, Bool>> {
        let (id, tensor, mapper) = param.consume();
        let (id, tensor) = self.receive(id, false, tensor);
        Param::from_mapped_value(id, tensor, mapper)
    }
}

/// Compares the models of all replicas.
pub(super) fn verify<M: Module>(replicas: &Replicas, model: &M) -> Result<(), ReplicaError> {
    synchronize(model);
    let mut compare = Compare(ModelWalk::new(replicas));
    model.visit(&mut compare);
    compare.0.finish()
}

fn compare<const D: usize, K: Basic>(
    walk: &mut ModelWalk<'_>,
    id: Option<ParamId>,
    tensor: Tensor<D, K>,
) {
    let id = id.map(|id| id.to_string());
    let kind = kind(tensor.shape().as_slice(), tensor.dtype());
    let bytes = || tensor.into_data().as_bytes().to_vec();
    walk.compare(id.as_deref(), &kind, bytes);
}

struct Compare<'a>(ModelWalk<'a>);

impl ModuleVisitor for Compare<'_> {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.0.enter(name);
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.0.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        // Each replica has ids of its own for running statistics, which keep them for good.
        let id = param.is_require_grad().then_some(param.id);
        compare(&mut self.0, id, param.base());
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        compare(&mut self.0, Some(param.id), param.base());
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        compare(&mut self.0, Some(param.id), param.base());
    }
}

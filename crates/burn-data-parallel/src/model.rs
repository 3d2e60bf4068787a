//! Models that are to be the same on all replicas.

use std::hash::{DefaultHasher, Hash, Hasher};

use burn::{
    module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId},
    tensor::{BasicOps, Bool, DType, Int, Shape, Tensor, TensorData, backend::Backend},
};

use crate::{Replicas, error::ReplicaError, segments};

/// Where replicas are that have no further parameter.
const END_OF_MODEL: &str = "the end of the model";

/// A float parameter of a model.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    pub(crate) param: ParamId,
    pub(crate) path: String,
    pub(crate) size: usize,
    pub(crate) is_trained: bool,
}

/// The model of the first replica, with its ids.
pub(crate) fn broadcast<B: Backend, M: Module<B>>(
    replicas: &Replicas,
    model: M,
) -> Result<M, ReplicaError> {
    let mut receive = Receive {
        replicas,
        path: Path::default(),
        error: None,
    };
    let model = model.map(&mut receive);
    match receive.error {
        Some(error) => Err(error),
        None => replicas.meet(END_OF_MODEL).map(|()| model),
    }
}

struct Receive<'a> {
    replicas: &'a Replicas,
    path: Path,
    error: Option<ReplicaError>,
}

impl Receive<'_> {
    /// The parameter of the first replica in the place of this one's.
    fn receive<B: Backend, const D: usize, K: BasicOps<B>>(
        &mut self,
        id: ParamId,
        tensor: Tensor<B, D, K>,
    ) -> (ParamId, Tensor<B, D, K>) {
        if self.error.is_some() {
            return (id, tensor);
        }
        let device = tensor.device();
        let data = tensor.clone().into_data();
        let (shape, dtype) = (data.shape.clone(), data.dtype);
        let what = name(&self.path, &shape, dtype);
        let mut bytes = data.bytes.to_vec();
        let pending = self.replicas.begin(what, move |communicator| {
            let mut own = id.val().to_ne_bytes();
            communicator.broadcast(0, &mut own)?;
            segments::broadcast(communicator, 0, &mut bytes)?;
            Ok((ParamId::from(u64::from_ne_bytes(own)), bytes))
        });
        match pending.wait() {
            Ok((id, bytes)) => {
                let data = TensorData::from_bytes_vec(bytes, shape, dtype);
                (id, Tensor::from_data(data, (&device, dtype)))
            }
            Err(error) => {
                self.error = Some(error);
                (id, tensor)
            }
        }
    }
}

impl<B: Backend> ModuleMapper<B> for Receive<'_> {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.enter(name);
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.exit();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        let (id, tensor, mapper) = param.consume();
        let is_trained = tensor.is_require_grad();
        let (id, tensor) = self.receive(id, tensor);
        Param::from_mapped_value(id, tensor.set_require_grad(is_trained), mapper)
    }

    fn map_int<const D: usize>(
        &mut self,
        param: Param<Tensor<B, D, Int>>,
    ) -> Param<Tensor<B, D, Int>> {
        let (id, tensor, mapper) = param.consume();
        let (id, tensor) = self.receive(id, tensor);
        Param::from_mapped_value(id, tensor, mapper)
    }

    fn map_bool<const D: usize>(
        &mut self,
        param: Param<Tensor<B, D, Bool>>,
    ) -> Param<Tensor<B, D, Bool>> {
        let (id, tensor, mapper) = param.consume();
        let (id, tensor) = self.receive(id, tensor);
        Param::from_mapped_value(id, tensor, mapper)
    }
}

/// Compares the models of all replicas. Returns the float parameters, in the order of the model.
pub(crate) fn verify<B: Backend, M: Module<B>>(
    replicas: &Replicas,
    model: &M,
) -> Result<Vec<Known>, ReplicaError> {
    let mut compare = Compare {
        replicas,
        path: Path::default(),
        known: Vec::new(),
        error: None,
    };
    model.visit(&mut compare);
    match compare.error {
        Some(error) => Err(error),
        None => replicas.meet(END_OF_MODEL).map(|()| compare.known),
    }
}

struct Compare<'a> {
    replicas: &'a Replicas,
    path: Path,
    known: Vec<Known>,
    error: Option<ReplicaError>,
}

impl Compare<'_> {
    fn compare<B: Backend, const D: usize, K: BasicOps<B>>(
        &mut self,
        id: ParamId,
        tensor: Tensor<B, D, K>,
    ) {
        if self.error.is_some() {
            return;
        }
        let data = tensor.into_data();
        let mut hasher = DefaultHasher::new();
        data.bytes.hash(&mut hasher);
        let what = name(&self.path, &data.shape, data.dtype);
        let what = format!("{what}, id {id}, digest {:016x}", hasher.finish());
        self.error = self.replicas.meet(&what).err();
    }
}

impl<B: Backend> ModuleVisitor<B> for Compare<'_> {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.enter(name);
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        self.known.push(Known {
            param: param.id,
            path: self.path.to_string(),
            size: param.lazy_shape().num_elements(),
            is_trained: param.is_require_grad(),
        });
        self.compare(param.id, param.val());
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<B, D, Int>>) {
        self.compare(param.id, param.val());
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<B, D, Bool>>) {
        self.compare(param.id, param.val());
    }
}

fn name(path: &Path, shape: &Shape, dtype: DType) -> String {
    format!("parameter {path} {:?} {dtype:?}", shape.as_slice())
}

/// The names of the fields that lead to a parameter.
#[derive(Default)]
struct Path(Vec<String>);

impl Path {
    fn enter(&mut self, name: &str) {
        self.0.push(name.into());
    }

    fn exit(&mut self) {
        self.0.pop();
    }
}

impl std::fmt::Display for Path {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0.join("."))
    }
}

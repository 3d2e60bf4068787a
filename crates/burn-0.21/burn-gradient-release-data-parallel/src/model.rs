//! Models that are to be the same on all replicas.

use burn::{
    module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId},
    tensor::{BasicOps, Bool, Int, Tensor, TensorData, backend::Backend},
};
use lean_replicas::{Known, ModelWalk, ReplicaError, Replicas, kind};

/// The model of the first replica, with its ids; of a model that trains, only what is not trained.
pub(crate) fn broadcast<B: Backend, M: Module<B>>(
    replicas: &Replicas,
    model: M,
    with_trained: bool,
) -> Result<M, ReplicaError> {
    synchronize(&model);
    let mut receive = Receive {
        walk: ModelWalk::new(replicas),
        with_trained,
    };
    let model = model.map(&mut receive);
    receive.walk.finish().map(|()| model)
}

/// Applies the updates of running statistics that are pending, as Burn does at the next update: they
/// would overwrite what was received.
fn synchronize<B: Backend, M: Module<B>>(model: &M) {
    /// Initializes what was never read, of which a clone would draw other numbers.
    struct Initialize;

    impl<B: Backend> ModuleVisitor<B> for Initialize {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            drop(param.val());
        }

        fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<B, D, Int>>) {
            drop(param.val());
        }

        fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<B, D, Bool>>) {
            drop(param.val());
        }
    }

    model.visit(&mut Initialize);
    drop(model.clone().into_record());
}

struct Receive<'a> {
    walk: ModelWalk<'a>,
    with_trained: bool,
}

impl Receive<'_> {
    /// The parameter of the first replica in the place of this one's.
    fn receive<B: Backend, const D: usize, K: BasicOps<B>>(
        &mut self,
        id: ParamId,
        is_trained: bool,
        tensor: Tensor<B, D, K>,
    ) -> (ParamId, Tensor<B, D, K>) {
        let device = tensor.device();
        let data = tensor.clone().into_data();
        let (shape, dtype) = (data.shape.clone(), data.dtype);
        let kind = kind(shape.as_slice(), dtype);
        let received = self
            .walk
            .receive(id.val(), is_trained, &kind, data.bytes.to_vec());
        match received {
            Some((id, bytes)) => {
                let data = TensorData::from_bytes_vec(bytes, shape, dtype);
                (ParamId::from(id), Tensor::from_data(data, (&device, dtype)))
            }
            None => (id, tensor),
        }
    }
}

impl<B: Backend> ModuleMapper<B> for Receive<'_> {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.walk.enter(name);
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.walk.exit();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        let (id, tensor, mapper) = param.consume();
        let is_trained = tensor.is_require_grad();
        if is_trained && !self.with_trained {
            return Param::from_mapped_value(id, tensor, mapper);
        }
        let (id, tensor) = self.receive(id, is_trained, tensor);
        Param::from_mapped_value(id, tensor.set_require_grad(is_trained), mapper)
    }

    fn map_int<const D: usize>(
        &mut self,
        param: Param<Tensor<B, D, Int>>,
    ) -> Param<Tensor<B, D, Int>> {
        let (id, tensor, mapper) = param.consume();
        let (id, tensor) = self.receive(id, false, tensor);
        Param::from_mapped_value(id, tensor, mapper)
    }

    fn map_bool<const D: usize>(
        &mut self,
        param: Param<Tensor<B, D, Bool>>,
    ) -> Param<Tensor<B, D, Bool>> {
        let (id, tensor, mapper) = param.consume();
        let (id, tensor) = self.receive(id, false, tensor);
        Param::from_mapped_value(id, tensor, mapper)
    }
}

/// The float parameters, in the order of the model.
pub(crate) fn known<B: Backend, M: Module<B>>(model: &M) -> Vec<Known> {
    #[derive(Default)]
    struct Params {
        path: Vec<String>,
        known: Vec<Known>,
    }

    impl<B: Backend> ModuleVisitor<B> for Params {
        fn enter_module(&mut self, name: &str, _container_type: &str) {
            self.path.push(name.into());
        }

        fn exit_module(&mut self, _name: &str, _container_type: &str) {
            self.path.pop();
        }

        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            self.known.push(Known {
                id: param.id.val(),
                path: self.path.join("."),
                size: param.lazy_shape().num_elements(),
                is_trained: param.is_require_grad(),
            });
        }
    }

    let mut params = Params::default();
    model.visit(&mut params);
    params.known
}

/// Compares the models of all replicas.
pub(crate) fn verify<B: Backend, M: Module<B>>(
    replicas: &Replicas,
    model: &M,
) -> Result<(), ReplicaError> {
    synchronize(model);
    let mut compare = Compare(ModelWalk::new(replicas));
    model.visit(&mut compare);
    compare.0.finish()
}

struct Compare<'a>(ModelWalk<'a>);

impl Compare<'_> {
    fn compare<B: Backend, const D: usize, K: BasicOps<B>>(
        &mut self,
        id: Option<ParamId>,
        tensor: Tensor<B, D, K>,
    ) {
        let id = id.map(|id| id.to_string());
        let kind = kind(tensor.shape().as_slice(), tensor.dtype());
        let bytes = || tensor.into_data().bytes.to_vec();
        self.0.compare(id.as_deref(), &kind, bytes);
    }
}

impl<B: Backend> ModuleVisitor<B> for Compare<'_> {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.0.enter(name);
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.0.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        // Each replica has ids of its own for running statistics, which keep them for good.
        self.compare(param.is_require_grad().then_some(param.id), param.val());
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<B, D, Int>>) {
        self.compare(Some(param.id), param.val());
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<B, D, Bool>>) {
        self.compare(Some(param.id), param.val());
    }
}

//! The parameters of a model, and their paths.

use std::rc::Rc;

use burn::Tensor;
use burn::backend::DispatchTensor;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::Shape;

/// The names and container types of the modules around a parameter, from the outermost.
pub(crate) type Path = Vec<(String, String)>;

/// The path as Burn's parameter groups match it.
pub(crate) fn path_text(path: &[(String, String)]) -> String {
    let mut text = String::new();
    for (name, _) in path {
        if !text.is_empty() {
            text.push('.');
        }
        text.push_str(name);
    }
    text
}

#[cfg(any(feature = "optim", feature = "timeline"))]
pub(crate) fn is_embedding(path: &[(String, String)]) -> bool {
    let container = path.last().map(|(_, container)| container);
    container.is_some_and(|container| container.contains("Embedding"))
}

/// Whether a parameter is a part of a weight that `operations::Nf4` has packed, and not of its adapter.
pub(crate) fn is_packed(path: &[(String, String)]) -> bool {
    let container = path.last().map(|(_, container)| container);
    container.is_some_and(|container| container == "Struct:Nf4Weight")
}

/// Visits the float parameters of a model with their paths.
pub(crate) trait PathVisitor {
    /// Called before a field of a module, `path`, is visited.
    fn enter(&mut self, _path: &Path, _name: &str, _container: &str) {}

    fn visit<const D: usize>(&mut self, path: &Path, param: &Param<Tensor<D>>);
}

/// Maps the float parameters of a model with their paths.
pub(crate) trait PathMapper {
    fn map<const D: usize>(&mut self, path: &Path, param: Param<Tensor<D>>) -> Param<Tensor<D>>;
}

/// Keeps track of the path for a [`PathVisitor`] or a [`PathMapper`].
pub(crate) struct WithPaths<'a, V> {
    inner: &'a mut V,
    path: Path,
    /// Names of before, whose memory the next ones take: a step walks over thousands of them.
    spare: Path,
}

impl<'a, V> WithPaths<'a, V> {
    pub(crate) fn new(inner: &'a mut V) -> Self {
        Self {
            inner,
            path: Path::new(),
            spare: Path::new(),
        }
    }

    fn enter(&mut self, name: &str, container: &str) {
        let mut entry = self.spare.pop().unwrap_or_default();
        entry.0.clear();
        entry.0.push_str(name);
        entry.1.clear();
        entry.1.push_str(container);
        self.path.push(entry);
    }

    fn exit(&mut self) {
        self.spare.extend(self.path.pop());
    }
}

impl<V: PathVisitor> ModuleVisitor for WithPaths<'_, V> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.inner.visit(&self.path, param);
    }

    fn enter_module(&mut self, name: &str, container: &str) {
        self.inner.enter(&self.path, name, container);
        self.enter(name, container);
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.exit();
    }
}

impl<M: PathMapper> ModuleMapper for WithPaths<'_, M> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        self.inner.map(&self.path, param)
    }

    fn enter_module(&mut self, name: &str, container: &str) {
        self.enter(name, container);
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.exit();
    }
}

/// A float parameter of any rank.
pub(crate) struct AnyParam {
    pub(crate) id: ParamId,
    /// As Burn's parameter groups match it.
    pub(crate) path: Rc<str>,
    pub(crate) shape: Shape,
    /// Whether it requires gradients. Asking that initializes a lazy parameter.
    pub(crate) is_trained: bool,
    get: fn(&GradientsParams, ParamId) -> Option<DispatchTensor>,
    remove: fn(&mut GradientsParams, ParamId) -> Option<DispatchTensor>,
    register: fn(&mut GradientsParams, ParamId, DispatchTensor),
}

impl AnyParam {
    pub(crate) fn new<const D: usize>(path: &Path, param: &Param<Tensor<D>>) -> Self {
        Self {
            id: param.id,
            path: path_text(path).into(),
            shape: param.lazy_shape(),
            is_trained: param.is_require_grad(),
            get: |grads, id| Some(grads.get::<D>(id)?.into_dispatch()),
            remove: |grads, id| Some(grads.remove::<D>(id)?.into_dispatch()),
            register: |grads, id, grad| grads.register::<D>(id, Tensor::from_dispatch(grad)),
        }
    }

    pub(crate) fn grad(&self, grads: &GradientsParams) -> Option<DispatchTensor> {
        (self.get)(grads, self.id)
    }

    pub(crate) fn take_grad(&self, grads: &mut GradientsParams) -> Option<DispatchTensor> {
        (self.remove)(grads, self.id)
    }

    pub(crate) fn put_grad(&self, grads: &mut GradientsParams, grad: DispatchTensor) {
        (self.register)(grads, self.id, grad);
    }
}

/// The float parameters of a model, in the order of its fields.
pub(crate) fn params_of<M: Module>(model: &M) -> Vec<AnyParam> {
    struct Params(Vec<AnyParam>);
    impl PathVisitor for Params {
        fn visit<const D: usize>(&mut self, path: &Path, param: &Param<Tensor<D>>) {
            self.0.push(AnyParam::new(path, param));
        }
    }
    let mut params = Params(Vec::new());
    model.visit(&mut WithPaths::new(&mut params));
    params.0
}

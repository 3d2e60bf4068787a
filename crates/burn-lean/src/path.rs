//! Paths of parameters in a model.

use burn::Tensor;
use burn::module::{ModuleVisitor, Param};

/// The names and container types of the modules around a parameter, from the outermost.
pub(crate) type Path = Vec<(String, String)>;

/// The path as Burn's parameter groups match it.
pub(crate) fn path_text(path: &Path) -> String {
    let names: Vec<&str> = path.iter().map(|(name, _)| name.as_str()).collect();
    names.join(".")
}

/// Visits the float parameters of a model with their paths.
pub(crate) trait PathVisitor {
    /// Called before the parameters of a module.
    fn enter(&mut self, _name: &str, _container: &str) {}

    fn visit<const D: usize>(&mut self, path: &Path, param: &Param<Tensor<D>>);
}

/// Keeps track of the path for a [`PathVisitor`].
pub(crate) struct WithPaths<'a, V> {
    visitor: &'a mut V,
    path: Path,
}

impl<'a, V: PathVisitor> WithPaths<'a, V> {
    pub(crate) fn new(visitor: &'a mut V) -> Self {
        let path = Path::new();
        Self { visitor, path }
    }
}

impl<V: PathVisitor> ModuleVisitor for WithPaths<'_, V> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.visitor.visit(&self.path, param);
    }

    fn enter_module(&mut self, name: &str, container: &str) {
        self.visitor.enter(name, container);
        self.path.push((name.into(), container.into()));
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }
}

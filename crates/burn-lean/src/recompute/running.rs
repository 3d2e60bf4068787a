//! Running statistics (`BatchNorm`), which a scope updates when it runs, and not again in backward.

use std::collections::HashMap;

use burn::Tensor;
use burn::backend::DispatchTensor;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};

/// The running statistics of a module, which its clones share.
#[derive(Clone, Default)]
pub(crate) struct Running {
    /// By their index in a walk over the module. Ids would not do: two parameters may share one.
    params: HashMap<usize, DispatchTensor>,
    /// How many parameters the visitor or the mapper has met.
    met: usize,
}

impl std::fmt::Debug for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Running").finish_non_exhaustive()
    }
}

impl Running {
    pub(crate) fn of<M: Module>(module: &M) -> Self {
        let mut running = Self::default();
        module.visit(&mut running);
        if !running.params.is_empty() {
            synchronize(module);
            running = Self::default();
            module.visit(&mut running);
        }
        running.met = 0;
        running
    }

    /// Restores the running statistics of a module, which its clones share.
    pub(crate) fn restore<M: Module>(&self, module: &M) {
        if self.params.is_empty() {
            return;
        }
        synchronize(module);
        let _ = module.clone().map(&mut self.clone());
    }
}

/// Applies pending updates, which Burn does in `valid`.
fn synchronize<M: Module>(module: &M) {
    let _ = module.valid();
}

impl ModuleVisitor for Running {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        // A frozen parameter is included too, which changes nothing.
        if !param.is_require_grad() {
            self.params.insert(self.met, param.val().into_dispatch());
        }
        self.met += 1;
    }
}

impl ModuleMapper for Running {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let before = self.params.remove(&self.met);
        self.met += 1;
        match before {
            Some(before) => param.map(|_| Tensor::from_dispatch(before)),
            None => param,
        }
    }
}

//! Running statistics (`BatchNorm`), which a scope updates when it runs, and not again in backward.

use burn::Tensor;
use burn::backend::DispatchTensor;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};

use crate::parameter::{Share, shared};

/// The running statistics of a module, which its clones share.
#[derive(Clone)]
pub(crate) struct Running {
    /// `None` for parameters that are trained. A module may have two of one id.
    params: Vec<Option<DispatchTensor>>,
    /// How many have been restored.
    restored: usize,
}

impl std::fmt::Debug for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Running").finish_non_exhaustive()
    }
}

impl Running {
    pub(crate) fn of<M: Module>(module: &M) -> Self {
        let read = || {
            let mut running = Self {
                params: Vec::new(),
                restored: 0,
            };
            module.visit(&mut running);
            running
        };
        let running = read();
        if running.is_empty() {
            return running;
        }
        synchronize(module);
        read()
    }

    fn is_empty(&self) -> bool {
        self.params.iter().all(Option::is_none)
    }

    /// Restores the running statistics of a module.
    pub(crate) fn restore<M: Module>(mut self, module: M) {
        if self.is_empty() {
            return;
        }
        synchronize(&module);
        module.map(&mut self);
    }

    /// [`restore`](Self::restore) for a module that stays armed.
    pub(crate) fn restore_shared<M: Module>(&self, module: &M) {
        if self.is_empty() {
            return;
        }
        synchronize(module);
        shared(module, Share::Model, &mut self.clone());
    }
}

/// Applies pending updates, which Burn does in `valid`.
fn synchronize<M: Module>(module: &M) {
    let _ = module.valid();
}

impl ModuleVisitor for Running {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        // A frozen parameter is included too, which changes nothing.
        let is_frozen = !param.is_require_grad();
        self.params
            .push(is_frozen.then(|| param.val().into_dispatch()));
    }
}

impl ModuleMapper for Running {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let before = self.params[self.restored].take();
        self.restored += 1;
        match before {
            Some(before) => param.map(|_| Tensor::from_dispatch(before)),
            None => param,
        }
    }
}

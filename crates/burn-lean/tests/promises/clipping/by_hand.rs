//! The same on plain Burn, where all gradients are there.

use crate::harness::prelude::*;

pub(crate) fn gradients<M: Module>(model: &M, loss: Tensor<1>) -> GradientsParams {
    GradientsParams::from_grads(loss.backward(), model)
}

/// Burn's sum of the squares of each gradient in 32 bits, and of those in 64.
pub(crate) fn global_norm<M: Module>(model: &M, grads: &GradientsParams) -> f64 {
    struct Squares<'a>(&'a GradientsParams, f64);
    impl ModuleVisitor for Squares<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if let Some(grad) = self.0.get::<D>(param.id) {
                let squares = grad.square().sum().into_data();
                self.1 += squares.iter::<f64>().next().unwrap();
            }
        }
    }
    let mut squares = Squares(grads, 0.0);
    model.visit(&mut squares);
    squares.1.sqrt()
}

pub(crate) fn scale<M: Module>(model: &M, grads: &mut GradientsParams, factor: f64) {
    struct Scale<'a>(&'a mut GradientsParams, f64);
    impl ModuleVisitor for Scale<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if let Some(grad) = self.0.remove::<D>(param.id) {
                self.0.register(param.id, grad * self.1);
            }
        }
    }
    model.visit(&mut Scale(grads, factor));
}

/// What PyTorch's `clip_grad_norm_` does. Returns the norm.
pub(crate) fn clip_global<M: Module>(model: &M, grads: &mut GradientsParams, max_norm: f64) -> f64 {
    let norm = global_norm(model, grads);
    let coefficient = max_norm / (norm + 1e-6);
    if coefficient < 1.0 {
        scale(model, grads, coefficient);
    }
    norm
}

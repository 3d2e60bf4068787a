//! Clipping on plain Burn, where all gradients are there.

use crate::harness::prelude::*;

/// Runs over the gradients of a model, in the order of its fields.
pub(crate) fn each<B: AutodiffBackend, M: Module<B>>(
    model: &M,
    grads: &mut GradientsParams,
    edit: impl FnMut(Gradient<'_, B>),
) {
    struct Each<'a, B: AutodiffBackend, F> {
        grads: &'a mut GradientsParams,
        edit: F,
        backend: std::marker::PhantomData<B>,
    }

    impl<B: AutodiffBackend, F: FnMut(Gradient<'_, B>)> ModuleVisitor<B> for Each<'_, B, F> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            let Some(grad) = self.grads.remove::<B::InnerBackend, D>(param.id) else {
                return;
            };
            let shape = grad.shape();
            let mut flat = grad.reshape([shape.num_elements()]);
            (self.edit)(Gradient {
                id: param.id,
                grad: &mut flat,
            });
            self.grads
                .register::<B::InnerBackend, D>(param.id, flat.reshape(shape));
        }
    }

    model.visit(&mut Each {
        grads,
        edit,
        backend: std::marker::PhantomData,
    });
}

/// The gradient of one parameter, as a vector.
pub(crate) struct Gradient<'a, B: AutodiffBackend> {
    pub(crate) id: ParamId,
    pub(crate) grad: &'a mut Tensor<B::InnerBackend, 1>,
}

pub(crate) fn squared_norm<B: Backend>(grad: &Tensor<B, 1>) -> f64 {
    let squared = grad.clone().square().sum().into_data();
    squared.iter::<f64>().next().unwrap()
}

pub(crate) fn global_norm<B: AutodiffBackend, M: Module<B>>(
    model: &M,
    grads: &mut GradientsParams,
) -> f64 {
    let mut sum = 0.0;
    each::<B, M>(model, grads, |gradient| sum += squared_norm(gradient.grad));
    sum.sqrt()
}

pub(crate) fn scale<B: AutodiffBackend, M: Module<B>>(
    model: &M,
    grads: &mut GradientsParams,
    factor: f64,
) {
    each::<B, M>(model, grads, |gradient| {
        *gradient.grad = gradient.grad.clone() * factor;
    });
}

/// Clips as PyTorch's `clip_grad_norm_` does. Returns the norm.
pub(crate) fn clip_global<B: AutodiffBackend, M: Module<B>>(
    model: &M,
    grads: &mut GradientsParams,
    max_norm: f64,
) -> f64 {
    let norm = global_norm::<B, M>(model, grads);
    let coefficient = max_norm / (norm + 1e-6);
    if coefficient < 1.0 {
        scale::<B, M>(model, grads, coefficient);
    }
    norm
}

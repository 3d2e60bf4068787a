//! Gradients are divided by the scale of the loss in 32 bits.

use burn::{
    module::{AutodiffModule, ModuleVisitor, Param, ParamId},
    tensor::{DType, Tensor},
};

use crate::{ReleaseBackend, error::ReleaseError, groups::path_of};

/// Refuses a model whose trained weights are in fp16, as PyTorch's `GradScaler` does: so are their
/// gradients, and small values that the scale kept from vanishing would vanish when it is divided
/// out.
pub(super) fn check_precision<B: ReleaseBackend, M: AutodiffModule<B>>(
    model: &M,
) -> Result<(), ReleaseError> {
    struct Find(Option<ParamId>);

    impl<B: ReleaseBackend> ModuleVisitor<B> for Find {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            if self.0.is_none() && param.is_require_grad() && param.val().dtype() == DType::F16 {
                self.0 = Some(param.id);
            }
        }
    }

    let mut find = Find(None);
    model.visit(&mut find);
    match find.0 {
        Some(param) => Err(ReleaseError::HalfPrecision {
            path: path_of::<B, M>(model, param),
        }),
        None => Ok(()),
    }
}

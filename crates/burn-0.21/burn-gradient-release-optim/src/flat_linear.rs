//! `FlatLinear` has the tensors of the backend below it, and its pass.

use burn::tensor::ops::FloatTensor;
use burn_gradient_release_flat_linear::FlatLinear;
use lean_arithmetic::optim::{Measure, Rule};

use crate::{
    LeanBackend,
    backend::{Operands, Stepped, Types},
};

impl<B: LeanBackend> LeanBackend for FlatLinear<B> {
    fn has_pass(types: &Types<'_>) -> bool {
        B::has_pass(types)
    }

    fn step_in_place<R: Rule<N>, const N: usize>(
        rule: &R,
        operands: Operands<Self, N>,
    ) -> Stepped<Self, N> {
        let operands = operands.map::<B>(|tensor| tensor, |tensor| tensor);
        B::step_in_place(rule, operands).map(|tensor| tensor, |tensor| tensor)
    }

    fn mean_in_place<M: Measure<N>, const N: usize>(
        measure: &M,
        operands: &Operands<Self, N>,
    ) -> FloatTensor<Self> {
        let operands = operands.clone().map::<B>(|tensor| tensor, |tensor| tensor);
        B::mean_in_place(measure, &operands)
    }
}

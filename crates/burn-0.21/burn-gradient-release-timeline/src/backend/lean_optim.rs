//! The pass of an optimizer of `burn-gradient-release-optim` is one operation.

use std::cell::RefCell;

use burn::tensor::ops::FloatTensor;
use burn_gradient_release_optim::{LeanBackend, Measure, Operands, Rule, Stepped, Types};

use super::{RecordableBackend, Recorded};
use crate::recorder::Operation;

impl<B: RecordableBackend + LeanBackend> LeanBackend for Recorded<B> {
    fn has_pass(types: &Types<'_>) -> bool {
        B::has_pass(types)
    }

    fn step_in_place<R: Rule<N>, const N: usize>(
        rule: &R,
        operands: Operands<Self, N>,
    ) -> Stepped<Self, N> {
        let operation = RefCell::new(Operation::begin("step_in_place"));
        let operands = operands.map::<B>(
            |tensor| operation.borrow_mut().lower(tensor),
            |tensor| operation.borrow_mut().lower(tensor),
        );
        B::step_in_place(rule, operands).map(
            |tensor| operation.borrow_mut().raise(tensor),
            |tensor| operation.borrow_mut().raise(tensor),
        )
    }

    fn mean_in_place<M: Measure<N>, const N: usize>(
        measure: &M,
        operands: &Operands<Self, N>,
    ) -> FloatTensor<Self> {
        let operation = RefCell::new(Operation::begin("mean_in_place"));
        let operands = operands.clone().map::<B>(
            |tensor| operation.borrow_mut().lower(tensor),
            |tensor| operation.borrow_mut().lower(tensor),
        );
        let mean = B::mean_in_place(measure, &operands);
        operation.into_inner().raise(mean)
    }
}

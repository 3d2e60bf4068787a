//! A rule as a list of operations, from which a kernel is made.
//!
//! A rule that runs on a [`Number`] that notes the operations on it leaves a [`Program`] and the
//! scalars of this step. The program is the same in every step and is compiled once. The scalars
//! are arguments of the kernel.

use std::{
    cell::RefCell,
    ops::{Add, Div, Mul, Sub},
    rc::Rc,
};

use super::{Clip, Measure, Number, Rule};

/// An operation on values. Values are numbered: the inputs first, then the result of each
/// operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// The scalar with this index.
    Scalar(usize),
    /// Zero.
    Zero,
    /// The sum.
    Add(usize, usize),
    /// The second subtracted from the first.
    Sub(usize, usize),
    /// The product.
    Mul(usize, usize),
    /// The first divided by the second.
    Div(usize, usize),
    /// The square root.
    Sqrt(usize),
    /// One, minus one or zero.
    Sign(usize),
    /// The larger one; the first if they do not compare.
    Max(usize, usize),
    /// The first, clamped to the magnitude of the second, which is positive.
    Clip(usize, usize),
    /// The first, or zero where only one of the other two is negative.
    ZeroWhereSignsDiffer(usize, usize, usize),
}

/// The computation of a kernel for one element.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Program {
    /// The operations, in their order.
    pub operations: Vec<Operation>,
    /// The numbers of the values that are results.
    pub results: Vec<usize>,
}

impl Program {
    /// Traces the step of a rule, and returns its scalars as well. Inputs are the weight, the
    /// gradient and, unless it is the `first` step, the states; results are the new weight and
    /// states.
    pub fn of_rule<R: Rule<N>, const N: usize>(
        rule: &R,
        clip: Clip,
        first: bool,
    ) -> (Self, Vec<f32>) {
        let trace = Trace::default();
        let weight = trace.input();
        let (grad, states) = trace.operands(clip, first);
        let (weight, states) = rule.step(weight, grad, states);
        trace.finish([weight].into_iter().chain(states))
    }

    /// Traces a measure, and returns its scalars as well. Inputs are the gradient and, unless it is
    /// the `first` step, the states; the result is one number.
    pub fn of_measure<M: Measure<N>, const N: usize>(
        measure: &M,
        clip: Clip,
        first: bool,
    ) -> (Self, Vec<f32>) {
        let trace = Trace::default();
        let (grad, states) = trace.operands(clip, first);
        trace.finish([measure.measure(grad, states)])
    }
}

/// A program while it is traced.
#[derive(Clone, Default)]
struct Trace(Rc<RefCell<Notes>>);

#[derive(Default)]
struct Notes {
    inputs: usize,
    operations: Vec<Operation>,
    scalars: Vec<f32>,
}

impl Trace {
    /// Adds an input. Called before any operation.
    fn input(&self) -> Traced {
        let mut notes = self.0.borrow_mut();
        let value = notes.inputs;
        notes.inputs += 1;
        self.value(value)
    }

    /// Adds the gradient and the states as inputs. Returns the gradient after clipping.
    fn operands<const N: usize>(&self, clip: Clip, first: bool) -> (Traced, Option<[Traced; N]>) {
        let grad = self.input();
        let states = (!first).then(|| [(); N].map(|()| self.input()));
        (clip.clip(grad), states)
    }

    fn value(&self, value: usize) -> Traced {
        Traced {
            trace: self.clone(),
            value,
        }
    }

    fn note(&self, operation: Operation) -> Traced {
        let mut notes = self.0.borrow_mut();
        notes.operations.push(operation);
        self.value(notes.inputs + notes.operations.len() - 1)
    }

    /// Notes a scalar, rounded as Burn rounds it.
    fn scalar(&self, scalar: f64) -> Traced {
        let place = {
            let scalars = &mut self.0.borrow_mut().scalars;
            scalars.push(scalar as f32);
            scalars.len() - 1
        };
        self.note(Operation::Scalar(place))
    }

    fn finish(self, results: impl IntoIterator<Item = Traced>) -> (Program, Vec<f32>) {
        let results = results.into_iter().map(|result| result.value).collect();
        let Notes {
            operations,
            scalars,
            ..
        } = self.0.take();
        let program = Program {
            operations,
            results,
        };
        (program, scalars)
    }
}

/// A number that notes the operations on it.
#[derive(Clone)]
struct Traced {
    trace: Trace,
    value: usize,
}

impl Traced {
    fn unary(self, operation: impl FnOnce(usize) -> Operation) -> Self {
        self.trace.note(operation(self.value))
    }

    fn binary(self, other: Self, operation: impl FnOnce(usize, usize) -> Operation) -> Self {
        self.trace.note(operation(self.value, other.value))
    }

    fn with_scalar(self, scalar: f64, operation: impl FnOnce(usize, usize) -> Operation) -> Self {
        let scalar = self.trace.scalar(scalar);
        self.binary(scalar, operation)
    }
}

macro_rules! operators {
    ($($operator:ident::$function:ident,)*) => {$(
        impl $operator for Traced {
            type Output = Self;

            fn $function(self, other: Self) -> Self {
                self.binary(other, Operation::$operator)
            }
        }
    )*};
}

operators! {
    Add::add,
    Sub::sub,
    Mul::mul,
    Div::div,
}

impl Number for Traced {
    fn add_scalar(self, scalar: f64) -> Self {
        self.with_scalar(scalar, Operation::Add)
    }

    fn mul_scalar(self, scalar: f64) -> Self {
        self.with_scalar(scalar, Operation::Mul)
    }

    fn div_scalar(self, scalar: f64) -> Self {
        self.with_scalar(scalar, Operation::Div)
    }

    fn sqrt(self) -> Self {
        self.unary(Operation::Sqrt)
    }

    fn square(self) -> Self {
        self.unary(|value| Operation::Mul(value, value))
    }

    fn sign(self) -> Self {
        self.unary(Operation::Sign)
    }

    fn max_pair(self, other: Self) -> Self {
        self.binary(other, Operation::Max)
    }

    fn clamp_min(self, min: f64) -> Self {
        let min = self.trace.scalar(min);
        // NaN becomes the minimum, as with `f32::max`.
        min.binary(self, Operation::Max)
    }

    fn clip_by_value(self, threshold: f64) -> Self {
        self.with_scalar(threshold, Operation::Clip)
    }

    fn zeros_like(&self) -> Self {
        self.trace.note(Operation::Zero)
    }

    fn zero_where_signs_differ(self, one: Self, other: Self) -> Self {
        let operation = Operation::ZeroWhereSignsDiffer(self.value, one.value, other.value);
        self.trace.note(operation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy)]
    struct Descent {
        lr: f64,
        decay: f64,
    }

    impl Rule<1> for Descent {
        fn step<T: Number>(&self, weight: T, grad: T, states: Option<[T; 1]>) -> (T, [T; 1]) {
            let [velocity] = states.unwrap_or_else(|| [grad.zeros_like()]);
            let velocity = velocity + grad;
            let step = velocity.clone().mul_scalar(self.lr);
            (weight.mul_scalar(self.decay) - step, [velocity])
        }
    }

    #[test]
    fn a_program_has_the_operations_of_its_rule() {
        let rule = Descent {
            lr: 0.1,
            decay: 0.9,
        };
        let (program, scalars) = Program::of_rule(&rule, Clip::Value(0.5), false);
        // 0 to 2 are the weight, the gradient and the velocity.
        let operations = [
            Operation::Scalar(0),
            Operation::Clip(1, 3),
            Operation::Add(2, 4),
            Operation::Scalar(1),
            Operation::Mul(5, 6),
            Operation::Scalar(2),
            Operation::Mul(0, 8),
            Operation::Sub(9, 7),
        ];
        assert_eq!(program.operations, operations);
        assert_eq!(program.results, [10, 5]);
        assert_eq!(scalars, [0.5, 0.1, 0.9]);
    }

    /// Otherwise the kernel would be compiled in every step.
    #[test]
    fn a_program_does_not_depend_on_scalars() {
        let program = |lr, decay, threshold| {
            let rule = Descent { lr, decay };
            Program::of_rule(&rule, Clip::Value(threshold), false).0
        };
        assert_eq!(program(0.1, 0.9, 1.0), program(0.9, 0.9, 0.9));
        let rule = Descent {
            lr: 0.1,
            decay: 0.9,
        };
        let first = Program::of_rule(&rule, Clip::Value(1.0), true).0;
        assert_ne!(program(0.1, 0.9, 1.0), first);
    }
}

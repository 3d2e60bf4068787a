//! One pass over memory on the Cube backend, fused or not.

mod fusion;
mod operation;
#[cfg(all(test, feature = "flex", feature = "wgpu"))]
mod tests;

use burn::backend::{BackendTypes, Cube};
use burn::tensor::{Int, Tensor};
use lean_arithmetic::optim::cube::Pass;
use lean_arithmetic::optim::{Measure, Noise, Rule, Split};

use super::moment::{EightBit, Format, Moment};
use super::operands::{Operands, States};
use operation::{Form, Operation, Run};

/// Floats or integers: the Cube backend has one type for both.
type CubeTensor = <Cube as BackendTypes>::FloatTensorPrimitive;

/// Steps weight and states in place. A buffer that something else holds as well, such as a saved
/// record, is copied and not changed.
pub(super) fn step<R: Rule<N>, const N: usize, const D: usize>(
    rule: &R,
    operands: Operands<N, D>,
) -> (Tensor<D>, [Moment<D>; N]) {
    let shape = operands.weight.shape();
    let mut tensors = vec![of(operands.weight), of(operands.grad)];
    let (is_first, formats) = match operands.states {
        States::New(formats) => (true, formats),
        States::Old(states) => {
            let formats = states.each_ref().map(Moment::format);
            states
                .into_iter()
                .for_each(|state| push(state, &mut tensors));
            (false, formats)
        }
    };
    let pass = Pass::of_rule(rule, operands.clip, is_first).rounded(operands.noise);
    let states = Form::new(is_first, &formats);
    let stepped = Cube::run(Operation::Step { pass, states }, tensors);

    let mut tensors = stepped.into_iter();
    let mut next = || tensors.next().expect("a weight, and what each format says");
    let weight = Tensor::from_primitive::<Cube>(next());
    let states = formats.map(|format| match format {
        Format::Float(_) => Moment::Float(Tensor::from_primitive::<Cube>(next())),
        Format::EightBit(kind) => Moment::EightBit(EightBit {
            words: Tensor::from_primitive::<Cube>(next()),
            shape: shape.clone(),
            kind,
        }),
    });
    (weight, states)
}

/// The mean of a measure, without a tensor of the parameter's size.
pub(super) fn mean<M: Measure<N>, const N: usize, const D: usize>(
    measure: &M,
    operands: &Operands<N, D>,
) -> f32 {
    let elements = operands.grad.shape().num_elements();
    let mut tensors = vec![of(operands.grad.clone())];
    let (is_first, formats) = match &operands.states {
        States::New(formats) => (true, *formats),
        States::Old(states) => {
            let of_states = states.clone().into_iter();
            of_states.for_each(|state| push(state, &mut tensors));
            (false, states.each_ref().map(Moment::format))
        }
    };
    let pass = Pass::of_measure(measure, operands.clip, is_first);
    let states = Form::new(is_first, &formats);
    let sums = Cube::run(Operation::Sum { pass, states }, tensors).remove(0);
    let sum = Tensor::<1>::from_primitive::<Cube>(sums).sum();
    sum.into_scalar::<f32>() / elements as f32
}

/// Rounds numbers in 32 bits to those that bf16 has, in their place.
pub(super) fn round_stochastically<const D: usize>(exact: Tensor<D>, noise: Noise) -> Tensor<D> {
    let rounded = Cube::run(Operation::Round(noise), vec![of(exact)]).remove(0);
    Tensor::from_primitive::<Cube>(rounded)
}

/// Splits numbers in 32 bits: rounds them in their place, and returns the words of their lower bits.
pub(super) fn split<const D: usize>(
    split: Split,
    exact: Tensor<D>,
    noise: Option<Noise>,
) -> (Tensor<D>, Tensor<1, Int>) {
    let mut halves = Cube::run(Operation::Split(split, noise), vec![of(exact)]).into_iter();
    let mut next = || halves.next().expect("numbers, and the rest of their bits");
    let nearest = Tensor::from_primitive::<Cube>(next());
    (nearest, Tensor::from_primitive::<Cube>(next()))
}

/// Restores numbers that were split, in place.
pub(super) fn rejoin<const D: usize>(
    split: Split,
    nearest: Tensor<D>,
    low: Tensor<1, Int>,
) -> Tensor<D> {
    let low = low.try_into_primitive::<Cube>().expect("it is on Cube");
    let numbers = Cube::run(Operation::Rejoin(split), vec![of(nearest), low]).remove(0);
    Tensor::from_primitive::<Cube>(numbers)
}

fn of<const D: usize>(tensor: Tensor<D>) -> CubeTensor {
    tensor.try_into_primitive::<Cube>().expect("it is on Cube")
}

fn push<const D: usize>(state: Moment<D>, tensors: &mut Vec<CubeTensor>) {
    match state {
        Moment::Float(floats) => tensors.push(of(floats)),
        Moment::EightBit(EightBit { words, .. }) => {
            let words = words.try_into_primitive::<Cube>();
            tensors.push(words.expect("it is on Cube"));
        }
    }
}

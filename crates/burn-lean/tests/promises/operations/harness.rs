//! An operation beside its reference: Burn's own operations, in `f64`.

use crate::harness::prelude::*;

/// An operation on flat tensors, to a flat tensor.
pub(crate) type Flat<'a> = &'a dyn Fn(&[Tensor<1>]) -> Tensor<1>;

type Op = Box<dyn Fn(&[Tensor<1>]) -> Tensor<1>>;

/// An operation, its inputs, and what it is compared with.
pub(crate) struct Case {
    name: String,
    inputs: Vec<Vec<f64>>,
    reference: Op,
    ours: Op,
}

impl Case {
    pub(crate) fn new(
        name: impl Into<String>,
        inputs: Vec<Vec<f64>>,
        reference: impl Fn(&[Tensor<1>]) -> Tensor<1> + 'static,
        ours: impl Fn(&[Tensor<1>]) -> Tensor<1> + 'static,
    ) -> Self {
        Self {
            name: name.into(),
            inputs,
            reference: Box::new(reference),
            ours: Box::new(ours),
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn inputs(&self) -> impl Iterator<Item = &Vec<f64>> {
        self.inputs.iter()
    }

    pub(crate) fn with_reference(
        self,
        reference: impl Fn(&[Tensor<1>]) -> Tensor<1> + 'static,
    ) -> Self {
        let reference = Box::new(reference);
        Self { reference, ..self }
    }

    /// The same of other inputs.
    pub(crate) fn with_inputs(self, inputs: Vec<Vec<f64>>) -> Self {
        Self { inputs, ..self }
    }

    /// Without what may be left out, as a bias.
    pub(crate) fn without_last_input(mut self) -> Self {
        self.inputs.pop();
        self.name += " without its last input";
        self
    }

    pub(crate) fn named(self, name: String) -> Self {
        Self { name, ..self }
    }

    /// The same of another first input.
    pub(crate) fn with_first(mut self, input: Vec<f64>) -> Self {
        self.inputs[0] = input;
        self
    }

    /// The output times a number.
    pub(crate) fn times(self, factor: f64) -> Self {
        let (reference, ours) = (self.reference, self.ours);
        let reference = move |leaves: &[Tensor<1>]| reference(leaves) * factor;
        let ours = move |leaves: &[Tensor<1>]| ours(leaves) * factor;
        Self::new(self.name, self.inputs, reference, ours)
    }

    /// The same of the nearest inputs that a type holds.
    pub(crate) fn rounded(self, dtype: DType) -> Self {
        let inputs = self.inputs.iter().map(|x| rounded(x, dtype)).collect();
        self.with_inputs(inputs)
    }

    pub(crate) fn expected(&self) -> Outcome {
        run(&flex(), DType::F64, &self.inputs, &self.reference)
    }

    pub(crate) fn found(&self, device: &Device, dtype: DType) -> Outcome {
        run(device, dtype, &self.inputs, &self.ours)
    }

    pub(crate) fn plain(&self, dtype: DType) -> Outcome {
        run(&flex(), dtype, &self.inputs, &self.reference)
    }

    /// In a type of its own for each input. Fails if a gradient is of another.
    pub(crate) fn found_in(&self, dtype: impl Fn(usize) -> DType) -> Outcome {
        run_in(&flex(), dtype, &self.inputs, &self.ours)
    }

    /// That the operation gives what its reference does in `f64`, on every backend: in `f64`, and in
    /// `f32` with errors of at most `multiple` rounding errors of the largest number of a tensor.
    pub(crate) fn assert_equal(&self, multiple: f64) {
        let expected = self.expected();
        for device in devices() {
            for (dtype, epsilon) in [
                (DType::F64, f64::EPSILON),
                (DType::F32, f64::from(f32::EPSILON)),
            ] {
                let found = self.found(&device, dtype);
                for (at, difference) in differences(&found, &expected).into_iter().enumerate() {
                    let errors = difference / epsilon;
                    assert!(
                        errors <= multiple,
                        "{}, tensor {at} (0 is the output), {dtype:?} on {device:?}: off by \
                         {errors:.1} rounding errors",
                        self.name
                    );
                }
            }
        }
    }

    /// That the operation of an empty input is empty, with gradients of 0. Without its reference: the
    /// products of Flex read beyond an empty tensor.
    pub(crate) fn assert_empty(&self) {
        let zeros: Vec<_> = self.inputs.iter().map(|x| vec![0.0; x.len()]).collect();
        for device in devices() {
            for dtype in [DType::F64, DType::F32] {
                let found = self.found(&device, dtype);
                assert!(found.value.is_empty(), "{}", self.name);
                assert_eq!(found.grads, zeros, "{}", self.name);
            }
        }
    }

    /// That the operation has the same numbers that are not finite as its reference, in `f32` on one
    /// backend, and differs in no other by more than `multiple` rounding errors.
    pub(crate) fn assert_as_plain(&self, multiple: f64) {
        for device in devices() {
            let expected = run(&device, DType::F32, &self.inputs, &self.reference);
            let found = self.found(&device, DType::F32);
            for (at, difference) in differences(&found, &expected).into_iter().enumerate() {
                let errors = difference / f64::from(f32::EPSILON);
                assert!(
                    errors <= multiple,
                    "{}, tensor {at}, on {device:?}: off by {errors:.1} rounding errors\n\
                     {found:?}\n{expected:?}",
                    self.name
                );
            }
        }
    }
}

/// The numbers of an output, and of the gradients of its inputs.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) value: Vec<f64>,
    pub(crate) grads: Vec<Vec<f64>>,
}

impl Outcome {
    pub(crate) fn tensors(&self) -> impl Iterator<Item = &Vec<f64>> {
        std::iter::once(&self.value).chain(&self.grads)
    }

    pub(crate) fn numbers(&self) -> impl Iterator<Item = f64> {
        self.tensors().flatten().copied()
    }
}

/// Numbers in [-1, 1) that look random, the same in every run.
pub(crate) fn noise(count: usize, seed: usize) -> Vec<f64> {
    let at = |i: usize| ((i * 7919 + seed * 104_729 + 13) % 2003) as f64 / 1001.5 - 1.0;
    // What `f32` holds, so that every type starts from the same numbers.
    (0..count).map(|i| f64::from(at(i) as f32)).collect()
}

/// The same around another mean, and as far from it as this.
pub(crate) fn spread(mean: f64, factor: f64, count: usize, seed: usize) -> Vec<f64> {
    let noise = noise(count, seed).into_iter();
    noise.map(|x| mean + factor * x).collect()
}

/// Numbers in (-1, 1) that every type holds, `bf16` too.
pub(crate) fn coarse(count: usize) -> Vec<f64> {
    let at = |i: usize| ((i * 7919 + 57) % 251) as f64 / 128.0 - 0.9765625;
    (0..count).map(at).collect()
}

fn tensor(numbers: &[f64], device: &Device, dtype: DType) -> Tensor<1> {
    let data = TensorData::new(numbers.to_vec(), [numbers.len()]).convert_dtype(dtype);
    Tensor::from_data(data, (device, dtype))
}

/// A flat tensor with this shape, of which one length may be 0: Burn's `reshape` reads that as the
/// length of the axis before.
pub(crate) fn shaped<const D: usize>(flat: &Tensor<1>, dims: [usize; D]) -> Tensor<D> {
    let Some(empty) = dims.iter().position(|length| *length == 0) else {
        return flat.clone().reshape(dims);
    };
    let mut first = dims;
    first.swap(0, empty);
    flat.clone().reshape(first).swap_dims(0, empty)
}

fn numbers(tensor: Tensor<1>) -> Vec<f64> {
    tensor.into_data().iter::<f64>().collect()
}

/// The nearest numbers that a type holds.
pub(crate) fn rounded(values: &[f64], dtype: DType) -> Vec<f64> {
    numbers(tensor(values, &flex(), dtype))
}

/// Runs an operation, and backward from its output weighed with noise.
pub(crate) fn run(device: &Device, dtype: DType, inputs: &[Vec<f64>], op: Flat<'_>) -> Outcome {
    run_in(device, |_| dtype, inputs, op)
}

fn run_in(
    device: &Device,
    dtype: impl Fn(usize) -> DType,
    inputs: &[Vec<f64>],
    op: Flat<'_>,
) -> Outcome {
    let leaves = inputs.iter().enumerate();
    let leaves: Vec<Tensor<1>> = leaves
        .map(|(at, input)| tensor(input, device, dtype(at)).require_grad())
        .collect();
    let output = op(&leaves);
    let value = numbers(output.clone());
    let weights = tensor(&coarse(value.len()), device, output.dtype());
    let grads = (output * weights).sum().backward();
    let grad = |leaf: &Tensor<1>| {
        let grad = leaf.grad(&grads).expect("it is on the tape");
        assert_eq!(grad.dtype(), leaf.dtype(), "a gradient of another type");
        numbers(grad)
    };
    Outcome {
        value,
        grads: leaves.iter().map(grad).collect(),
    }
}

/// The largest difference of two tensors, as a multiple of the largest number in the second, or of
/// `least` if that is larger.
fn difference(found: &[f64], expected: &[f64], least: f64) -> f64 {
    assert_eq!(found.len(), expected.len());
    let scale = expected.iter().fold(least, |max, x| max.max(x.abs()));
    let differences = found.iter().zip(expected).map(|(found, expected)| {
        if found.is_nan() && expected.is_nan() || found == expected {
            return 0.0;
        }
        let difference = (found - expected).abs() / scale;
        if difference.is_nan() {
            f64::INFINITY
        } else {
            difference
        }
    });
    differences.fold(0.0, f64::max)
}

/// The largest difference of the output and of each gradient, as a multiple of its largest number.
pub(crate) fn differences(found: &Outcome, expected: &Outcome) -> Vec<f64> {
    differences_above(found, expected, f64::MIN_POSITIVE)
}

/// [`differences`], of which those of tensors without a number of this size are multiples of it.
pub(crate) fn differences_above(found: &Outcome, expected: &Outcome, least: f64) -> Vec<f64> {
    let pairs = found.tensors().zip(expected.tensors());
    pairs
        .map(|(found, expected)| difference(found, expected, least))
        .collect()
}

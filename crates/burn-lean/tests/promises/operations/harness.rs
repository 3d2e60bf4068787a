//! An operation beside its reference: Burn's own operations, in `f64` on NdArray.

use burn::tensor::{DType, Device, Tensor, TensorData};

/// An operation on flat tensors, to a flat tensor.
pub(crate) type Flat<'a> = &'a dyn Fn(&[Tensor<1>]) -> Tensor<1>;

/// The numbers of an output, and of the gradients of its inputs.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) value: Vec<f64>,
    pub(crate) grads: Vec<Vec<f64>>,
}

impl Outcome {
    fn tensors(&self) -> Vec<&Vec<f64>> {
        std::iter::once(&self.value).chain(&self.grads).collect()
    }
}

/// Numbers in [-1, 1) that look random, the same in every run.
pub(crate) fn noise(count: usize, seed: usize) -> Vec<f64> {
    let at = |i: usize| ((i * 7919 + seed * 104_729 + 13) % 2003) as f64 / 1001.5 - 1.0;
    // What `f32` holds, so that every type starts from the same numbers.
    (0..count).map(|i| f64::from(at(i) as f32)).collect()
}

/// Numbers in (-1, 1) that every type holds, `bf16` too.
pub(crate) fn coarse(count: usize) -> Vec<f64> {
    let at = |i: usize| ((i * 7919 + 57) % 251) as f64 / 128.0 - 0.9765625;
    (0..count).map(at).collect()
}

#[allow(deprecated)] // Burn 0.22 deprecates NdArray.
pub(crate) fn reference_device() -> Device {
    Device::ndarray().autodiff()
}

pub(crate) fn tensor(numbers: &[f64], device: &Device, dtype: DType) -> Tensor<1> {
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

/// Runs an operation, and backward from its output weighed with noise.
pub(crate) fn run(device: &Device, dtype: DType, inputs: &[Vec<f64>], op: Flat<'_>) -> Outcome {
    let leaves: Vec<Tensor<1>> = inputs
        .iter()
        .map(|input| tensor(input, device, dtype).require_grad())
        .collect();
    let output = op(&leaves);
    let value = numbers(output.clone());
    let weights = tensor(&coarse(value.len()), device, dtype);
    let grads = (output * weights).sum().backward();
    let grad = |leaf: &Tensor<1>| numbers(leaf.grad(&grads).expect("it is on the tape"));
    Outcome {
        value,
        grads: leaves.iter().map(grad).collect(),
    }
}

/// The largest difference of two tensors, as a multiple of the largest number in the second.
fn difference(found: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let scale = expected
        .iter()
        .fold(f64::MIN_POSITIVE, |max, x| max.max(x.abs()));
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
    let pairs = found.tensors().into_iter().zip(expected.tensors());
    pairs
        .map(|(found, expected)| difference(found, expected))
        .collect()
}

/// That an operation gives what `reference` does in `f64` on NdArray, on every backend: in `f64`,
/// and in `f32` with errors of at most `multiple` rounding errors of the largest number of a
/// tensor.
pub(crate) fn assert_equal(
    what: &str,
    inputs: &[Vec<f64>],
    multiple: f64,
    reference: Flat<'_>,
    ours: Flat<'_>,
) {
    let expected = run(&reference_device(), DType::F64, inputs, reference);
    for device in crate::harness::devices() {
        for (dtype, epsilon) in [
            (DType::F64, f64::EPSILON),
            (DType::F32, f64::from(f32::EPSILON)),
        ] {
            let found = run(&device, dtype, inputs, ours);
            let pairs = found.tensors().into_iter().zip(expected.tensors());
            for (at, (found, expected)) in pairs.enumerate() {
                let errors = difference(found, expected) / epsilon;
                assert!(
                    errors <= multiple,
                    "{what}, tensor {at} (0 is the output), {dtype:?} on {device:?}: off by \
                     {errors:.1} rounding errors"
                );
            }
        }
    }
}

/// That an operation has the same numbers that are not finite as Burn's, in `f32` on one backend,
/// and differs in no other by more than `multiple` rounding errors.
pub(crate) fn assert_as_plain(
    what: &str,
    inputs: &[Vec<f64>],
    multiple: f64,
    plain: Flat<'_>,
    ours: Flat<'_>,
) {
    for device in crate::harness::devices() {
        let expected = run(&device, DType::F32, inputs, plain);
        let found = run(&device, DType::F32, inputs, ours);
        let pairs = found.tensors().into_iter().zip(expected.tensors());
        for (at, (found, expected)) in pairs.enumerate() {
            let errors = difference(found, expected) / f64::from(f32::EPSILON);
            assert!(
                errors <= multiple,
                "{what}, tensor {at}, on {device:?}: off by {errors:.1} rounding errors\n\
                 {found:?}\n{expected:?}"
            );
        }
    }
}

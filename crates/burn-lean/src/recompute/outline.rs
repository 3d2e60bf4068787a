//! What is noted of the results of a scope, to tell whether backward computes the same again.

use burn::Tensor;
use burn::backend::ops::FloatTensorOps;
use burn::backend::{Dispatch, DispatchTensor, TensorMetadata};
use burn::tensor::{DType, Shape, Slice};

use crate::backend::reading_waits;

/// The outline of one result.
#[derive(Debug)]
pub(crate) struct Outline {
    shape: Shape,
    dtype: DType,
    /// Not noted where reading would wait for the device, nor of a tensor of rank 0.
    trace: Option<Trace>,
}

/// Two numbers in place of all elements.
#[derive(Debug, Default)]
struct Trace {
    /// The sum of all elements, each times a factor of its place between -1 and 1.
    sum: f64,
    squares: f64,
}

/// So many elements are read at once.
const AT_ONCE: usize = 1 << 16;

impl Outline {
    /// The outline of a tensor without autodiff.
    pub(crate) fn of(tensor: &DispatchTensor) -> Self {
        Self {
            shape: tensor.shape(),
            dtype: tensor.dtype(),
            trace: (tensor.shape().num_dims() > 0 && !reading_waits(tensor))
                .then(|| Trace::of(tensor)),
        }
    }

    /// Whether another tensor is the same but for rounding: some sums on several threads have no
    /// fixed order.
    pub(crate) fn is_that_of(&self, other: &Self) -> bool {
        let is_alike = match (&self.trace, &other.trace) {
            (Some(one), Some(other)) => one.is_near(other, self.dtype),
            _ => true,
        };
        is_alike && self.shape == other.shape && self.dtype == other.dtype
    }
}

impl Trace {
    fn of(tensor: &DispatchTensor) -> Self {
        let shape = tensor.shape();
        let mut trace = Self::default();
        let (rows, numbers) = (shape[0], shape.num_elements());
        if numbers == 0 {
            return trace;
        }
        let rows_at_once = (AT_ONCE * rows / numbers).max(1);
        let mut at = 0;
        for first in (0..rows).step_by(rows_at_once) {
            let last = rows.min(first + rows_at_once);
            let mut part = vec![Slice::full(); shape.num_dims()];
            part[0] = Slice::from(first..last);
            let part = Dispatch::float_slice(tensor.clone(), &part);
            // Any rank will do.
            let data = Tensor::<1>::from_dispatch(part).into_data();
            match data.as_slice::<f32>() {
                Ok(numbers) => numbers.iter().for_each(|x| trace.add(&mut at, (*x).into())),
                Err(_) => data.iter::<f64>().for_each(|x| trace.add(&mut at, x)),
            }
        }
        trace
    }

    fn add(&mut self, at: &mut u64, x: f64) {
        // Factors that follow no pattern: two elements that change places are seen.
        let place = at.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let factor = (place ^ (place >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 32;
        self.sum += x * (factor as f64 / f64::from(1_u32 << 31) - 1.0);
        self.squares += x * x;
        *at += 1;
    }

    fn is_near(&self, other: &Self, dtype: DType) -> bool {
        let rounding = match dtype {
            DType::F64 => f64::EPSILON,
            DType::F16 => 1.0 / 1024.0,
            DType::BF16 => 1.0 / 128.0,
            _ => f32::EPSILON.into(),
        };
        let squares = self.squares.max(other.squares);
        // NaN and infinity have no distance.
        let is_finite = (self.sum - other.sum).is_finite() && squares.is_finite();
        let both_are_not = !self.squares.is_finite() && !other.squares.is_finite();
        let most = 8.0 * rounding * squares.sqrt();
        both_are_not || is_finite && (self.sum - other.sum).abs() <= most
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use burn::tensor::{Device, TensorData};

    use super::*;

    fn outline(numbers: &[f32]) -> Outline {
        let data = TensorData::new(numbers.to_vec(), [numbers.len(), 1]);
        Outline::of(&Tensor::<2>::from_data(data, &Device::flex()).into_dispatch())
    }

    #[test]
    fn one_element_tells_results_apart_and_rounding_does_not() {
        let mut numbers: Vec<f32> = (0..200_000).map(|i| (i as f32 * 0.37).cos()).collect();
        let before = outline(&numbers);
        numbers.iter_mut().for_each(|x| *x *= 1.0 + f32::EPSILON);
        assert!(before.is_that_of(&outline(&numbers)));
        for at in [0, 70_001, 199_999] {
            let mut other = numbers.clone();
            other[at] = 0.0;
            assert!(!before.is_that_of(&outline(&other)), "element {at}");
            other = numbers.clone();
            other.swap(at, 5);
            assert!(!before.is_that_of(&outline(&other)), "element {at}");
        }
        assert!(!before.is_that_of(&outline(&numbers[1..])));
    }

    #[test]
    fn what_is_not_finite_is_the_same_only_as_such() {
        for x in [f32::NAN, f32::INFINITY] {
            assert!(outline(&[1.0, x]).is_that_of(&outline(&[2.0, x])));
            assert!(!outline(&[1.0, x]).is_that_of(&outline(&[1.0, 2.0])));
        }
        assert!(outline(&[]).is_that_of(&outline(&[])));
    }
}

//! Inputs and outputs of a scope.

use burn::backend::DispatchTensor;
use burn::nn::LstmState;
use burn::tensor::{Bool, Int, Tensor};

/// Tensors that go into a scope of [`checkpoint`](crate::checkpoint), or come out of it: a tensor
/// of floats, ints or bools, or a tuple, an array, a `Vec` or an `Option` of such; or Burn's
/// [`LstmState`].
///
/// For a type of your own, map each tensor in it:
///
/// ```
/// # use burn::tensor::Tensor;
/// # use burn_lean::{MapTensor, Tensors};
/// #[derive(Clone)]
/// struct Masked {
///     hidden: Tensor<3>,
///     mask: Tensor<2>,
/// }
///
/// impl Tensors for Masked {
///     fn map(self, map: &mut MapTensor<'_>) -> Self {
///         Self { hidden: self.hidden.map(map), mask: self.mask.map(map) }
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot go into a scope of `checkpoint`, or come out of it",
    label = "it is not known which tensors this has",
    note = "tensors can, and tuples, arrays, `Vec`s and `Option`s of them; for a type of your own \
            implement `burn_lean::Tensors`, which maps each tensor in it",
    note = "what has no tensors, as a number, is captured by the closure: `move`"
)]
pub trait Tensors: Clone + Send + 'static {
    /// Applies `map` to each tensor, always in the same order.
    fn map(self, map: &mut MapTensor<'_>) -> Self;
}

/// A function from tensor to tensor, for every rank and kind.
#[allow(missing_debug_implementations)] // A closure has none.
pub struct MapTensor<'a>(pub(crate) &'a mut dyn FnMut(DispatchTensor) -> DispatchTensor);

macro_rules! tensors_of_kind {
    ($($tensor:ty),+) => {$(
        impl<const D: usize> Tensors for $tensor {
            fn map(self, map: &mut MapTensor<'_>) -> Self {
                Self::from_dispatch((map.0)(self.into_dispatch()))
            }
        }
    )+};
}

tensors_of_kind!(Tensor<D>, Tensor<D, Int>, Tensor<D, Bool>);

impl<T: Tensors> Tensors for Option<T> {
    fn map(self, map: &mut MapTensor<'_>) -> Self {
        Option::map(self, |tensors| tensors.map(map))
    }
}

impl<T: Tensors> Tensors for Vec<T> {
    fn map(self, map: &mut MapTensor<'_>) -> Self {
        self.into_iter().map(|tensors| tensors.map(map)).collect()
    }
}

impl<T: Tensors, const N: usize> Tensors for [T; N] {
    fn map(self, map: &mut MapTensor<'_>) -> Self {
        <[T; N]>::map(self, |tensors| tensors.map(map))
    }
}

macro_rules! tuples {
    ($($name:ident)*) => {
        impl<$($name: Tensors),*> Tensors for ($($name,)*) {
            #[allow(non_snake_case)]
            fn map(self, map: &mut MapTensor<'_>) -> Self {
                let ($($name,)*) = self;
                ($($name.map(map),)*)
            }
        }
    };
}

impl<const D: usize> Tensors for LstmState<D> {
    fn map(self, map: &mut MapTensor<'_>) -> Self {
        Self {
            cell: self.cell.map(map),
            hidden: self.hidden.map(map),
        }
    }
}

impl Tensors for () {
    fn map(self, _: &mut MapTensor<'_>) -> Self {}
}

tuples!(A);
tuples!(A B);
tuples!(A B C);
tuples!(A B C D);
tuples!(A B C D E);
tuples!(A B C D E F);
tuples!(A B C D E F G);
tuples!(A B C D E F G H);

//! What a recording of the memory is told: which parameter is read or stepped, and which operation
//! runs. Without the feature `timeline`, nothing.

#[cfg(feature = "timeline")]
use burn::backend::DispatchTensor;
#[cfg(feature = "timeline")]
pub(crate) use lean_timeline::heap::{operation, recompute};

/// The address of a tensor's memory, if it is on Flex.
#[cfg(all(feature = "timeline", feature = "flex"))]
pub(crate) fn address(tensor: &DispatchTensor) -> Option<usize> {
    use crate::backend::plain;
    use burn::{Tensor, backend::Flex};
    // Any rank will do.
    let tensor = Tensor::<1>::from_dispatch(plain(tensor.clone()));
    let tensor = tensor.try_into_primitive::<Flex>().ok()?;
    Some(tensor.bytes().as_ptr().addr())
}

#[cfg(all(feature = "timeline", not(feature = "flex")))]
pub(crate) fn address(_: &DispatchTensor) -> Option<usize> {
    None
}

#[cfg(feature = "timeline")]
pub(crate) fn read(weight: &DispatchTensor) {
    lean_timeline::heap::read(|| address(weight));
}

/// Steps a weight with its gradient; `stepped` is the new weight in the result, if there is one.
#[cfg(feature = "timeline")]
pub(crate) fn step<T>(
    weight: DispatchTensor,
    grad: DispatchTensor,
    run: impl FnOnce(DispatchTensor, DispatchTensor) -> T,
    stepped: impl FnOnce(&T) -> Option<&DispatchTensor>,
) -> T {
    let (of_weight, of_grad) = match lean_timeline::heap::is_recording() {
        true => (address(&weight), address(&grad)),
        false => (None, None),
    };
    lean_timeline::heap::step(
        of_weight,
        of_grad,
        || run(weight, grad),
        |result| stepped(result).and_then(address),
    )
}

/// Replaces a weight by that of the replica that has stepped it.
#[cfg(feature = "timeline")]
pub(crate) fn replace<E>(
    weight: DispatchTensor,
    run: impl FnOnce(DispatchTensor) -> Result<DispatchTensor, E>,
) -> Result<DispatchTensor, E> {
    let of_weight = lean_timeline::heap::is_recording().then(|| address(&weight));
    lean_timeline::heap::step(
        of_weight.flatten(),
        None,
        || run(weight),
        |result| result.as_ref().ok().and_then(address),
    )
}

#[cfg(not(feature = "timeline"))]
mod nothing {
    use burn::backend::DispatchTensor;

    pub(crate) fn step<T>(
        weight: DispatchTensor,
        grad: DispatchTensor,
        run: impl FnOnce(DispatchTensor, DispatchTensor) -> T,
        _: impl FnOnce(&T) -> Option<&DispatchTensor>,
    ) -> T {
        run(weight, grad)
    }

    pub(crate) fn replace<E>(
        weight: DispatchTensor,
        run: impl FnOnce(DispatchTensor) -> Result<DispatchTensor, E>,
    ) -> Result<DispatchTensor, E> {
        run(weight)
    }

    pub(crate) fn operation<T>(_: &'static str, run: impl FnOnce() -> T) -> T {
        run()
    }

    pub(crate) fn recompute<T>(run: impl FnOnce() -> T) -> T {
        run()
    }
}
#[cfg(not(feature = "timeline"))]
pub(crate) use nothing::*;

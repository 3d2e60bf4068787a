//! What a recording of the memory is told: which parameter is read or stepped, and which operation
//! runs. Without the feature `timeline`, nothing.

#[cfg(feature = "timeline")]
use burn::backend::DispatchTensor;
#[cfg(feature = "timeline")]
use burn::module::{Module, Param};
#[cfg(feature = "timeline")]
use burn::tensor::Tensor;
#[cfg(feature = "timeline")]
pub(crate) use lean_timeline::heap::{operation, recompute};
#[cfg(feature = "timeline")]
use lean_timeline::snapshot::Parameter;

#[cfg(feature = "timeline")]
use crate::path::{Path, PathVisitor, WithPaths, is_embedding, path_text};

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

/// The parameters of a model, each with the address of its memory. One that is not initialized yet
/// is left out: reading it here would change the order in which parameters draw random numbers.
#[cfg(feature = "timeline")]
pub(crate) fn parameters_of<M: Module>(model: &M) -> Vec<(Parameter, usize)> {
    struct Parameters(Vec<(Parameter, usize)>);
    impl PathVisitor for Parameters {
        fn visit<const D: usize>(&mut self, path: &Path, param: &Param<Tensor<D>>) {
            if !param.is_initialized() {
                return;
            }
            let (base, shape) = (param.base(), param.lazy_shape());
            let parameter = Parameter {
                path: path_text(path),
                is_embedding: is_embedding(path),
                bytes: (shape.num_elements() * base.dtype().size()) as u64,
                shape: shape.to_vec(),
            };
            let address = address(&base.into_dispatch());
            self.0.extend(address.map(|address| (parameter, address)));
        }
    }
    let mut parameters = Parameters(Vec::new());
    model.visit(&mut WithPaths::new(&mut parameters));
    parameters.0
}

/// Says where the parameters of a model are: some were drawn since the forward pass began, and others
/// have come from another replica.
#[cfg(feature = "timeline")]
pub(crate) fn parameters<M: Module>(model: &M) {
    if lean_timeline::heap::is_recording() {
        lean_timeline::heap::parameters(&parameters_of(model));
    }
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

    pub(crate) fn read(_: &DispatchTensor) {}

    pub(crate) fn parameters<M>(_: &M) {}

    pub(crate) fn operation<T>(_: &'static str, run: impl FnOnce() -> T) -> T {
        run()
    }

    pub(crate) fn recompute<T>(run: impl FnOnce() -> T) -> T {
        run()
    }
}
#[cfg(not(feature = "timeline"))]
pub(crate) use nothing::*;

//! Operations on int tensors, forwarded. Random tensors are logged if a forward pass runs twice.

use burn_autodiff::{Autodiff, checkpoint::strategy::CheckpointStrategy};

use super::{exceptions, methods};
use crate::{backend::GradientRelease, lower::random};

burn_gradient_release_decorator::names!();

exceptions! {
    ($)
    value: int_into_float int_max_dim_with_indices int_min_dim_with_indices int_sort_with_indices;
    own: int_random;
}

#[deny(clippy::missing_trait_methods)]
impl<B: Backend, C: CheckpointStrategy> IntTensorOps<Self> for GradientRelease<Autodiff<B, C>> {
    burn_gradient_release_decorator::int_tensor_ops!(methods);
    burn_gradient_release_decorator::same_tensors_int_rest!(Autodiff<B, C>);

    fn int_random(
        shape: Shape,
        distribution: Distribution,
        device: &Device<Self>,
        dtype: IntDType,
    ) -> IntTensor<Self> {
        random::int::<B>(shape.clone(), distribution, || {
            B::int_random(shape, distribution, device, dtype)
        })
    }
}

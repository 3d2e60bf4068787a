//! Operations on float tensors.

use burn_autodiff::{Autodiff, checkpoint::strategy::CheckpointStrategy};

use super::{exceptions, methods};
use crate::{
    backend::GradientRelease,
    fork,
    lower::operands::Arguments,
    lower::random,
    subgraph::Origins,
    tape,
    tensor::{ReleaseTensor, Repr},
};

burn_gradient_release_decorator::names!();

exceptions! {
    ($)
    value: float_from_data float_zeros float_ones float_full float_empty;
    node: float_matmul float_cross float_gather float_gather_nd float_scatter_add float_scatter_nd
        float_select float_select_add float_slice_assign float_mask_where float_mask_fill;
    composed: float_clamp float_clamp_min float_clamp_max float_transpose float_prod float_prod_dim
        float_powi float_powi_scalar float_powi_scalar_impl float_powf_scalar float_max float_min
        float_max_abs float_max_abs_dim float_not_equal float_not_equal_elem float_any
        float_any_dim float_all float_all_dim float_grid_sample_2d;
    own: float_random float_to_device float_detach float_set_require_grad;
}

impl<B: Backend, C: CheckpointStrategy> FloatTensorOps<Self> for GradientRelease<Autodiff<B, C>> {
    burn_gradient_release_decorator::float_tensor_ops!(methods);

    fn float_into_data(
        tensor: FloatTensor<Self>,
    ) -> impl Future<Output = Result<TensorData, ExecutionError>> + Send {
        Autodiff::<B, C>::float_into_data(tensor.into_autodiff())
    }

    fn float_device(tensor: &FloatTensor<Self>) -> Device<Self> {
        match &tensor.0 {
            Repr::Live(live) => live.device(),
            _ => B::float_device(&tensor.clone().into_value()),
        }
    }

    fn float_random(
        shape: Shape,
        distribution: Distribution,
        device: &Device<Self>,
        dtype: FloatDType,
    ) -> FloatTensor<Self> {
        let origins = match distribution {
            Distribution::Bernoulli(_) => Origins::mask(),
            _ => Origins::none(),
        };
        let value = random::float::<B>(shape.clone(), distribution, dtype.into(), || {
            B::float_random(shape, distribution, device, dtype)
        });
        ReleaseTensor(Repr::Plain(tape::off_tape::<B>(value), origins))
    }

    fn float_to_device(tensor: FloatTensor<Self>, device: &Device<Self>) -> FloatTensor<Self> {
        if fork::is_to_be_armed(&tensor) && Self::float_device(&tensor) == *device {
            return tensor;
        }
        let device = device.clone();
        let mut arguments = Arguments::new();
        arguments.push(tensor);
        arguments.derive("float_to_device", move |mut operands| {
            let tensor = operands.next().expect("there is one");
            Autodiff::<B, C>::float_to_device(tensor, &device)
        })
    }

    fn float_detach(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        if fork::is_to_be_armed(&tensor) {
            return tensor;
        }
        let mut arguments = Arguments::new();
        arguments.push(tensor);
        arguments.detach(|mut operands| {
            Autodiff::<B, C>::float_detach(operands.next().expect("there is one"))
        })
    }

    fn float_set_require_grad(tensor: FloatTensor<Self>, require_grad: bool) -> FloatTensor<Self> {
        if require_grad && let Some(live) = fork::arm(&tensor) {
            return ReleaseTensor(Repr::Live(live));
        }
        let tensor = match tensor.read().0 {
            // A parameter that requires gradients already needs no new leaf.
            Repr::Snapshot(snapshot) if require_grad => {
                return ReleaseTensor(Repr::Snapshot(snapshot));
            }
            // Burn refuses tensors that are not leaves.
            Repr::Derived(derived) if require_grad => derived.on_tape().0,
            Repr::Replayable(recorded) if require_grad && recorded.is_tracked() => {
                panic!("Can't convert a non leaf tensor into a tracked tensor")
            }
            other => ReleaseTensor(other).into_autodiff(),
        };
        ReleaseTensor::plain(Autodiff::<B, C>::float_set_require_grad(
            tensor,
            require_grad,
        ))
    }

    fn float_is_require_grad(tensor: &FloatTensor<Self>) -> bool {
        match &tensor.0 {
            Repr::Plain(tensor, _) => Autodiff::<B, C>::float_is_require_grad(tensor),
            Repr::Live(_) => true,
            Repr::Snapshot(snapshot) => Autodiff::<B, C>::float_is_require_grad(&snapshot.leaf),
            Repr::Derived(_) | Repr::Replayable(_) => false,
        }
    }
}

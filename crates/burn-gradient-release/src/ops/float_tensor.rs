//! Operations on float tensors.

use burn::tensor::{
    BoolDType, Distribution, FloatDType, IndexingUpdateOp, IntDType, Scalar, Shape, Slice,
    TensorData,
    backend::{Backend, ExecutionError},
    ops::{BoolTensor, Device, FloatTensor, FloatTensorOps, GridSampleOptions, IntTensor},
};
use burn_autodiff::{Autodiff, checkpoint::strategy::CheckpointStrategy};

use crate::{
    GradientRelease, derived, fork, join,
    tap::Use,
    tensor::{ReleaseTensor, Repr},
};

impl<B: Backend, C: CheckpointStrategy> FloatTensorOps<Self> for GradientRelease<Autodiff<B, C>> {
    fn float_from_data(data: TensorData, device: &Device<Self>) -> FloatTensor<Self> {
        ReleaseTensor::plain(Autodiff::<B, C>::float_from_data(data, device))
    }

    fn float_random(
        shape: Shape,
        distribution: Distribution,
        device: &Device<Self>,
        dtype: FloatDType,
    ) -> FloatTensor<Self> {
        ReleaseTensor::plain(Autodiff::<B, C>::float_random(
            shape,
            distribution,
            device,
            dtype,
        ))
    }

    fn float_zeros(shape: Shape, device: &Device<Self>, dtype: FloatDType) -> FloatTensor<Self> {
        ReleaseTensor::plain(Autodiff::<B, C>::float_zeros(shape, device, dtype))
    }

    fn float_ones(shape: Shape, device: &Device<Self>, dtype: FloatDType) -> FloatTensor<Self> {
        ReleaseTensor::plain(Autodiff::<B, C>::float_ones(shape, device, dtype))
    }

    fn float_full(
        shape: Shape,
        fill_value: Scalar,
        device: &Device<Self>,
        dtype: FloatDType,
    ) -> FloatTensor<Self> {
        ReleaseTensor::plain(Autodiff::<B, C>::float_full(
            shape, fill_value, device, dtype,
        ))
    }

    fn float_into_data(
        tensor: FloatTensor<Self>,
    ) -> impl Future<Output = Result<TensorData, ExecutionError>> + Send {
        Autodiff::<B, C>::float_into_data(tensor.into_untapped())
    }

    fn float_device(tensor: &FloatTensor<Self>) -> Device<Self> {
        B::float_device(&tensor.clone().into_value())
    }

    fn float_to_device(tensor: FloatTensor<Self>, device: &Device<Self>) -> FloatTensor<Self> {
        if fork::is_to_be_armed(&tensor) && Self::float_device(&tensor) == *device {
            return tensor;
        }
        let device = device.clone();
        derived::map(tensor, move |tensor| {
            Autodiff::<B, C>::float_to_device(tensor, &device)
        })
    }

    fn float_into_int(tensor: FloatTensor<Self>, out_dtype: IntDType) -> IntTensor<Self> {
        Autodiff::<B, C>::float_into_int(tensor.into_untapped(), out_dtype)
    }

    fn float_empty(shape: Shape, device: &Device<Self>, dtype: FloatDType) -> FloatTensor<Self> {
        ReleaseTensor::plain(Autodiff::<B, C>::float_empty(shape, device, dtype))
    }

    fn float_repeat_dim(tensor: FloatTensor<Self>, dim: usize, times: usize) -> FloatTensor<Self> {
        derived::map(tensor, move |tensor| {
            Autodiff::<B, C>::float_repeat_dim(tensor, dim, times)
        })
    }

    fn float_add(lhs: FloatTensor<Self>, rhs: FloatTensor<Self>) -> FloatTensor<Self> {
        derived::zip(lhs, rhs, Autodiff::<B, C>::float_add)
    }

    fn float_add_scalar(lhs: FloatTensor<Self>, rhs: Scalar) -> FloatTensor<Self> {
        derived::map(lhs, move |lhs| Autodiff::<B, C>::float_add_scalar(lhs, rhs))
    }

    fn float_clamp_min(tensor: FloatTensor<Self>, min: Scalar) -> FloatTensor<Self> {
        derived::map(tensor, move |tensor| {
            Autodiff::<B, C>::float_clamp_min(tensor, min)
        })
    }

    fn float_clamp_max(tensor: FloatTensor<Self>, max: Scalar) -> FloatTensor<Self> {
        derived::map(tensor, move |tensor| {
            Autodiff::<B, C>::float_clamp_max(tensor, max)
        })
    }

    fn float_clamp(tensor: FloatTensor<Self>, min: Scalar, max: Scalar) -> FloatTensor<Self> {
        derived::map(tensor, move |tensor| {
            Autodiff::<B, C>::float_clamp(tensor, min, max)
        })
    }

    fn float_sub(lhs: FloatTensor<Self>, rhs: FloatTensor<Self>) -> FloatTensor<Self> {
        derived::zip(lhs, rhs, Autodiff::<B, C>::float_sub)
    }

    fn float_sub_scalar(lhs: FloatTensor<Self>, rhs: Scalar) -> FloatTensor<Self> {
        derived::map(lhs, move |lhs| Autodiff::<B, C>::float_sub_scalar(lhs, rhs))
    }

    fn float_mul(lhs: FloatTensor<Self>, rhs: FloatTensor<Self>) -> FloatTensor<Self> {
        derived::zip(lhs, rhs, Autodiff::<B, C>::float_mul)
    }

    fn float_mul_scalar(lhs: FloatTensor<Self>, rhs: Scalar) -> FloatTensor<Self> {
        derived::map(lhs, move |lhs| Autodiff::<B, C>::float_mul_scalar(lhs, rhs))
    }

    fn float_div(lhs: FloatTensor<Self>, rhs: FloatTensor<Self>) -> FloatTensor<Self> {
        derived::zip(lhs, rhs, Autodiff::<B, C>::float_div)
    }

    fn float_div_scalar(lhs: FloatTensor<Self>, rhs: Scalar) -> FloatTensor<Self> {
        derived::map(lhs, move |lhs| Autodiff::<B, C>::float_div_scalar(lhs, rhs))
    }

    fn float_remainder(lhs: FloatTensor<Self>, rhs: FloatTensor<Self>) -> FloatTensor<Self> {
        derived::zip(lhs, rhs, Autodiff::<B, C>::float_remainder)
    }

    fn float_remainder_scalar(lhs: FloatTensor<Self>, rhs: Scalar) -> FloatTensor<Self> {
        derived::map(lhs, move |lhs| {
            Autodiff::<B, C>::float_remainder_scalar(lhs, rhs)
        })
    }

    fn float_matmul(lhs: FloatTensor<Self>, rhs: FloatTensor<Self>) -> FloatTensor<Self> {
        let [lhs, rhs] = join::operands(Use::Single, [lhs, rhs]);
        ReleaseTensor::plain(Autodiff::<B, C>::float_matmul(lhs, rhs))
    }

    fn float_cross(
        lhs: FloatTensor<Self>,
        rhs: FloatTensor<Self>,
        dim: usize,
    ) -> FloatTensor<Self> {
        let [lhs, rhs] = join::operands(Use::Single, [lhs, rhs]);
        ReleaseTensor::plain(Autodiff::<B, C>::float_cross(lhs, rhs, dim))
    }

    fn float_neg(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        derived::map(tensor, Autodiff::<B, C>::float_neg)
    }

    fn float_recip(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        derived::map(tensor, Autodiff::<B, C>::float_recip)
    }

    fn float_transpose(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        derived::map(tensor, Autodiff::<B, C>::float_transpose)
    }

    fn float_swap_dims(tensor: FloatTensor<Self>, dim1: usize, dim2: usize) -> FloatTensor<Self> {
        derived::map(tensor, move |tensor| {
            Autodiff::<B, C>::float_swap_dims(tensor, dim1, dim2)
        })
    }

    fn float_permute(tensor: FloatTensor<Self>, axes: &[usize]) -> FloatTensor<Self> {
        let axes = axes.to_vec();
        derived::map(tensor, move |tensor| {
            Autodiff::<B, C>::float_permute(tensor, &axes)
        })
    }

    fn float_flip(tensor: FloatTensor<Self>, axes: &[usize]) -> FloatTensor<Self> {
        let axes = axes.to_vec();
        derived::map(tensor, move |tensor| {
            Autodiff::<B, C>::float_flip(tensor, &axes)
        })
    }

    fn float_reshape(tensor: FloatTensor<Self>, shape: Shape) -> FloatTensor<Self> {
        derived::map(tensor, move |tensor| {
            Autodiff::<B, C>::float_reshape(tensor, shape.clone())
        })
    }

    fn float_gather(
        dim: usize,
        tensor: FloatTensor<Self>,
        indices: IntTensor<Self>,
    ) -> FloatTensor<Self> {
        let [tensor] = join::operands(Use::Single, [tensor]);
        ReleaseTensor::plain(Autodiff::<B, C>::float_gather(dim, tensor, indices))
    }

    fn float_scatter_add(
        dim: usize,
        tensor: FloatTensor<Self>,
        indices: IntTensor<Self>,
        value: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        let [tensor, value] = join::operands(Use::Single, [tensor, value]);
        ReleaseTensor::plain(Autodiff::<B, C>::float_scatter_add(
            dim, tensor, indices, value,
        ))
    }

    fn float_scatter_nd(
        data: FloatTensor<Self>,
        indices: IntTensor<Self>,
        values: FloatTensor<Self>,
        reduction: IndexingUpdateOp,
    ) -> FloatTensor<Self> {
        let [data, values] = join::operands(Use::Composite, [data, values]);
        ReleaseTensor::plain(Autodiff::<B, C>::float_scatter_nd(
            data, indices, values, reduction,
        ))
    }

    fn float_gather_nd(data: FloatTensor<Self>, indices: IntTensor<Self>) -> FloatTensor<Self> {
        let [data] = join::operands(Use::Composite, [data]);
        ReleaseTensor::plain(Autodiff::<B, C>::float_gather_nd(data, indices))
    }

    fn float_select(
        tensor: FloatTensor<Self>,
        dim: usize,
        indices: IntTensor<Self>,
    ) -> FloatTensor<Self> {
        let [tensor] = join::operands(Use::Single, [tensor]);
        ReleaseTensor::plain(Autodiff::<B, C>::float_select(tensor, dim, indices))
    }

    fn float_select_add(
        tensor: FloatTensor<Self>,
        dim: usize,
        indices: IntTensor<Self>,
        value: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        let [tensor, value] = join::operands(Use::Single, [tensor, value]);
        ReleaseTensor::plain(Autodiff::<B, C>::float_select_add(
            tensor, dim, indices, value,
        ))
    }

    fn float_slice(tensor: FloatTensor<Self>, slices: &[Slice]) -> FloatTensor<Self> {
        let slices = slices.to_vec();
        derived::map(tensor, move |tensor| {
            Autodiff::<B, C>::float_slice(tensor, &slices)
        })
    }

    fn float_slice_assign(
        tensor: FloatTensor<Self>,
        slices: &[Slice],
        value: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        let [tensor, value] = join::operands(Use::Single, [tensor, value]);
        ReleaseTensor::plain(Autodiff::<B, C>::float_slice_assign(tensor, slices, value))
    }

    fn float_mask_where(
        tensor: FloatTensor<Self>,
        mask: BoolTensor<Self>,
        value: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        let [tensor, value] = join::operands(Use::Single, [tensor, value]);
        ReleaseTensor::plain(Autodiff::<B, C>::float_mask_where(tensor, mask, value))
    }

    fn float_mask_fill(
        tensor: FloatTensor<Self>,
        mask: BoolTensor<Self>,
        value: Scalar,
    ) -> FloatTensor<Self> {
        let [tensor] = join::operands(Use::Single, [tensor]);
        ReleaseTensor::plain(Autodiff::<B, C>::float_mask_fill(tensor, mask, value))
    }

    fn float_equal(
        lhs: FloatTensor<Self>,
        rhs: FloatTensor<Self>,
        out_dtype: BoolDType,
    ) -> BoolTensor<Self> {
        Autodiff::<B, C>::float_equal(lhs.into_untapped(), rhs.into_untapped(), out_dtype)
    }

    fn float_not_equal(
        lhs: FloatTensor<Self>,
        rhs: FloatTensor<Self>,
        out_dtype: BoolDType,
    ) -> BoolTensor<Self> {
        Autodiff::<B, C>::float_not_equal(lhs.into_untapped(), rhs.into_untapped(), out_dtype)
    }

    fn float_equal_elem(
        lhs: FloatTensor<Self>,
        rhs: Scalar,
        out_dtype: BoolDType,
    ) -> BoolTensor<Self> {
        Autodiff::<B, C>::float_equal_elem(lhs.into_untapped(), rhs, out_dtype)
    }

    fn float_not_equal_elem(
        lhs: FloatTensor<Self>,
        rhs: Scalar,
        out_dtype: BoolDType,
    ) -> BoolTensor<Self> {
        Autodiff::<B, C>::float_not_equal_elem(lhs.into_untapped(), rhs, out_dtype)
    }

    fn float_greater(
        lhs: FloatTensor<Self>,
        rhs: FloatTensor<Self>,
        out_dtype: BoolDType,
    ) -> BoolTensor<Self> {
        Autodiff::<B, C>::float_greater(lhs.into_untapped(), rhs.into_untapped(), out_dtype)
    }

    fn float_greater_elem(
        lhs: FloatTensor<Self>,
        rhs: Scalar,
        out_dtype: BoolDType,
    ) -> BoolTensor<Self> {
        Autodiff::<B, C>::float_greater_elem(lhs.into_untapped(), rhs, out_dtype)
    }

    fn float_greater_equal(
        lhs: FloatTensor<Self>,
        rhs: FloatTensor<Self>,
        out_dtype: BoolDType,
    ) -> BoolTensor<Self> {
        Autodiff::<B, C>::float_greater_equal(lhs.into_untapped(), rhs.into_untapped(), out_dtype)
    }

    fn float_greater_equal_elem(
        lhs: FloatTensor<Self>,
        rhs: Scalar,
        out_dtype: BoolDType,
    ) -> BoolTensor<Self> {
        Autodiff::<B, C>::float_greater_equal_elem(lhs.into_untapped(), rhs, out_dtype)
    }

    fn float_lower(
        lhs: FloatTensor<Self>,
        rhs: FloatTensor<Self>,
        out_dtype: BoolDType,
    ) -> BoolTensor<Self> {
        Autodiff::<B, C>::float_lower(lhs.into_untapped(), rhs.into_untapped(), out_dtype)
    }

    fn float_lower_elem(
        lhs: FloatTensor<Self>,
        rhs: Scalar,
        out_dtype: BoolDType,
    ) -> BoolTensor<Self> {
        Autodiff::<B, C>::float_lower_elem(lhs.into_untapped(), rhs, out_dtype)
    }

    fn float_lower_equal(
        lhs: FloatTensor<Self>,
        rhs: FloatTensor<Self>,
        out_dtype: BoolDType,
    ) -> BoolTensor<Self> {
        Autodiff::<B, C>::float_lower_equal(lhs.into_untapped(), rhs.into_untapped(), out_dtype)
    }

    fn float_lower_equal_elem(
        lhs: FloatTensor<Self>,
        rhs: Scalar,
        out_dtype: BoolDType,
    ) -> BoolTensor<Self> {
        Autodiff::<B, C>::float_lower_equal_elem(lhs.into_untapped(), rhs, out_dtype)
    }

    fn float_detach(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        if fork::is_to_be_armed(&tensor) {
            return tensor;
        }
        ReleaseTensor::plain(Autodiff::<B, C>::float_detach(tensor.into_untapped()))
    }

    fn float_set_require_grad(tensor: FloatTensor<Self>, require_grad: bool) -> FloatTensor<Self> {
        if require_grad && let Some(live) = fork::arm(&tensor) {
            return ReleaseTensor(Repr::Live(live));
        }
        let tensor = match tensor.read().0 {
            // What is required already needs no new leaf.
            Repr::Snapshot(snapshot) if require_grad => {
                return ReleaseTensor(Repr::Snapshot(snapshot));
            }
            Repr::Derived(derived) => derived.on_tape(0),
            other => ReleaseTensor(other).into_untapped(),
        };
        ReleaseTensor::plain(Autodiff::<B, C>::float_set_require_grad(
            tensor,
            require_grad,
        ))
    }

    fn float_is_require_grad(tensor: &FloatTensor<Self>) -> bool {
        match &tensor.0 {
            Repr::Plain(tensor) => Autodiff::<B, C>::float_is_require_grad(tensor),
            Repr::Live(_) => true,
            Repr::Snapshot(snapshot) => Autodiff::<B, C>::float_is_require_grad(&snapshot.leaf),
            Repr::Derived(_) => false,
        }
    }

    fn float_sum(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        derived::map(tensor, Autodiff::<B, C>::float_sum)
    }

    fn float_sum_dim(tensor: FloatTensor<Self>, dim: usize) -> FloatTensor<Self> {
        derived::map(tensor, move |tensor| {
            Autodiff::<B, C>::float_sum_dim(tensor, dim)
        })
    }

    fn float_prod(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        derived::map(tensor, Autodiff::<B, C>::float_prod)
    }

    fn float_prod_dim(tensor: FloatTensor<Self>, dim: usize) -> FloatTensor<Self> {
        derived::map(tensor, move |tensor| {
            Autodiff::<B, C>::float_prod_dim(tensor, dim)
        })
    }

    fn float_mean(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        derived::map(tensor, Autodiff::<B, C>::float_mean)
    }

    fn float_mean_dim(tensor: FloatTensor<Self>, dim: usize) -> FloatTensor<Self> {
        derived::map(tensor, move |tensor| {
            Autodiff::<B, C>::float_mean_dim(tensor, dim)
        })
    }

    fn float_cumsum(tensor: FloatTensor<Self>, dim: usize) -> FloatTensor<Self> {
        derived::map(tensor, move |tensor| {
            Autodiff::<B, C>::float_cumsum(tensor, dim)
        })
    }

    fn float_cumprod(tensor: FloatTensor<Self>, dim: usize) -> FloatTensor<Self> {
        derived::map(tensor, move |tensor| {
            Autodiff::<B, C>::float_cumprod(tensor, dim)
        })
    }

    fn float_cummin(tensor: FloatTensor<Self>, dim: usize) -> FloatTensor<Self> {
        derived::map(tensor, move |tensor| {
            Autodiff::<B, C>::float_cummin(tensor, dim)
        })
    }

    fn float_cummax(tensor: FloatTensor<Self>, dim: usize) -> FloatTensor<Self> {
        derived::map(tensor, move |tensor| {
            Autodiff::<B, C>::float_cummax(tensor, dim)
        })
    }

    fn float_cast(tensor: FloatTensor<Self>, dtype: FloatDType) -> FloatTensor<Self> {
        derived::map(tensor, move |tensor| {
            Autodiff::<B, C>::float_cast(tensor, dtype)
        })
    }

    fn float_exp(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        derived::map(tensor, Autodiff::<B, C>::float_exp)
    }

    fn float_log(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        derived::map(tensor, Autodiff::<B, C>::float_log)
    }

    fn float_log1p(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        derived::map(tensor, Autodiff::<B, C>::float_log1p)
    }

    fn float_powf(lhs: FloatTensor<Self>, rhs: FloatTensor<Self>) -> FloatTensor<Self> {
        derived::zip(lhs, rhs, Autodiff::<B, C>::float_powf)
    }

    fn float_powi(lhs: FloatTensor<Self>, rhs: IntTensor<Self>) -> FloatTensor<Self> {
        let [lhs] = join::operands(Use::Composite, [lhs]);
        ReleaseTensor::plain(Autodiff::<B, C>::float_powi(lhs, rhs))
    }

    fn float_powi_scalar(lhs: FloatTensor<Self>, rhs: Scalar) -> FloatTensor<Self> {
        derived::map(lhs, move |lhs| {
            Autodiff::<B, C>::float_powi_scalar(lhs, rhs)
        })
    }

    fn float_powi_scalar_impl(lhs: FloatTensor<Self>, rhs: Scalar) -> FloatTensor<Self> {
        derived::map(lhs, move |lhs| {
            Autodiff::<B, C>::float_powi_scalar_impl(lhs, rhs)
        })
    }

    fn float_powf_scalar(tensor: FloatTensor<Self>, value: Scalar) -> FloatTensor<Self> {
        derived::map(tensor, move |tensor| {
            Autodiff::<B, C>::float_powf_scalar(tensor, value)
        })
    }

    fn float_powf_scalar_impl(tensor: FloatTensor<Self>, value: Scalar) -> FloatTensor<Self> {
        derived::map(tensor, move |tensor| {
            Autodiff::<B, C>::float_powf_scalar_impl(tensor, value)
        })
    }

    fn float_sqrt(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        derived::map(tensor, Autodiff::<B, C>::float_sqrt)
    }

    fn float_abs(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        derived::map(tensor, Autodiff::<B, C>::float_abs)
    }

    fn float_cos(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        derived::map(tensor, Autodiff::<B, C>::float_cos)
    }

    fn float_sin(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        derived::map(tensor, Autodiff::<B, C>::float_sin)
    }

    fn float_tan(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        derived::map(tensor, Autodiff::<B, C>::float_tan)
    }

    fn float_cosh(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        derived::map(tensor, Autodiff::<B, C>::float_cosh)
    }

    fn float_sinh(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        derived::map(tensor, Autodiff::<B, C>::float_sinh)
    }

    fn float_tanh(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        derived::map(tensor, Autodiff::<B, C>::float_tanh)
    }

    fn float_acos(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        derived::map(tensor, Autodiff::<B, C>::float_acos)
    }

    fn float_acosh(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        derived::map(tensor, Autodiff::<B, C>::float_acosh)
    }

    fn float_asin(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        derived::map(tensor, Autodiff::<B, C>::float_asin)
    }

    fn float_asinh(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        derived::map(tensor, Autodiff::<B, C>::float_asinh)
    }

    fn float_atan(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        derived::map(tensor, Autodiff::<B, C>::float_atan)
    }

    fn float_atanh(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        derived::map(tensor, Autodiff::<B, C>::float_atanh)
    }

    fn float_atan2(lhs: FloatTensor<Self>, rhs: FloatTensor<Self>) -> FloatTensor<Self> {
        derived::zip(lhs, rhs, Autodiff::<B, C>::float_atan2)
    }

    fn float_round(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        derived::map(tensor, Autodiff::<B, C>::float_round)
    }

    fn float_floor(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        derived::map(tensor, Autodiff::<B, C>::float_floor)
    }

    fn float_ceil(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        derived::map(tensor, Autodiff::<B, C>::float_ceil)
    }

    fn float_trunc(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        derived::map(tensor, Autodiff::<B, C>::float_trunc)
    }

    fn float_erf(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        derived::map(tensor, Autodiff::<B, C>::float_erf)
    }

    fn float_cat(tensors: Vec<FloatTensor<Self>>, dim: usize) -> FloatTensor<Self> {
        derived::merge(tensors, move |tensors| {
            Autodiff::<B, C>::float_cat(tensors, dim)
        })
    }

    fn float_argmax(tensor: FloatTensor<Self>, dim: usize, out_dtype: IntDType) -> IntTensor<Self> {
        Autodiff::<B, C>::float_argmax(tensor.into_untapped(), dim, out_dtype)
    }

    fn float_argtopk(
        tensor: FloatTensor<Self>,
        dim: usize,
        k: usize,
        out_dtype: IntDType,
    ) -> IntTensor<Self> {
        Autodiff::<B, C>::float_argtopk(tensor.into_untapped(), dim, k, out_dtype)
    }

    fn float_topk(tensor: FloatTensor<Self>, dim: usize, k: usize) -> FloatTensor<Self> {
        derived::map(tensor, move |tensor| {
            Autodiff::<B, C>::float_topk(tensor, dim, k)
        })
    }

    fn float_argmin(tensor: FloatTensor<Self>, dim: usize, out_dtype: IntDType) -> IntTensor<Self> {
        Autodiff::<B, C>::float_argmin(tensor.into_untapped(), dim, out_dtype)
    }

    fn float_max(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        derived::map(tensor, Autodiff::<B, C>::float_max)
    }

    fn float_max_dim(tensor: FloatTensor<Self>, dim: usize) -> FloatTensor<Self> {
        derived::map(tensor, move |tensor| {
            Autodiff::<B, C>::float_max_dim(tensor, dim)
        })
    }

    fn float_max_dim_with_indices(
        tensor: FloatTensor<Self>,
        dim: usize,
        indices_dtype: IntDType,
    ) -> (FloatTensor<Self>, IntTensor<Self>) {
        let [tensor] = join::operands(Use::Composite, [tensor]);
        let (values, indices) =
            Autodiff::<B, C>::float_max_dim_with_indices(tensor, dim, indices_dtype);
        (ReleaseTensor::plain(values), indices)
    }

    fn float_min(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        derived::map(tensor, Autodiff::<B, C>::float_min)
    }

    fn float_min_dim(tensor: FloatTensor<Self>, dim: usize) -> FloatTensor<Self> {
        derived::map(tensor, move |tensor| {
            Autodiff::<B, C>::float_min_dim(tensor, dim)
        })
    }

    fn float_min_dim_with_indices(
        tensor: FloatTensor<Self>,
        dim: usize,
        indices_dtype: IntDType,
    ) -> (FloatTensor<Self>, IntTensor<Self>) {
        let [tensor] = join::operands(Use::Composite, [tensor]);
        let (values, indices) =
            Autodiff::<B, C>::float_min_dim_with_indices(tensor, dim, indices_dtype);
        (ReleaseTensor::plain(values), indices)
    }

    fn float_max_abs(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        derived::map(tensor, Autodiff::<B, C>::float_max_abs)
    }

    fn float_max_abs_dim(tensor: FloatTensor<Self>, dim: usize) -> FloatTensor<Self> {
        derived::map(tensor, move |tensor| {
            Autodiff::<B, C>::float_max_abs_dim(tensor, dim)
        })
    }

    fn float_any(tensor: FloatTensor<Self>, out_dtype: BoolDType) -> BoolTensor<Self> {
        Autodiff::<B, C>::float_any(tensor.into_untapped(), out_dtype)
    }

    fn float_any_dim(
        tensor: FloatTensor<Self>,
        dim: usize,
        out_dtype: BoolDType,
    ) -> BoolTensor<Self> {
        Autodiff::<B, C>::float_any_dim(tensor.into_untapped(), dim, out_dtype)
    }

    fn float_all(tensor: FloatTensor<Self>, out_dtype: BoolDType) -> BoolTensor<Self> {
        Autodiff::<B, C>::float_all(tensor.into_untapped(), out_dtype)
    }

    fn float_all_dim(
        tensor: FloatTensor<Self>,
        dim: usize,
        out_dtype: BoolDType,
    ) -> BoolTensor<Self> {
        Autodiff::<B, C>::float_all_dim(tensor.into_untapped(), dim, out_dtype)
    }

    fn float_sign(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        derived::map(tensor, Autodiff::<B, C>::float_sign)
    }

    fn float_expand(tensor: FloatTensor<Self>, shape: Shape) -> FloatTensor<Self> {
        derived::map(tensor, move |tensor| {
            Autodiff::<B, C>::float_expand(tensor, shape.clone())
        })
    }

    fn float_sort(tensor: FloatTensor<Self>, dim: usize, descending: bool) -> FloatTensor<Self> {
        derived::map(tensor, move |tensor| {
            Autodiff::<B, C>::float_sort(tensor, dim, descending)
        })
    }

    fn float_sort_with_indices(
        tensor: FloatTensor<Self>,
        dim: usize,
        descending: bool,
        indices_dtype: IntDType,
    ) -> (FloatTensor<Self>, IntTensor<Self>) {
        let [tensor] = join::operands(Use::Composite, [tensor]);
        let (values, indices) =
            Autodiff::<B, C>::float_sort_with_indices(tensor, dim, descending, indices_dtype);
        (ReleaseTensor::plain(values), indices)
    }

    fn float_argsort(
        tensor: FloatTensor<Self>,
        dim: usize,
        descending: bool,
        out_dtype: IntDType,
    ) -> IntTensor<Self> {
        Autodiff::<B, C>::float_argsort(tensor.into_untapped(), dim, descending, out_dtype)
    }

    fn float_grid_sample_2d(
        tensor: FloatTensor<Self>,
        grid: FloatTensor<Self>,
        options: GridSampleOptions,
    ) -> FloatTensor<Self> {
        let [tensor, grid] = join::operands(Use::Composite, [tensor, grid]);
        ReleaseTensor::plain(Autodiff::<B, C>::float_grid_sample_2d(
            tensor, grid, options,
        ))
    }

    fn float_unfold(
        tensor: FloatTensor<Self>,
        dim: usize,
        size: usize,
        step: usize,
    ) -> FloatTensor<Self> {
        derived::map(tensor, move |tensor| {
            Autodiff::<B, C>::float_unfold(tensor, dim, size, step)
        })
    }

    fn float_is_nan(tensor: FloatTensor<Self>, out_dtype: BoolDType) -> BoolTensor<Self> {
        Autodiff::<B, C>::float_is_nan(tensor.into_untapped(), out_dtype)
    }

    fn float_is_inf(tensor: FloatTensor<Self>, out_dtype: BoolDType) -> BoolTensor<Self> {
        Autodiff::<B, C>::float_is_inf(tensor.into_untapped(), out_dtype)
    }
}

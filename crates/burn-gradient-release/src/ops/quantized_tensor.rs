//! Operations on quantized tensors, forwarded.

use burn::tensor::{
    BoolDType, FloatDType, IntDType, Scalar, Shape, Slice, TensorData, TensorPrimitive,
    backend::{Backend, ExecutionError},
    ops::{BoolTensor, Device, FloatTensor, IntTensor, QTensorOps, QuantizedTensor},
    quantization::{QuantScheme, QuantizationParametersPrimitive},
};
use burn_autodiff::{Autodiff, checkpoint::strategy::CheckpointStrategy};

use crate::{GradientRelease, tensor::ReleaseTensor};

impl<B: Backend, C: CheckpointStrategy> QTensorOps<Self> for GradientRelease<Autodiff<B, C>> {
    fn q_from_data(data: TensorData, device: &Device<Self>) -> QuantizedTensor<Self> {
        Autodiff::<B, C>::q_from_data(data, device)
    }

    fn quantize(
        tensor: FloatTensor<Self>,
        scheme: &QuantScheme,
        qparams: QuantizationParametersPrimitive<Self>,
    ) -> QuantizedTensor<Self> {
        Autodiff::<B, C>::quantize(
            tensor.into_untapped(),
            scheme,
            QuantizationParametersPrimitive {
                scales: qparams.scales.into_untapped(),
            },
        )
    }

    fn quantize_dynamic(tensor: FloatTensor<Self>, scheme: &QuantScheme) -> QuantizedTensor<Self> {
        Autodiff::<B, C>::quantize_dynamic(tensor.into_untapped(), scheme)
    }

    fn dequantize(tensor: QuantizedTensor<Self>, dtype: FloatDType) -> FloatTensor<Self> {
        ReleaseTensor::plain(Autodiff::<B, C>::dequantize(tensor, dtype))
    }

    fn q_device(tensor: &QuantizedTensor<Self>) -> Device<Self> {
        Autodiff::<B, C>::q_device(tensor)
    }

    fn q_to_device(tensor: QuantizedTensor<Self>, device: &Device<Self>) -> QuantizedTensor<Self> {
        Autodiff::<B, C>::q_to_device(tensor, device)
    }

    fn q_reshape(tensor: QuantizedTensor<Self>, shape: Shape) -> QuantizedTensor<Self> {
        Autodiff::<B, C>::q_reshape(tensor, shape)
    }

    fn q_into_data(
        tensor: QuantizedTensor<Self>,
    ) -> impl Future<Output = Result<TensorData, ExecutionError>> + Send {
        Autodiff::<B, C>::q_into_data(tensor)
    }

    fn q_detach(tensor: QuantizedTensor<Self>) -> QuantizedTensor<Self> {
        Autodiff::<B, C>::q_detach(tensor)
    }

    fn q_set_require_grad(
        tensor: QuantizedTensor<Self>,
        require_grad: bool,
    ) -> QuantizedTensor<Self> {
        Autodiff::<B, C>::q_set_require_grad(tensor, require_grad)
    }

    fn q_is_require_grad(tensor: &QuantizedTensor<Self>) -> bool {
        Autodiff::<B, C>::q_is_require_grad(tensor)
    }

    fn q_expand(tensor: QuantizedTensor<Self>, shape: Shape) -> QuantizedTensor<Self> {
        Autodiff::<B, C>::q_expand(tensor, shape)
    }

    fn q_transpose(tensor: QuantizedTensor<Self>) -> QuantizedTensor<Self> {
        Autodiff::<B, C>::q_transpose(tensor)
    }

    fn q_swap_dims(
        tensor: QuantizedTensor<Self>,
        dim1: usize,
        dim2: usize,
    ) -> QuantizedTensor<Self> {
        Autodiff::<B, C>::q_swap_dims(tensor, dim1, dim2)
    }

    fn q_permute(tensor: QuantizedTensor<Self>, axes: &[usize]) -> QuantizedTensor<Self> {
        Autodiff::<B, C>::q_permute(tensor, axes)
    }

    fn q_flip(tensor: QuantizedTensor<Self>, axes: &[usize]) -> QuantizedTensor<Self> {
        Autodiff::<B, C>::q_flip(tensor, axes)
    }

    fn q_select(
        tensor: QuantizedTensor<Self>,
        dim: usize,
        indices: IntTensor<Self>,
    ) -> QuantizedTensor<Self> {
        Autodiff::<B, C>::q_select(tensor, dim, indices)
    }

    fn q_slice(tensor: QuantizedTensor<Self>, slices: &[Slice]) -> QuantizedTensor<Self> {
        Autodiff::<B, C>::q_slice(tensor, slices)
    }

    fn q_gather(
        dim: usize,
        tensor: QuantizedTensor<Self>,
        indices: IntTensor<Self>,
    ) -> QuantizedTensor<Self> {
        Autodiff::<B, C>::q_gather(dim, tensor, indices)
    }

    fn q_repeat_dim(
        tensor: QuantizedTensor<Self>,
        dim: usize,
        times: usize,
    ) -> QuantizedTensor<Self> {
        Autodiff::<B, C>::q_repeat_dim(tensor, dim, times)
    }

    fn q_add(lhs: QuantizedTensor<Self>, rhs: QuantizedTensor<Self>) -> TensorPrimitive<Self> {
        from_inner(Autodiff::<B, C>::q_add(lhs, rhs))
    }

    fn q_add_scalar(lhs: QuantizedTensor<Self>, rhs: Scalar) -> TensorPrimitive<Self> {
        from_inner(Autodiff::<B, C>::q_add_scalar(lhs, rhs))
    }

    fn q_clamp_min(tensor: QuantizedTensor<Self>, min: Scalar) -> TensorPrimitive<Self> {
        from_inner(Autodiff::<B, C>::q_clamp_min(tensor, min))
    }

    fn q_clamp_max(tensor: QuantizedTensor<Self>, max: Scalar) -> TensorPrimitive<Self> {
        from_inner(Autodiff::<B, C>::q_clamp_max(tensor, max))
    }

    fn q_clamp(tensor: QuantizedTensor<Self>, min: Scalar, max: Scalar) -> TensorPrimitive<Self> {
        from_inner(Autodiff::<B, C>::q_clamp(tensor, min, max))
    }

    fn q_sub(lhs: QuantizedTensor<Self>, rhs: QuantizedTensor<Self>) -> TensorPrimitive<Self> {
        from_inner(Autodiff::<B, C>::q_sub(lhs, rhs))
    }

    fn q_sub_scalar(lhs: QuantizedTensor<Self>, rhs: Scalar) -> TensorPrimitive<Self> {
        from_inner(Autodiff::<B, C>::q_sub_scalar(lhs, rhs))
    }

    fn q_mul(lhs: QuantizedTensor<Self>, rhs: QuantizedTensor<Self>) -> TensorPrimitive<Self> {
        from_inner(Autodiff::<B, C>::q_mul(lhs, rhs))
    }

    fn q_mul_scalar(lhs: QuantizedTensor<Self>, rhs: Scalar) -> TensorPrimitive<Self> {
        from_inner(Autodiff::<B, C>::q_mul_scalar(lhs, rhs))
    }

    fn q_div(lhs: QuantizedTensor<Self>, rhs: QuantizedTensor<Self>) -> TensorPrimitive<Self> {
        from_inner(Autodiff::<B, C>::q_div(lhs, rhs))
    }

    fn q_div_scalar(lhs: QuantizedTensor<Self>, rhs: Scalar) -> TensorPrimitive<Self> {
        from_inner(Autodiff::<B, C>::q_div_scalar(lhs, rhs))
    }

    fn q_matmul(lhs: TensorPrimitive<Self>, rhs: TensorPrimitive<Self>) -> TensorPrimitive<Self> {
        from_inner(Autodiff::<B, C>::q_matmul(to_inner(lhs), to_inner(rhs)))
    }

    fn q_neg(tensor: QuantizedTensor<Self>) -> TensorPrimitive<Self> {
        from_inner(Autodiff::<B, C>::q_neg(tensor))
    }

    fn q_recip(tensor: QuantizedTensor<Self>) -> TensorPrimitive<Self> {
        from_inner(Autodiff::<B, C>::q_recip(tensor))
    }

    fn q_sum(tensor: QuantizedTensor<Self>) -> TensorPrimitive<Self> {
        from_inner(Autodiff::<B, C>::q_sum(tensor))
    }

    fn q_sum_dim(tensor: QuantizedTensor<Self>, dim: usize) -> TensorPrimitive<Self> {
        from_inner(Autodiff::<B, C>::q_sum_dim(tensor, dim))
    }

    fn q_prod(tensor: QuantizedTensor<Self>) -> TensorPrimitive<Self> {
        from_inner(Autodiff::<B, C>::q_prod(tensor))
    }

    fn q_prod_dim(tensor: QuantizedTensor<Self>, dim: usize) -> TensorPrimitive<Self> {
        from_inner(Autodiff::<B, C>::q_prod_dim(tensor, dim))
    }

    fn q_mean(tensor: QuantizedTensor<Self>) -> TensorPrimitive<Self> {
        from_inner(Autodiff::<B, C>::q_mean(tensor))
    }

    fn q_mean_dim(tensor: QuantizedTensor<Self>, dim: usize) -> TensorPrimitive<Self> {
        from_inner(Autodiff::<B, C>::q_mean_dim(tensor, dim))
    }

    fn q_cumsum(tensor: QuantizedTensor<Self>, dim: usize) -> TensorPrimitive<Self> {
        from_inner(Autodiff::<B, C>::q_cumsum(tensor, dim))
    }

    fn q_cumprod(tensor: QuantizedTensor<Self>, dim: usize) -> TensorPrimitive<Self> {
        from_inner(Autodiff::<B, C>::q_cumprod(tensor, dim))
    }

    fn q_cummin(tensor: QuantizedTensor<Self>, dim: usize) -> TensorPrimitive<Self> {
        from_inner(Autodiff::<B, C>::q_cummin(tensor, dim))
    }

    fn q_cummax(tensor: QuantizedTensor<Self>, dim: usize) -> TensorPrimitive<Self> {
        from_inner(Autodiff::<B, C>::q_cummax(tensor, dim))
    }

    fn q_exp(tensor: QuantizedTensor<Self>) -> TensorPrimitive<Self> {
        from_inner(Autodiff::<B, C>::q_exp(tensor))
    }

    fn q_log(tensor: QuantizedTensor<Self>) -> TensorPrimitive<Self> {
        from_inner(Autodiff::<B, C>::q_log(tensor))
    }

    fn q_log1p(tensor: QuantizedTensor<Self>) -> TensorPrimitive<Self> {
        from_inner(Autodiff::<B, C>::q_log1p(tensor))
    }

    fn q_powf(lhs: QuantizedTensor<Self>, rhs: QuantizedTensor<Self>) -> TensorPrimitive<Self> {
        from_inner(Autodiff::<B, C>::q_powf(lhs, rhs))
    }

    fn q_powi(lhs: QuantizedTensor<Self>, rhs: IntTensor<Self>) -> TensorPrimitive<Self> {
        from_inner(Autodiff::<B, C>::q_powi(lhs, rhs))
    }

    fn q_powi_scalar(lhs: QuantizedTensor<Self>, rhs: Scalar) -> TensorPrimitive<Self> {
        from_inner(Autodiff::<B, C>::q_powi_scalar(lhs, rhs))
    }

    fn q_powf_scalar(tensor: QuantizedTensor<Self>, value: Scalar) -> TensorPrimitive<Self> {
        from_inner(Autodiff::<B, C>::q_powf_scalar(tensor, value))
    }

    fn q_sqrt(tensor: QuantizedTensor<Self>) -> TensorPrimitive<Self> {
        from_inner(Autodiff::<B, C>::q_sqrt(tensor))
    }

    fn q_abs(tensor: QuantizedTensor<Self>) -> QuantizedTensor<Self> {
        Autodiff::<B, C>::q_abs(tensor)
    }

    fn q_cos(tensor: QuantizedTensor<Self>) -> TensorPrimitive<Self> {
        from_inner(Autodiff::<B, C>::q_cos(tensor))
    }

    fn q_sin(tensor: QuantizedTensor<Self>) -> TensorPrimitive<Self> {
        from_inner(Autodiff::<B, C>::q_sin(tensor))
    }

    fn q_tan(tensor: QuantizedTensor<Self>) -> TensorPrimitive<Self> {
        from_inner(Autodiff::<B, C>::q_tan(tensor))
    }

    fn q_cosh(tensor: QuantizedTensor<Self>) -> TensorPrimitive<Self> {
        from_inner(Autodiff::<B, C>::q_cosh(tensor))
    }

    fn q_sinh(tensor: QuantizedTensor<Self>) -> TensorPrimitive<Self> {
        from_inner(Autodiff::<B, C>::q_sinh(tensor))
    }

    fn q_tanh(tensor: QuantizedTensor<Self>) -> TensorPrimitive<Self> {
        from_inner(Autodiff::<B, C>::q_tanh(tensor))
    }

    fn q_erf(tensor: QuantizedTensor<Self>) -> TensorPrimitive<Self> {
        from_inner(Autodiff::<B, C>::q_erf(tensor))
    }

    fn q_cat(tensors: Vec<QuantizedTensor<Self>>, dim: usize) -> QuantizedTensor<Self> {
        Autodiff::<B, C>::q_cat(tensors, dim)
    }

    fn q_argmax(tensor: QuantizedTensor<Self>, dim: usize, out_dtype: IntDType) -> IntTensor<Self> {
        Autodiff::<B, C>::q_argmax(tensor, dim, out_dtype)
    }

    fn q_argtopk(
        tensor: QuantizedTensor<Self>,
        dim: usize,
        k: usize,
        out_dtype: IntDType,
    ) -> IntTensor<Self> {
        Autodiff::<B, C>::q_argtopk(tensor, dim, k, out_dtype)
    }

    fn q_topk(tensor: QuantizedTensor<Self>, dim: usize, k: usize) -> QuantizedTensor<Self> {
        Autodiff::<B, C>::q_topk(tensor, dim, k)
    }

    fn q_argmin(tensor: QuantizedTensor<Self>, dim: usize, out_dtype: IntDType) -> IntTensor<Self> {
        Autodiff::<B, C>::q_argmin(tensor, dim, out_dtype)
    }

    fn q_max(tensor: QuantizedTensor<Self>) -> QuantizedTensor<Self> {
        Autodiff::<B, C>::q_max(tensor)
    }

    fn q_max_dim(tensor: QuantizedTensor<Self>, dim: usize) -> QuantizedTensor<Self> {
        Autodiff::<B, C>::q_max_dim(tensor, dim)
    }

    fn q_max_dim_with_indices(
        tensor: QuantizedTensor<Self>,
        dim: usize,
        out_dtype: IntDType,
    ) -> (QuantizedTensor<Self>, IntTensor<Self>) {
        Autodiff::<B, C>::q_max_dim_with_indices(tensor, dim, out_dtype)
    }

    fn q_min(tensor: QuantizedTensor<Self>) -> QuantizedTensor<Self> {
        Autodiff::<B, C>::q_min(tensor)
    }

    fn q_min_dim(tensor: QuantizedTensor<Self>, dim: usize) -> QuantizedTensor<Self> {
        Autodiff::<B, C>::q_min_dim(tensor, dim)
    }

    fn q_min_dim_with_indices(
        tensor: QuantizedTensor<Self>,
        dim: usize,
        out_dtype: IntDType,
    ) -> (QuantizedTensor<Self>, IntTensor<Self>) {
        Autodiff::<B, C>::q_min_dim_with_indices(tensor, dim, out_dtype)
    }

    fn q_max_abs(tensor: QuantizedTensor<Self>) -> QuantizedTensor<Self> {
        Autodiff::<B, C>::q_max_abs(tensor)
    }

    fn q_max_abs_dim(tensor: QuantizedTensor<Self>, dim: usize) -> QuantizedTensor<Self> {
        Autodiff::<B, C>::q_max_abs_dim(tensor, dim)
    }

    fn q_any(tensor: QuantizedTensor<Self>, out_dtype: BoolDType) -> BoolTensor<Self> {
        Autodiff::<B, C>::q_any(tensor, out_dtype)
    }

    fn q_any_dim(
        tensor: QuantizedTensor<Self>,
        dim: usize,
        out_dtype: BoolDType,
    ) -> BoolTensor<Self> {
        Autodiff::<B, C>::q_any_dim(tensor, dim, out_dtype)
    }

    fn q_all(tensor: QuantizedTensor<Self>, out_dtype: BoolDType) -> BoolTensor<Self> {
        Autodiff::<B, C>::q_all(tensor, out_dtype)
    }

    fn q_all_dim(
        tensor: QuantizedTensor<Self>,
        dim: usize,
        out_dtype: BoolDType,
    ) -> BoolTensor<Self> {
        Autodiff::<B, C>::q_all_dim(tensor, dim, out_dtype)
    }

    fn q_sort(
        tensor: QuantizedTensor<Self>,
        dim: usize,
        descending: bool,
    ) -> QuantizedTensor<Self> {
        Autodiff::<B, C>::q_sort(tensor, dim, descending)
    }

    fn q_sort_with_indices(
        tensor: QuantizedTensor<Self>,
        dim: usize,
        descending: bool,
        out_dtype: IntDType,
    ) -> (QuantizedTensor<Self>, IntTensor<Self>) {
        Autodiff::<B, C>::q_sort_with_indices(tensor, dim, descending, out_dtype)
    }

    fn q_argsort(
        tensor: QuantizedTensor<Self>,
        dim: usize,
        descending: bool,
        out_dtype: IntDType,
    ) -> IntTensor<Self> {
        Autodiff::<B, C>::q_argsort(tensor, dim, descending, out_dtype)
    }
}

fn to_inner<B: Backend, C: CheckpointStrategy>(
    tensor: TensorPrimitive<GradientRelease<Autodiff<B, C>>>,
) -> TensorPrimitive<Autodiff<B, C>> {
    match tensor {
        TensorPrimitive::Float(tensor) => TensorPrimitive::Float(tensor.into_untapped()),
        TensorPrimitive::QFloat(tensor) => TensorPrimitive::QFloat(tensor),
    }
}

fn from_inner<B: Backend, C: CheckpointStrategy>(
    tensor: TensorPrimitive<Autodiff<B, C>>,
) -> TensorPrimitive<GradientRelease<Autodiff<B, C>>> {
    match tensor {
        TensorPrimitive::Float(tensor) => TensorPrimitive::Float(ReleaseTensor::plain(tensor)),
        TensorPrimitive::QFloat(tensor) => TensorPrimitive::QFloat(tensor),
    }
}

/// The methods of `QTensorOps`: the operations on quantized tensors.
///
/// Left out for their types: `quantize`, `q_into_data`, `q_device` and `q_is_require_grad`.
/// [`same_tensors_quantize!`](crate::same_tensors_quantize) and
/// [`same_tensors_quantized_rest!`](crate::same_tensors_quantized_rest) forward them.
#[macro_export]
macro_rules! quantized_tensor_ops {
    ($forward:ident) => {
        $forward! {
            q_from_data(data: TensorData, device: Device) -> QuantizedTensor;
            quantize_dynamic(tensor: FloatTensor, scheme: (&QuantScheme)) -> QuantizedTensor;
            dequantize(tensor: QuantizedTensor, dtype: FloatDType) -> FloatTensor;
            q_to_device(tensor: QuantizedTensor, device: Device) -> QuantizedTensor;
            q_reshape(tensor: QuantizedTensor, shape: Shape) -> QuantizedTensor;
            q_detach(tensor: QuantizedTensor) -> QuantizedTensor;
            q_set_require_grad(tensor: QuantizedTensor, require_grad: bool) -> QuantizedTensor;
            q_expand(tensor: QuantizedTensor, shape: Shape) -> QuantizedTensor;
            q_transpose(tensor: QuantizedTensor) -> QuantizedTensor;
            q_swap_dims(tensor: QuantizedTensor, dim1: usize, dim2: usize) -> QuantizedTensor;
            q_permute(tensor: QuantizedTensor, axes: (&[usize])) -> QuantizedTensor;
            q_flip(tensor: QuantizedTensor, axes: (&[usize])) -> QuantizedTensor;
            q_select(tensor: QuantizedTensor, dim: usize, indices: IntTensor) -> QuantizedTensor;
            q_slice(tensor: QuantizedTensor, slices: (&[Slice])) -> QuantizedTensor;
            q_gather(dim: usize, tensor: QuantizedTensor, indices: IntTensor) -> QuantizedTensor;
            q_repeat_dim(tensor: QuantizedTensor, dim: usize, times: usize) -> QuantizedTensor;
            q_add(lhs: QuantizedTensor, rhs: QuantizedTensor) -> TensorPrimitive;
            q_add_scalar(lhs: QuantizedTensor, rhs: Scalar) -> TensorPrimitive;
            q_clamp_min(tensor: QuantizedTensor, min: Scalar) -> TensorPrimitive;
            q_clamp_max(tensor: QuantizedTensor, max: Scalar) -> TensorPrimitive;
            q_clamp(tensor: QuantizedTensor, min: Scalar, max: Scalar) -> TensorPrimitive;
            q_sub(lhs: QuantizedTensor, rhs: QuantizedTensor) -> TensorPrimitive;
            q_sub_scalar(lhs: QuantizedTensor, rhs: Scalar) -> TensorPrimitive;
            q_mul(lhs: QuantizedTensor, rhs: QuantizedTensor) -> TensorPrimitive;
            q_mul_scalar(lhs: QuantizedTensor, rhs: Scalar) -> TensorPrimitive;
            q_div(lhs: QuantizedTensor, rhs: QuantizedTensor) -> TensorPrimitive;
            q_div_scalar(lhs: QuantizedTensor, rhs: Scalar) -> TensorPrimitive;
            q_matmul(lhs: TensorPrimitive, rhs: TensorPrimitive) -> TensorPrimitive;
            q_neg(tensor: QuantizedTensor) -> TensorPrimitive;
            q_recip(tensor: QuantizedTensor) -> TensorPrimitive;
            q_sum(tensor: QuantizedTensor) -> TensorPrimitive;
            q_sum_dim(tensor: QuantizedTensor, dim: usize) -> TensorPrimitive;
            q_prod(tensor: QuantizedTensor) -> TensorPrimitive;
            q_prod_dim(tensor: QuantizedTensor, dim: usize) -> TensorPrimitive;
            q_mean(tensor: QuantizedTensor) -> TensorPrimitive;
            q_mean_dim(tensor: QuantizedTensor, dim: usize) -> TensorPrimitive;
            q_cumsum(tensor: QuantizedTensor, dim: usize) -> TensorPrimitive;
            q_cumprod(tensor: QuantizedTensor, dim: usize) -> TensorPrimitive;
            q_cummin(tensor: QuantizedTensor, dim: usize) -> TensorPrimitive;
            q_cummax(tensor: QuantizedTensor, dim: usize) -> TensorPrimitive;
            q_exp(tensor: QuantizedTensor) -> TensorPrimitive;
            q_log(tensor: QuantizedTensor) -> TensorPrimitive;
            q_log1p(tensor: QuantizedTensor) -> TensorPrimitive;
            q_powf(lhs: QuantizedTensor, rhs: QuantizedTensor) -> TensorPrimitive;
            q_powi(lhs: QuantizedTensor, rhs: IntTensor) -> TensorPrimitive;
            q_powi_scalar(lhs: QuantizedTensor, rhs: Scalar) -> TensorPrimitive;
            q_powf_scalar(tensor: QuantizedTensor, value: Scalar) -> TensorPrimitive;
            q_sqrt(tensor: QuantizedTensor) -> TensorPrimitive;
            q_abs(tensor: QuantizedTensor) -> QuantizedTensor;
            q_cos(tensor: QuantizedTensor) -> TensorPrimitive;
            q_sin(tensor: QuantizedTensor) -> TensorPrimitive;
            q_tan(tensor: QuantizedTensor) -> TensorPrimitive;
            q_cosh(tensor: QuantizedTensor) -> TensorPrimitive;
            q_sinh(tensor: QuantizedTensor) -> TensorPrimitive;
            q_tanh(tensor: QuantizedTensor) -> TensorPrimitive;
            q_erf(tensor: QuantizedTensor) -> TensorPrimitive;
            q_cat(tensors: [Vec QuantizedTensor], dim: usize) -> QuantizedTensor;
            q_argmax(tensor: QuantizedTensor, dim: usize, out_dtype: IntDType) -> IntTensor;
            q_argtopk(
                tensor: QuantizedTensor, dim: usize, k: usize, out_dtype: IntDType
            ) -> IntTensor;
            q_topk(tensor: QuantizedTensor, dim: usize, k: usize) -> QuantizedTensor;
            q_argmin(tensor: QuantizedTensor, dim: usize, out_dtype: IntDType) -> IntTensor;
            q_max(tensor: QuantizedTensor) -> QuantizedTensor;
            q_max_dim(tensor: QuantizedTensor, dim: usize) -> QuantizedTensor;
            q_max_dim_with_indices(
                tensor: QuantizedTensor, dim: usize, out_dtype: IntDType
            ) -> [QuantizedTensor, IntTensor];
            q_min(tensor: QuantizedTensor) -> QuantizedTensor;
            q_min_dim(tensor: QuantizedTensor, dim: usize) -> QuantizedTensor;
            q_min_dim_with_indices(
                tensor: QuantizedTensor, dim: usize, out_dtype: IntDType
            ) -> [QuantizedTensor, IntTensor];
            q_max_abs(tensor: QuantizedTensor) -> QuantizedTensor;
            q_max_abs_dim(tensor: QuantizedTensor, dim: usize) -> QuantizedTensor;
            q_any(tensor: QuantizedTensor, out_dtype: BoolDType) -> BoolTensor;
            q_any_dim(tensor: QuantizedTensor, dim: usize, out_dtype: BoolDType) -> BoolTensor;
            q_all(tensor: QuantizedTensor, out_dtype: BoolDType) -> BoolTensor;
            q_all_dim(tensor: QuantizedTensor, dim: usize, out_dtype: BoolDType) -> BoolTensor;
            q_sort(tensor: QuantizedTensor, dim: usize, descending: bool) -> QuantizedTensor;
            q_sort_with_indices(
                tensor: QuantizedTensor, dim: usize, descending: bool, out_dtype: IntDType
            ) -> [QuantizedTensor, IntTensor];
            q_argsort(
                tensor: QuantizedTensor, dim: usize, descending: bool, out_dtype: IntDType
            ) -> IntTensor;
        }
    };
}

/// The methods of `FloatTensorOps`: the operations on float tensors.
///
/// Left out for their types: `float_into_data`, `float_device` and `float_is_require_grad`.
/// [`same_tensors_float_rest!`](crate::same_tensors_float_rest) forwards them.
#[macro_export]
macro_rules! float_tensor_ops {
    ($forward:ident) => {
        $forward! {
            float_from_data(data: TensorData, device: Device) -> FloatTensor;
            float_random(
                shape: Shape, distribution: Distribution, device: Device, dtype: FloatDType
            ) -> FloatTensor;
            float_zeros(shape: Shape, device: Device, dtype: FloatDType) -> FloatTensor;
            float_ones(shape: Shape, device: Device, dtype: FloatDType) -> FloatTensor;
            float_full(
                shape: Shape, fill_value: Scalar, device: Device, dtype: FloatDType
            ) -> FloatTensor;
            float_to_device(tensor: FloatTensor, device: Device) -> FloatTensor;
            float_into_int(tensor: FloatTensor, out_dtype: IntDType) -> IntTensor;
            float_empty(shape: Shape, device: Device, dtype: FloatDType) -> FloatTensor;
            float_repeat_dim(tensor: FloatTensor, dim: usize, times: usize) -> FloatTensor;
            float_add(lhs: FloatTensor, rhs: FloatTensor) -> FloatTensor;
            float_add_scalar(lhs: FloatTensor, rhs: Scalar) -> FloatTensor;
            float_clamp_min(tensor: FloatTensor, min: Scalar) -> FloatTensor;
            float_clamp_max(tensor: FloatTensor, max: Scalar) -> FloatTensor;
            float_clamp(tensor: FloatTensor, min: Scalar, max: Scalar) -> FloatTensor;
            float_sub(lhs: FloatTensor, rhs: FloatTensor) -> FloatTensor;
            float_sub_scalar(lhs: FloatTensor, rhs: Scalar) -> FloatTensor;
            float_mul(lhs: FloatTensor, rhs: FloatTensor) -> FloatTensor;
            float_mul_scalar(lhs: FloatTensor, rhs: Scalar) -> FloatTensor;
            float_div(lhs: FloatTensor, rhs: FloatTensor) -> FloatTensor;
            float_div_scalar(lhs: FloatTensor, rhs: Scalar) -> FloatTensor;
            float_remainder(lhs: FloatTensor, rhs: FloatTensor) -> FloatTensor;
            float_remainder_scalar(lhs: FloatTensor, rhs: Scalar) -> FloatTensor;
            float_matmul(lhs: FloatTensor, rhs: FloatTensor) -> FloatTensor;
            float_cross(lhs: FloatTensor, rhs: FloatTensor, dim: usize) -> FloatTensor;
            float_neg(tensor: FloatTensor) -> FloatTensor;
            float_recip(tensor: FloatTensor) -> FloatTensor;
            float_transpose(tensor: FloatTensor) -> FloatTensor;
            float_swap_dims(tensor: FloatTensor, dim1: usize, dim2: usize) -> FloatTensor;
            float_permute(tensor: FloatTensor, axes: (&[usize])) -> FloatTensor;
            float_flip(tensor: FloatTensor, axes: (&[usize])) -> FloatTensor;
            float_reshape(tensor: FloatTensor, shape: Shape) -> FloatTensor;
            float_gather(dim: usize, tensor: FloatTensor, indices: IntTensor) -> FloatTensor;
            float_scatter_add(
                dim: usize, tensor: FloatTensor, indices: IntTensor, value: FloatTensor
            ) -> FloatTensor;
            float_scatter_nd(
                data: FloatTensor, indices: IntTensor, values: FloatTensor,
                reduction: IndexingUpdateOp
            ) -> FloatTensor;
            float_gather_nd(data: FloatTensor, indices: IntTensor) -> FloatTensor;
            float_select(tensor: FloatTensor, dim: usize, indices: IntTensor) -> FloatTensor;
            float_select_add(
                tensor: FloatTensor, dim: usize, indices: IntTensor, value: FloatTensor
            ) -> FloatTensor;
            float_slice(tensor: FloatTensor, slices: (&[Slice])) -> FloatTensor;
            float_slice_assign(
                tensor: FloatTensor, slices: (&[Slice]), value: FloatTensor
            ) -> FloatTensor;
            float_mask_where(
                tensor: FloatTensor, mask: BoolTensor, value: FloatTensor
            ) -> FloatTensor;
            float_mask_fill(tensor: FloatTensor, mask: BoolTensor, value: Scalar) -> FloatTensor;
            float_equal(lhs: FloatTensor, rhs: FloatTensor, out_dtype: BoolDType) -> BoolTensor;
            float_not_equal(lhs: FloatTensor, rhs: FloatTensor, out_dtype: BoolDType) -> BoolTensor;
            float_equal_elem(lhs: FloatTensor, rhs: Scalar, out_dtype: BoolDType) -> BoolTensor;
            float_not_equal_elem(lhs: FloatTensor, rhs: Scalar, out_dtype: BoolDType) -> BoolTensor;
            float_greater(lhs: FloatTensor, rhs: FloatTensor, out_dtype: BoolDType) -> BoolTensor;
            float_greater_elem(lhs: FloatTensor, rhs: Scalar, out_dtype: BoolDType) -> BoolTensor;
            float_greater_equal(
                lhs: FloatTensor, rhs: FloatTensor, out_dtype: BoolDType
            ) -> BoolTensor;
            float_greater_equal_elem(
                lhs: FloatTensor, rhs: Scalar, out_dtype: BoolDType
            ) -> BoolTensor;
            float_lower(lhs: FloatTensor, rhs: FloatTensor, out_dtype: BoolDType) -> BoolTensor;
            float_lower_elem(lhs: FloatTensor, rhs: Scalar, out_dtype: BoolDType) -> BoolTensor;
            float_lower_equal(
                lhs: FloatTensor, rhs: FloatTensor, out_dtype: BoolDType
            ) -> BoolTensor;
            float_lower_equal_elem(
                lhs: FloatTensor, rhs: Scalar, out_dtype: BoolDType
            ) -> BoolTensor;
            float_detach(tensor: FloatTensor) -> FloatTensor;
            float_set_require_grad(tensor: FloatTensor, require_grad: bool) -> FloatTensor;
            float_sum(tensor: FloatTensor) -> FloatTensor;
            float_sum_dim(tensor: FloatTensor, dim: usize) -> FloatTensor;
            float_prod(tensor: FloatTensor) -> FloatTensor;
            float_prod_dim(tensor: FloatTensor, dim: usize) -> FloatTensor;
            float_mean(tensor: FloatTensor) -> FloatTensor;
            float_mean_dim(tensor: FloatTensor, dim: usize) -> FloatTensor;
            float_cumsum(tensor: FloatTensor, dim: usize) -> FloatTensor;
            float_cumprod(tensor: FloatTensor, dim: usize) -> FloatTensor;
            float_cummin(tensor: FloatTensor, dim: usize) -> FloatTensor;
            float_cummax(tensor: FloatTensor, dim: usize) -> FloatTensor;
            float_cast(tensor: FloatTensor, dtype: FloatDType) -> FloatTensor;
            float_exp(tensor: FloatTensor) -> FloatTensor;
            float_log(tensor: FloatTensor) -> FloatTensor;
            float_log1p(tensor: FloatTensor) -> FloatTensor;
            float_powf(lhs: FloatTensor, rhs: FloatTensor) -> FloatTensor;
            float_powi(lhs: FloatTensor, rhs: IntTensor) -> FloatTensor;
            float_powi_scalar(lhs: FloatTensor, rhs: Scalar) -> FloatTensor;
            float_powi_scalar_impl(lhs: FloatTensor, rhs: Scalar) -> FloatTensor;
            float_powf_scalar(tensor: FloatTensor, value: Scalar) -> FloatTensor;
            float_powf_scalar_impl(tensor: FloatTensor, value: Scalar) -> FloatTensor;
            float_sqrt(tensor: FloatTensor) -> FloatTensor;
            float_abs(tensor: FloatTensor) -> FloatTensor;
            float_cos(tensor: FloatTensor) -> FloatTensor;
            float_sin(tensor: FloatTensor) -> FloatTensor;
            float_tan(tensor: FloatTensor) -> FloatTensor;
            float_cosh(tensor: FloatTensor) -> FloatTensor;
            float_sinh(tensor: FloatTensor) -> FloatTensor;
            float_tanh(tensor: FloatTensor) -> FloatTensor;
            float_acos(tensor: FloatTensor) -> FloatTensor;
            float_acosh(tensor: FloatTensor) -> FloatTensor;
            float_asin(tensor: FloatTensor) -> FloatTensor;
            float_asinh(tensor: FloatTensor) -> FloatTensor;
            float_atan(tensor: FloatTensor) -> FloatTensor;
            float_atanh(tensor: FloatTensor) -> FloatTensor;
            float_atan2(lhs: FloatTensor, rhs: FloatTensor) -> FloatTensor;
            float_round(tensor: FloatTensor) -> FloatTensor;
            float_floor(tensor: FloatTensor) -> FloatTensor;
            float_ceil(tensor: FloatTensor) -> FloatTensor;
            float_trunc(tensor: FloatTensor) -> FloatTensor;
            float_erf(tensor: FloatTensor) -> FloatTensor;
            float_cat(tensors: [Vec FloatTensor], dim: usize) -> FloatTensor;
            float_argmax(tensor: FloatTensor, dim: usize, out_dtype: IntDType) -> IntTensor;
            float_argtopk(
                tensor: FloatTensor, dim: usize, k: usize, out_dtype: IntDType
            ) -> IntTensor;
            float_topk(tensor: FloatTensor, dim: usize, k: usize) -> FloatTensor;
            float_argmin(tensor: FloatTensor, dim: usize, out_dtype: IntDType) -> IntTensor;
            float_max(tensor: FloatTensor) -> FloatTensor;
            float_max_dim(tensor: FloatTensor, dim: usize) -> FloatTensor;
            float_max_dim_with_indices(
                tensor: FloatTensor, dim: usize, indices_dtype: IntDType
            ) -> [FloatTensor, IntTensor];
            float_min(tensor: FloatTensor) -> FloatTensor;
            float_min_dim(tensor: FloatTensor, dim: usize) -> FloatTensor;
            float_min_dim_with_indices(
                tensor: FloatTensor, dim: usize, indices_dtype: IntDType
            ) -> [FloatTensor, IntTensor];
            float_max_abs(tensor: FloatTensor) -> FloatTensor;
            float_max_abs_dim(tensor: FloatTensor, dim: usize) -> FloatTensor;
            float_any(tensor: FloatTensor, out_dtype: BoolDType) -> BoolTensor;
            float_any_dim(tensor: FloatTensor, dim: usize, out_dtype: BoolDType) -> BoolTensor;
            float_all(tensor: FloatTensor, out_dtype: BoolDType) -> BoolTensor;
            float_all_dim(tensor: FloatTensor, dim: usize, out_dtype: BoolDType) -> BoolTensor;
            float_sign(tensor: FloatTensor) -> FloatTensor;
            float_expand(tensor: FloatTensor, shape: Shape) -> FloatTensor;
            float_sort(tensor: FloatTensor, dim: usize, descending: bool) -> FloatTensor;
            float_sort_with_indices(
                tensor: FloatTensor, dim: usize, descending: bool, indices_dtype: IntDType
            ) -> [FloatTensor, IntTensor];
            float_argsort(
                tensor: FloatTensor, dim: usize, descending: bool, out_dtype: IntDType
            ) -> IntTensor;
            float_grid_sample_2d(
                tensor: FloatTensor, grid: FloatTensor, options: GridSampleOptions
            ) -> FloatTensor;
            float_unfold(tensor: FloatTensor, dim: usize, size: usize, step: usize) -> FloatTensor;
            float_is_nan(tensor: FloatTensor, out_dtype: BoolDType) -> BoolTensor;
            float_is_inf(tensor: FloatTensor, out_dtype: BoolDType) -> BoolTensor;
        }
    };
}

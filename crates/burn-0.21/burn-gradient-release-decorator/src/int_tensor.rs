/// The methods of `IntTensorOps`: the operations on int tensors.
///
/// Left out for their types: `int_into_data` and `int_device`.
/// [`same_tensors_int_rest!`](crate::same_tensors_int_rest) forwards them.
#[macro_export]
macro_rules! int_tensor_ops {
    ($forward:ident) => {
        $forward! {
            int_empty(shape: Shape, device: Device, dtype: IntDType) -> IntTensor;
            int_from_data(data: TensorData, device: Device) -> IntTensor;
            int_to_device(tensor: IntTensor, device: Device) -> IntTensor;
            int_reshape(tensor: IntTensor, shape: Shape) -> IntTensor;
            int_slice(tensor: IntTensor, slices: (&[Slice])) -> IntTensor;
            int_slice_assign(tensor: IntTensor, slices: (&[Slice]), value: IntTensor) -> IntTensor;
            int_into_float(tensor: IntTensor, out_dtype: FloatDType) -> FloatTensor;
            int_mask_where(tensor: IntTensor, mask: BoolTensor, value: IntTensor) -> IntTensor;
            int_mask_fill(tensor: IntTensor, mask: BoolTensor, value: Scalar) -> IntTensor;
            int_gather(dim: usize, tensor: IntTensor, indices: IntTensor) -> IntTensor;
            int_scatter_add(
                dim: usize, tensor: IntTensor, indices: IntTensor, value: IntTensor
            ) -> IntTensor;
            int_scatter_nd(
                data: IntTensor, indices: IntTensor, values: IntTensor, reduction: IndexingUpdateOp
            ) -> IntTensor;
            int_gather_nd(data: IntTensor, indices: IntTensor) -> IntTensor;
            int_select(tensor: IntTensor, dim: usize, indices: IntTensor) -> IntTensor;
            int_select_add(
                tensor: IntTensor, dim: usize, indices: IntTensor, value: IntTensor
            ) -> IntTensor;
            int_repeat_dim(tensor: IntTensor, dim: usize, times: usize) -> IntTensor;
            int_cat(tensors: [Vec IntTensor], dim: usize) -> IntTensor;
            int_equal(lhs: IntTensor, rhs: IntTensor, out_dtype: BoolDType) -> BoolTensor;
            int_not_equal(lhs: IntTensor, rhs: IntTensor, out_dtype: BoolDType) -> BoolTensor;
            int_equal_elem(lhs: IntTensor, rhs: Scalar, out_dtype: BoolDType) -> BoolTensor;
            int_not_equal_elem(lhs: IntTensor, rhs: Scalar, out_dtype: BoolDType) -> BoolTensor;
            int_greater(lhs: IntTensor, rhs: IntTensor, out_dtype: BoolDType) -> BoolTensor;
            int_greater_elem(lhs: IntTensor, rhs: Scalar, out_dtype: BoolDType) -> BoolTensor;
            int_greater_equal(lhs: IntTensor, rhs: IntTensor, out_dtype: BoolDType) -> BoolTensor;
            int_greater_equal_elem(lhs: IntTensor, rhs: Scalar, out_dtype: BoolDType) -> BoolTensor;
            int_lower(lhs: IntTensor, rhs: IntTensor, out_dtype: BoolDType) -> BoolTensor;
            int_lower_elem(lhs: IntTensor, rhs: Scalar, out_dtype: BoolDType) -> BoolTensor;
            int_lower_equal(lhs: IntTensor, rhs: IntTensor, out_dtype: BoolDType) -> BoolTensor;
            int_lower_equal_elem(lhs: IntTensor, rhs: Scalar, out_dtype: BoolDType) -> BoolTensor;
            int_add(lhs: IntTensor, rhs: IntTensor) -> IntTensor;
            int_add_scalar(lhs: IntTensor, rhs: Scalar) -> IntTensor;
            int_powi(lhs: IntTensor, rhs: IntTensor) -> IntTensor;
            int_powi_scalar(lhs: IntTensor, rhs: Scalar) -> IntTensor;
            int_powi_scalar_impl(lhs: IntTensor, rhs: Scalar) -> IntTensor;
            int_clamp_min(tensor: IntTensor, min: Scalar) -> IntTensor;
            int_clamp_max(tensor: IntTensor, max: Scalar) -> IntTensor;
            int_clamp(tensor: IntTensor, min: Scalar, max: Scalar) -> IntTensor;
            int_sub(lhs: IntTensor, rhs: IntTensor) -> IntTensor;
            int_sub_scalar(lhs: IntTensor, rhs: Scalar) -> IntTensor;
            int_mul(lhs: IntTensor, rhs: IntTensor) -> IntTensor;
            int_mul_scalar(lhs: IntTensor, rhs: Scalar) -> IntTensor;
            int_div(lhs: IntTensor, rhs: IntTensor) -> IntTensor;
            int_div_scalar(lhs: IntTensor, rhs: Scalar) -> IntTensor;
            int_remainder(lhs: IntTensor, rhs: IntTensor) -> IntTensor;
            int_remainder_scalar(lhs: IntTensor, rhs: Scalar) -> IntTensor;
            int_matmul(lhs: IntTensor, rhs: IntTensor) -> IntTensor;
            int_neg(tensor: IntTensor) -> IntTensor;
            int_zeros(shape: Shape, device: Device, dtype: IntDType) -> IntTensor;
            int_ones(shape: Shape, device: Device, dtype: IntDType) -> IntTensor;
            int_full(
                shape: Shape, fill_value: Scalar, device: Device, dtype: IntDType
            ) -> IntTensor;
            int_sum(tensor: IntTensor) -> IntTensor;
            int_sum_dim(tensor: IntTensor, dim: usize) -> IntTensor;
            int_prod(tensor: IntTensor) -> IntTensor;
            int_prod_dim(tensor: IntTensor, dim: usize) -> IntTensor;
            int_mean(tensor: IntTensor) -> IntTensor;
            int_mean_dim(tensor: IntTensor, dim: usize) -> IntTensor;
            int_cumsum(tensor: IntTensor, dim: usize) -> IntTensor;
            int_cumprod(tensor: IntTensor, dim: usize) -> IntTensor;
            int_cummin(tensor: IntTensor, dim: usize) -> IntTensor;
            int_cummax(tensor: IntTensor, dim: usize) -> IntTensor;
            int_argmax(tensor: IntTensor, dim: usize) -> IntTensor;
            int_argtopk(tensor: IntTensor, dim: usize, k: usize) -> IntTensor;
            int_topk(tensor: IntTensor, dim: usize, k: usize) -> IntTensor;
            int_argmin(tensor: IntTensor, dim: usize) -> IntTensor;
            int_max(tensor: IntTensor) -> IntTensor;
            int_max_dim(tensor: IntTensor, dim: usize) -> IntTensor;
            int_max_dim_with_indices(tensor: IntTensor, dim: usize) -> [IntTensor, IntTensor];
            int_max_abs(tensor: IntTensor) -> IntTensor;
            int_max_abs_dim(tensor: IntTensor, dim: usize) -> IntTensor;
            int_min(tensor: IntTensor) -> IntTensor;
            int_min_dim(tensor: IntTensor, dim: usize) -> IntTensor;
            int_min_dim_with_indices(tensor: IntTensor, dim: usize) -> [IntTensor, IntTensor];
            int_abs(tensor: IntTensor) -> IntTensor;
            int_transpose(tensor: IntTensor) -> IntTensor;
            int_swap_dims(tensor: IntTensor, dim1: usize, dim2: usize) -> IntTensor;
            int_permute(tensor: IntTensor, axes: (&[usize])) -> IntTensor;
            int_flip(tensor: IntTensor, axes: (&[usize])) -> IntTensor;
            int_random(
                shape: Shape, distribution: Distribution, device: Device, dtype: IntDType
            ) -> IntTensor;
            int_arange_step(
                range: (Range<i64>), step: usize, device: Device, dtype: IntDType
            ) -> IntTensor;
            int_arange(range: (Range<i64>), device: Device, dtype: IntDType) -> IntTensor;
            int_any(tensor: IntTensor, out_dtype: BoolDType) -> BoolTensor;
            int_any_dim(tensor: IntTensor, dim: usize, out_dtype: BoolDType) -> BoolTensor;
            int_all(tensor: IntTensor, out_dtype: BoolDType) -> BoolTensor;
            int_all_dim(tensor: IntTensor, dim: usize, out_dtype: BoolDType) -> BoolTensor;
            int_sign(tensor: IntTensor) -> IntTensor;
            int_expand(tensor: IntTensor, shape: Shape) -> IntTensor;
            int_sort(tensor: IntTensor, dim: usize, descending: bool) -> IntTensor;
            int_sort_with_indices(
                tensor: IntTensor, dim: usize, descending: bool
            ) -> [IntTensor, IntTensor];
            int_argsort(tensor: IntTensor, dim: usize, descending: bool) -> IntTensor;
            bitwise_and(lhs: IntTensor, rhs: IntTensor) -> IntTensor;
            bitwise_and_scalar(lhs: IntTensor, rhs: Scalar) -> IntTensor;
            bitwise_or(lhs: IntTensor, rhs: IntTensor) -> IntTensor;
            bitwise_or_scalar(lhs: IntTensor, rhs: Scalar) -> IntTensor;
            bitwise_xor(lhs: IntTensor, rhs: IntTensor) -> IntTensor;
            bitwise_xor_scalar(lhs: IntTensor, rhs: Scalar) -> IntTensor;
            bitwise_not(tensor: IntTensor) -> IntTensor;
            bitwise_left_shift(lhs: IntTensor, rhs: IntTensor) -> IntTensor;
            bitwise_left_shift_scalar(lhs: IntTensor, rhs: Scalar) -> IntTensor;
            bitwise_right_shift(lhs: IntTensor, rhs: IntTensor) -> IntTensor;
            bitwise_right_shift_scalar(lhs: IntTensor, rhs: Scalar) -> IntTensor;
            int_cast(tensor: IntTensor, dtype: IntDType) -> IntTensor;
            int_unfold(tensor: IntTensor, dim: usize, size: usize, step: usize) -> IntTensor;
        }
    };
}

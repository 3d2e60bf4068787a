/// The methods of `BoolTensorOps`: the operations on bool tensors.
///
/// Left out for their types: `bool_into_data`, `bool_device` and `bool_argwhere`.
/// [`same_tensors_bool_rest!`](crate::same_tensors_bool_rest) forwards them.
#[macro_export]
macro_rules! bool_tensor_ops {
    ($forward:ident) => {
        $forward! {
            bool_empty(shape: Shape, device: Device, dtype: BoolDType) -> BoolTensor;
            bool_zeros(shape: Shape, device: Device, dtype: BoolDType) -> BoolTensor;
            bool_ones(shape: Shape, device: Device, dtype: BoolDType) -> BoolTensor;
            bool_from_data(data: TensorData, device: Device) -> BoolTensor;
            bool_into_int(tensor: BoolTensor, out_dtype: IntDType) -> IntTensor;
            bool_into_float(tensor: BoolTensor, out_dtype: FloatDType) -> FloatTensor;
            bool_to_device(tensor: BoolTensor, device: Device) -> BoolTensor;
            bool_reshape(tensor: BoolTensor, shape: Shape) -> BoolTensor;
            bool_slice(tensor: BoolTensor, slices: (&[Slice])) -> BoolTensor;
            bool_slice_assign(
                tensor: BoolTensor, slices: (&[Slice]), value: BoolTensor
            ) -> BoolTensor;
            bool_mask_where(tensor: BoolTensor, mask: BoolTensor, value: BoolTensor) -> BoolTensor;
            bool_mask_fill(tensor: BoolTensor, mask: BoolTensor, value: Scalar) -> BoolTensor;
            bool_gather(dim: usize, tensor: BoolTensor, indices: IntTensor) -> BoolTensor;
            bool_scatter_or(
                dim: usize, tensor: BoolTensor, indices: IntTensor, value: BoolTensor
            ) -> BoolTensor;
            bool_select(tensor: BoolTensor, dim: usize, indices: IntTensor) -> BoolTensor;
            bool_select_or(
                tensor: BoolTensor, dim: usize, indices: IntTensor, value: BoolTensor
            ) -> BoolTensor;
            bool_repeat_dim(tensor: BoolTensor, dim: usize, times: usize) -> BoolTensor;
            bool_cat(tensors: [Vec BoolTensor], dim: usize) -> BoolTensor;
            bool_equal(lhs: BoolTensor, rhs: BoolTensor) -> BoolTensor;
            bool_not_equal(lhs: BoolTensor, rhs: BoolTensor) -> BoolTensor;
            bool_equal_elem(lhs: BoolTensor, rhs: Scalar) -> BoolTensor;
            bool_not_equal_elem(lhs: BoolTensor, rhs: Scalar) -> BoolTensor;
            bool_not(tensor: BoolTensor) -> BoolTensor;
            bool_and(lhs: BoolTensor, rhs: BoolTensor) -> BoolTensor;
            bool_or(lhs: BoolTensor, rhs: BoolTensor) -> BoolTensor;
            bool_xor(lhs: BoolTensor, rhs: BoolTensor) -> BoolTensor;
            bool_transpose(tensor: BoolTensor) -> BoolTensor;
            bool_swap_dims(tensor: BoolTensor, dim1: usize, dim2: usize) -> BoolTensor;
            bool_permute(tensor: BoolTensor, axes: (&[usize])) -> BoolTensor;
            bool_flip(tensor: BoolTensor, axes: (&[usize])) -> BoolTensor;
            bool_any(tensor: BoolTensor) -> BoolTensor;
            bool_any_dim(tensor: BoolTensor, dim: usize) -> BoolTensor;
            bool_all(tensor: BoolTensor) -> BoolTensor;
            bool_all_dim(tensor: BoolTensor, dim: usize) -> BoolTensor;
            bool_expand(tensor: BoolTensor, shape: Shape) -> BoolTensor;
            bool_unfold(tensor: BoolTensor, dim: usize, size: usize, step: usize) -> BoolTensor;
        }
    };
}

//! The tensors that the tape saves of an operation for its backward.

/// The tensors that burn-autodiff 0.21 saves of an operation without balanced checkpointing, in 32
/// bits on Flex. Indices and masks among the operands exist in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Saves {
    Nothing,
    Operands,
    /// An index in 32 bits for each element of its result: as many bytes as the result.
    Indices,
    /// The operands, and an index in 64 bits for each element of its result.
    OperandsAndIndices,
    /// Saves nothing; the result aliases the operand.
    View,
}

impl Saves {
    /// A custom operation is assumed to save its operands.
    pub(super) fn of(name: &str) -> Self {
        Self::known(name).unwrap_or(Self::Operands)
    }

    /// The tensors that the tape saves for one of Burn's differentiable operations.
    ///
    /// The estimate is not always exact: the tape does not save the bias of `linear`, nor an
    /// operand that only the gradient of an untracked one needs, and which operands are tracked is
    /// not known here. `float_scatter_nd` saves nothing if it adds or assigns. `attention` and
    /// `ctc_loss` are several nodes, which save more than this.
    pub(super) fn known(name: &str) -> Option<Self> {
        Some(match name {
            "float_add"
            | "float_add_scalar"
            | "float_cast"
            | "float_cat"
            | "float_ceil"
            | "float_cumsum"
            | "float_div_scalar"
            | "float_floor"
            | "float_gather"
            | "float_gather_nd"
            | "float_mask_fill"
            | "float_mask_where"
            | "float_mean"
            | "float_mean_dim"
            | "float_mul_scalar"
            | "float_neg"
            | "float_remainder_scalar"
            | "float_repeat_dim"
            | "float_round"
            | "float_scatter_add"
            | "float_select"
            | "float_select_add"
            | "float_sign"
            | "float_slice_assign"
            | "float_sub"
            | "float_sub_scalar"
            | "float_sum"
            | "float_sum_dim"
            | "float_trunc" => Self::Nothing,
            "float_detach" | "float_expand" | "float_flip" | "float_permute" | "float_reshape"
            | "float_slice" | "float_swap_dims" | "float_to_device" | "float_unfold" => Self::View,
            "float_max_dim"
            | "float_max_dim_with_indices"
            | "float_min_dim"
            | "float_min_dim_with_indices"
            | "float_sort"
            | "float_sort_with_indices" => Self::Indices,
            "max_pool1d" | "max_pool1d_with_indices" | "max_pool2d" | "max_pool2d_with_indices" => {
                Self::OperandsAndIndices
            }
            "float_abs"
            | "float_acos"
            | "float_acosh"
            | "float_asin"
            | "float_asinh"
            | "float_atan"
            | "float_atan2"
            | "float_atanh"
            | "float_cos"
            | "float_cosh"
            | "float_cross"
            | "float_cummax"
            | "float_cummin"
            | "float_cumprod"
            | "float_div"
            | "float_erf"
            | "float_exp"
            | "float_log"
            | "float_log1p"
            | "float_matmul"
            | "float_mul"
            | "float_powf"
            | "float_powf_scalar_impl"
            | "float_recip"
            | "float_remainder"
            | "float_scatter_nd"
            | "float_sin"
            | "float_sinh"
            | "float_sqrt"
            | "float_tan"
            | "float_tanh"
            | "gelu"
            | "log_sigmoid"
            | "relu"
            | "sigmoid"
            | "adaptive_avg_pool1d"
            | "adaptive_avg_pool2d"
            | "attention"
            | "avg_pool1d"
            | "avg_pool2d"
            | "conv1d"
            | "conv2d"
            | "conv3d"
            | "conv_transpose1d"
            | "conv_transpose2d"
            | "conv_transpose3d"
            | "ctc_loss"
            | "deform_conv2d"
            | "embedding"
            | "interpolate"
            | "linear" => Self::Operands,
            _ => return None,
        })
    }

    pub(super) fn saves_operands(self) -> bool {
        matches!(self, Self::Operands | Self::OperandsAndIndices)
    }

    /// The bytes of the indices that it saves, given the bytes of its result.
    pub(super) fn indices(self, result: u64) -> u64 {
        match self {
            Self::Nothing | Self::Operands | Self::View => 0,
            Self::Indices => result,
            Self::OperandsAndIndices => 2 * result,
        }
    }
}

//! Operations of neural network modules.

use burn::tensor::ops::{
    AttentionModuleOptions, BoolTensor, ConvOptions, ConvTransposeOptions, DeformConv2dBackward,
    DeformConvOptions, FloatTensor, IntTensor, InterpolateOptions, MaxPool1dBackward,
    MaxPool1dWithIndices, MaxPool2dBackward, MaxPool2dWithIndices, ModuleOps, UnfoldOptions,
};

use super::forward;
use crate::backend::{RecordableBackend, Recorded};

impl<B: RecordableBackend> ModuleOps<Self> for Recorded<B> {
    burn_gradient_release_decorator::module_ops!(forward);

    fn has_ctc_loss_backward() -> bool {
        B::has_ctc_loss_backward()
    }
}

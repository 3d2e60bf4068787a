//! Activation functions.

use burn::tensor::{
    Scalar,
    ops::{ActivationOps, FloatTensor},
};

use super::forward;
use crate::backend::{RecordableBackend, Recorded};

impl<B: RecordableBackend> ActivationOps<Self> for Recorded<B> {
    burn_gradient_release_decorator::activation_ops!(forward);
}

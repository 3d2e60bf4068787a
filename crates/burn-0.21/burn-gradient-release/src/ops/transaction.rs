//! Reading many tensors at once.

use burn::tensor::{
    backend::{Backend, ExecutionError},
    ops::{TransactionOps, TransactionPrimitive, TransactionPrimitiveData},
};
use burn_autodiff::{Autodiff, checkpoint::strategy::CheckpointStrategy};

use crate::{backend::GradientRelease, tensor::ReleaseTensor};

#[deny(clippy::missing_trait_methods)]
impl<B: Backend, C: CheckpointStrategy> TransactionOps<Self> for GradientRelease<Autodiff<B, C>> {
    async fn tr_execute(
        transaction: TransactionPrimitive<Self>,
    ) -> Result<TransactionPrimitiveData, ExecutionError> {
        let floats = transaction
            .read_floats
            .into_iter()
            .map(ReleaseTensor::into_autodiff);
        Autodiff::<B, C>::tr_execute(TransactionPrimitive::new(
            floats.collect(),
            transaction.read_qfloats,
            transaction.read_ints,
            transaction.read_bools,
        ))
        .await
    }
}

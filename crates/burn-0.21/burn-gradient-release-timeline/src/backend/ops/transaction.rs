//! Reading many tensors at once.

use burn::tensor::{
    backend::ExecutionError,
    ops::{TransactionOps, TransactionPrimitive, TransactionPrimitiveData},
};

use crate::{
    backend::{RecordableBackend, Recorded},
    recorder::RecordedTensor,
};

impl<B: RecordableBackend> TransactionOps<Self> for Recorded<B> {
    async fn tr_execute(
        transaction: TransactionPrimitive<Self>,
    ) -> Result<TransactionPrimitiveData, ExecutionError> {
        B::tr_execute(TransactionPrimitive::new(
            below(transaction.read_floats),
            transaction.read_qfloats,
            below(transaction.read_ints),
            below(transaction.read_bools),
        ))
        .await
    }
}

fn below<P>(tensors: Vec<RecordedTensor<P>>) -> Vec<P> {
    tensors.into_iter().map(|tensor| tensor.below).collect()
}

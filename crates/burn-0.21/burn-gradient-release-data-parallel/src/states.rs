//! The states of an optimizer, put together from those of all replicas.

use std::{collections::HashMap, mem};

use burn::{
    module::ParamId,
    record::{
        BinBytesRecorder, DoublePrecisionSettings, FullPrecisionSettings, Record, Recorder,
        RecorderError,
    },
    tensor::{DType, Element, backend::Backend},
};
use lean_replicas::{Exchange, ReplicaError};

/// Adds the states of the other replicas to those of the first. One parameter after the other,
/// through the memory of the host: the others need no room for more than one, and the first for no
/// more than it gets.
pub(crate) fn gather<B, R, S>(exchange: &Exchange, states: &mut R) -> Result<(), ReplicaError>
where
    B: Backend,
    R: Record<B> + Default + Extend<(ParamId, S)> + IntoIterator<Item = (ParamId, S)>,
{
    let replicas = exchange.replicas();
    let failed = |error: RecorderError| ReplicaError::States {
        reason: error.to_string(),
    };
    let mut own: HashMap<ParamId, S> = mem::take(states).into_iter().collect();
    for (param, path, owner) in exchange.owners() {
        // It has its own.
        if owner == 0 {
            continue;
        }
        let param = ParamId::from(param);
        let state = match owner == replicas.rank() {
            true => own.remove(&param),
            false => None,
        };
        let bytes = match state {
            Some(state) => {
                let mut record = R::default();
                record.extend([(param, state)]);
                to_bytes::<B, _>(record).map_err(failed)?
            }
            // A parameter that was never stepped has none.
            None => Vec::new(),
        };
        let what = format!("the optimizer's state of {path}");
        let bytes = exchange.from_rank(owner, &what, bytes)?;
        if replicas.is_first() && !bytes.is_empty() {
            let state: R = of_bytes::<B, _>(bytes).map_err(failed)?;
            own.extend(state);
        }
    }
    states.extend(own);
    Ok(())
}

/// Whether states have numbers that do not fit in 32 bits.
fn is_double<B: Backend>() -> bool {
    <B::FloatElem as Element>::dtype() == DType::F64
}

fn to_bytes<B: Backend, R: Record<B>>(record: R) -> Result<Vec<u8>, RecorderError> {
    match is_double::<B>() {
        true => BinBytesRecorder::<DoublePrecisionSettings>::new().record(record, ()),
        false => BinBytesRecorder::<FullPrecisionSettings>::new().record(record, ()),
    }
}

fn of_bytes<B: Backend, R: Record<B>>(bytes: Vec<u8>) -> Result<R, RecorderError> {
    let device = Default::default();
    match is_double::<B>() {
        true => BinBytesRecorder::<DoublePrecisionSettings>::new().load(bytes, &device),
        false => BinBytesRecorder::<FullPrecisionSettings>::new().load(bytes, &device),
    }
}

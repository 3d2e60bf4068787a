//! Loaded states and their parameters are of one shape.

use std::any::Any;

use burn::{
    module::AutodiffModule,
    optim::{
        AdamState, AdamWState, AdanState, RmsPropState, SimpleOptimizer,
        record::{AdaptorRecord, AdaptorRecordV1},
    },
    tensor::{
        TensorMetadata,
        backend::{AutodiffBackend, Backend},
    },
};
use lean_arithmetic::optim::{check_shape, tell_shape, told_shapes};

use super::{session::check_params, stepper::Stepper};
use crate::{ReleaseBackend, error::ReleaseError, groups::path_of};

/// Refuses a model with a parameter of another shape than its loaded state, which would panic in the
/// middle of backward.
pub(super) fn check_states<O, B, M>(stepper: &Stepper<O, B>, model: &M) -> Result<(), ReleaseError>
where
    O: SimpleOptimizer<B::InnerBackend> + 'static,
    B: ReleaseBackend,
    M: AutodiffModule<B>,
{
    if !stepper.has_loaded() {
        return Ok(());
    }
    check_params::<B, M>(model, |param, tensor| {
        let state = stepper.loaded(param)?;
        let shape = tensor.shape();
        let device = B::float_device(&B::from_release(tensor));
        let told = told_shapes(|| move_state::<O, B>(state, &device));
        let mut told = told.iter();
        let Some(reason) = told.find_map(|found| check_shape(found, &shape).err()) else {
            stepper.set_compared(param);
            return None;
        };
        let path = path_of::<B, M>(model, param);
        Some(ReleaseError::NotSteppable { path, reason })
    })
}

/// Moves a state to a device, as before a step, which makes it tell its shape.
fn move_state<O, B>(state: AdaptorRecord<O, B>, device: &B::Device)
where
    O: SimpleOptimizer<B::InnerBackend>,
    B: AutodiffBackend,
{
    let AdaptorRecord::V1(state) = state;
    macro_rules! by_rank {
        ($($variant:ident = $rank:literal),+ $(,)?) => {
            match state {
                $(AdaptorRecordV1::$variant(state) => {
                    tell_of_burn::<B::InnerBackend, $rank>(&state);
                    drop(O::to_device::<$rank>(state, device));
                })+
            }
        };
    }
    by_rank!(
        Rank0 = 0,
        Rank1 = 1,
        Rank2 = 2,
        Rank3 = 3,
        Rank4 = 4,
        Rank5 = 5,
        Rank6 = 6,
        Rank7 = 7,
        Rank8 = 8,
    );
}

/// Tells the shape of a state of Burn's. Those of SGD, Muon and AdaGrad are private.
fn tell_of_burn<B: Backend, const D: usize>(state: &dyn Any) {
    let tensor = if let Some(state) = state.downcast_ref::<AdamState<B, D>>() {
        &state.momentum.moment_1
    } else if let Some(state) = state.downcast_ref::<AdamWState<B, D>>() {
        &state.momentum.moment_1
    } else if let Some(state) = state.downcast_ref::<AdanState<B, D>>() {
        &state.momentum.exp_avg
    } else if let Some(state) = state.downcast_ref::<RmsPropState<B, D>>() {
        &state.square_avg.square_avg
    } else {
        return;
    };
    tell_shape(|| tensor.shape().to_vec());
}

//! What is not armed is reduced by Burn's own server.

use std::sync::{Barrier, Mutex, MutexGuard, PoisonError};

use burn::{
    backend::Autodiff,
    module::{Module, ModuleMapper, Param},
    optim::{AdamConfig, GradientsParams, Optimizer},
    tensor::{
        Tensor,
        backend::{
            AutodiffBackend,
            distributed::{
                DistributedBackend, DistributedConfig, DistributedParamId, ReduceOperation,
            },
        },
    },
};

use crate::{
    B, adam, all_on_threads,
    backend::{Place, Several, places},
    model::{Model, RATE, STEPS, one_process},
};

/// As `grad_sharded` of burn-train's `Learner` marks the parameters.
pub(crate) struct Mark;

impl<B: AutodiffBackend> ModuleMapper<B> for Mark {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        let (id, tensor, mapper) = param.consume();
        let tensor = tensor.set_distributed(DistributedParamId::from(id.val()));
        Param::from_mapped_value(id, tensor, mapper)
    }
}

/// Burn has one server for a backend: whoever runs a marked model backward has it to itself.
pub(crate) fn server() -> MutexGuard<'static, ()> {
    static SERVER: Mutex<()> = Mutex::new(());
    SERVER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The weights after each step of marked models on their devices.
fn train<A, O>(places: &[Place], optim: impl Fn() -> O + Sync) -> Vec<Vec<Vec<u32>>>
where
    A: DistributedBackend + AutodiffBackend<Device = Place>,
    O: Optimizer<Model<A>, A>,
    Model<A>: burn::module::AutodiffModule<A>,
{
    let _server = server();
    let config = DistributedConfig {
        all_reduce_op: ReduceOperation::Mean,
    };
    A::start_communication_server(places, config);
    // Burn's server forgets a device that begins its next pass before another one has asked to be
    // synchronized.
    let backward = Barrier::new(places.len());
    let found = all_on_threads(places.to_vec(), |rank, place| {
        let mut model = Model::<A>::new(&place).map(&mut Mark);
        let mut optim = optim();
        let steps = 0..STEPS;
        let steps = steps.map(|number| {
            let grads = model.loss(rank, number, false).backward();
            backward.wait();
            let grads = GradientsParams::from_grads(grads, &model);
            model = optim.step(RATE, model.clone(), grads);
            assert!(model.first.val().is_distributed());
            model.bits()
        });
        steps.collect()
    });
    A::close_communication_server(&places[0]);
    found
}

#[test]
fn marked_models_are_trained_as_without_gradient_release() {
    for count in [2, 3] {
        let expected = one_process(usize::from(count));
        let burns = train::<Autodiff<Several>, _>(&places(count), || AdamConfig::new().init());
        let released = train::<B, _>(&places(count), adam);
        let decorated = train::<B, _>(&places(count), || AdamConfig::new().init());
        for found in [burns, released, decorated].concat() {
            assert!(found == expected, "{count} replicas");
        }
    }
}

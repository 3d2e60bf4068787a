//! A `Learner` of Burn that a strategy can open: Burn keeps its optimizer and its scheduler
//! private.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use burn::lr_scheduler::LrSchedulerRecord;
use burn::lr_scheduler::module_lr_scheduler::ModuleLrScheduler;
use burn::module::{ParamGroup, ParamId};
use burn::optim::{
    DynOptimizer, DynState, LearningRate, ModuleOptimizer, OptimizerRecord, SgdConfig, StateSink,
    StateSource,
};
use burn::store::ModuleRecord;
use burn::tensor::kind::BridgeTensor;
use burn::tensor::{Device, Tensor};
use burn::train::checkpoint::{
    AsyncCheckpointer, Checkpoint, Checkpointer, CheckpointerError, CheckpointingAction,
    CheckpointingStrategy,
};
use burn::train::metric::store::EventStoreClient;
use burn::train::{Learner, LearnerModel, LearningCheckpointer};

use crate::optimizer::{IntoModuleOptimizer, step_one};
use crate::path::Path;

/// Creates the learner for a training with gradient release, and is otherwise `Learner::new`.
///
/// [`GradientReleaseStrategy`](crate::train::GradientReleaseStrategy) trains no other. For every
/// other strategy the learner is that of `Learner::new`: its optimizer has one more group, to which
/// no parameter belongs.
pub fn release_learner<M: LearnerModel>(
    model: M,
    optim: impl IntoModuleOptimizer,
    lr_scheduler: impl Into<ModuleLrScheduler>,
) -> Learner<M> {
    let (optim, scheduler) = (optim.into_module_optimizer(), lr_scheduler.into());
    let parts = Parts {
        // The states stay with the learner, into which others may be loaded.
        optim: optim.clone().load_record(OptimizerRecord::default()),
        scheduler: scheduler.clone(),
    };
    let optim = optim.with_group(
        ParamGroup::from_path(DOOR),
        Door(Some(Arc::new(parts))),
        None,
    );
    Learner::new(model, optim, scheduler)
}

/// A path that no parameter has.
const DOOR: &str = "burn_lean::train";

/// The parts of a learner that a strategy needs, beside its model.
#[derive(Clone)]
pub(super) struct Parts {
    pub(super) optim: ModuleOptimizer,
    pub(super) scheduler: ModuleLrScheduler,
}

impl Parts {
    /// Takes the parts out of a learner that trains no more. `None` if [`release_learner`] has not
    /// made it.
    pub(super) fn of<M: LearnerModel>(
        learner: &mut Learner<M>,
        store: &EventStoreClient,
        device: &Device,
    ) -> Option<Self> {
        let (optim, scheduler) = records(learner, store);
        learner.load_optim(knock(device));
        let parts = Self::clone(&*OPENED.take()?);
        Some(Self {
            optim: parts.optim.load_record(optim),
            scheduler: resumed(parts.scheduler, scheduler),
        })
    }
}

/// The state of the learner's scheduler. A scheduler that has not moved is not loaded: a scheduler
/// of the user's may have no records.
fn resumed(scheduler: ModuleLrScheduler, record: LrSchedulerRecord) -> ModuleLrScheduler {
    let bytes = |record: &LrSchedulerRecord| record.clone().into_bytes().ok();
    match bytes(&scheduler.to_record()) == bytes(&record) {
        true => scheduler,
        false => scheduler.load_record(record),
    }
}

thread_local! {
    /// The parts of the learner that is being opened.
    static OPENED: RefCell<Option<Arc<Parts>>> = const { RefCell::new(None) };
}

/// A group's optimizer in the optimizer of a learner. It receives only the states that are loaded.
struct Door(Option<Arc<Parts>>);

impl DynOptimizer for Door {
    fn step_dyn(
        &self,
        rank: usize,
        _: LearningRate,
        tensor: BridgeTensor,
        _: BridgeTensor,
        _: Option<DynState>,
    ) -> (BridgeTensor, Option<DynState>) {
        (tensor, Some(DynState::create((), rank)))
    }

    fn to_device_dyn(&self, state: DynState, _: &Device) -> DynState {
        state
    }

    fn state_flatten(&self, _: &str, _: &DynState, _: &mut StateSink) {}

    fn state_unflatten(
        &self,
        _: usize,
        _: &str,
        _: &mut StateSource,
        _: &Device,
    ) -> Option<DynState> {
        OPENED.set(self.0.clone());
        None
    }
}

/// The record of a state at the path of the door.
fn knock(device: &Device) -> OptimizerRecord {
    let optim = ModuleOptimizer::from(SgdConfig::new().build());
    let mut optim = optim.with_group(ParamGroup::all(), Door(None), None);
    let path: Path = vec![(DOOR.into(), String::new())];
    let tensor = Tensor::<1>::zeros([1], &device.clone().inner());
    step_one(
        &mut optim,
        0.0.into(),
        ParamId::new(),
        &path,
        tensor.clone(),
        tensor,
    );
    optim.to_record()
}

/// The records of a learner's optimizer and scheduler, which Burn gives only to a checkpointer.
fn records<M: LearnerModel>(
    learner: &Learner<M>,
    store: &EventStoreClient,
) -> (OptimizerRecord, LrSchedulerRecord) {
    let ((optim, optims), (scheduler, schedulers)) = (channel(), channel());
    let mut checkpointer = LearningCheckpointer::new(
        // The record of the model is not used.
        AsyncCheckpointer::new(Sent::<ModuleRecord>(channel().0)),
        AsyncCheckpointer::new(Sent(optim)),
        AsyncCheckpointer::new(Sent(scheduler)),
        Box::new(Once),
    );
    checkpointer.checkpoint(learner, 0, store);
    let saved = "the checkpointer has saved";
    (optims.recv().expect(saved), schedulers.recv().expect(saved))
}

struct Once;

impl CheckpointingStrategy for Once {
    fn checkpointing(&mut self, _: usize, _: &EventStoreClient) -> Vec<CheckpointingAction> {
        vec![CheckpointingAction::Save]
    }
}

/// Sends records instead of saving them.
struct Sent<R>(Sender<R>);

impl<R: Checkpoint> Checkpointer<R> for Sent<R> {
    fn save(&self, _: usize, record: R) -> Result<(), CheckpointerError> {
        // Without a receiver, the record is dropped.
        let _ = self.0.send(record);
        Ok(())
    }

    fn delete(&self, _: usize) -> Result<(), CheckpointerError> {
        Ok(())
    }

    fn restore(&self, _: usize) -> Result<R, CheckpointerError> {
        Err(CheckpointerError::Unknown("nothing is saved here".into()))
    }
}

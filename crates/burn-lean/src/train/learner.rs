//! A `Learner` of Burn that a strategy can open: Burn keeps its optimizer and its scheduler
//! private.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use burn::lr_scheduler::module_lr_scheduler::ModuleLrScheduler;
use burn::lr_scheduler::{LrScheduler, LrSchedulerRecord};
use burn::module::{ParamGroup, ParamId};
use burn::optim::{
    DynOptimizer, DynState, LearningRate, ModuleOptimizer, OptimizerRecord, SgdConfig, StateSink,
    StateSource,
};
use burn::store::ModuleRecord;
use burn::tensor::kind::BridgeTensor;
use burn::tensor::{Device, Tensor, TensorData};
use burn::train::checkpoint::{
    AsyncCheckpointer, Checkpoint, Checkpointer, CheckpointerError, CheckpointingAction,
    CheckpointingStrategy,
};
use burn::train::metric::store::EventStoreClient;
use burn::train::{Learner, LearnerModel, LearningCheckpointer};

use crate::error::expect;
use crate::gradients::PATH_IN_CHECKPOINT as DOOR;
use crate::optimizer::step_one;
use crate::path::Path;
use crate::{GradientRecord, ReleaseOptimizer};

/// Creates the learner for a training with gradient release, and is otherwise `Learner::new`.
///
/// `optim` is Burn's `ModuleOptimizer`, or a [`ReleaseOptimizer`] with all its settings. Checkpoints
/// have the state of its clipping rules and loss scaler, too, as a part of the optimizer's record.
///
/// [`GradientReleaseStrategy`](crate::train::GradientReleaseStrategy) trains no other. For every
/// other strategy the learner is that of `Learner::new`: its optimizer has one more group, to which
/// no parameter belongs. Settings that Burn's optimizer does not have are refused there.
///
/// # Example
///
/// ```
/// # use burn::train::{Learner, LearnerModel};
/// use burn::optim::AdamWConfig;
/// use burn_lean::train::release_learner;
/// use burn_lean::{AutoClipConfig, NormClipping, WithGradientRelease};
///
/// # fn learner<M: LearnerModel>(model: M) -> Learner<M> {
/// let optim = AdamWConfig::new()
///     .init()
///     .with_gradient_release()
///     .with_norm_clipping(NormClipping::AutoClip(AutoClipConfig::new()))
///     .with_grad_norm();
/// release_learner(model, optim, 1e-3)
/// # }
/// ```
///
/// # Panics
///
/// If the optimizer is in the middle of a step, or has a
/// [reduction](ReleaseOptimizer::with_reduction): the strategy takes replicas.
pub fn release_learner<M: LearnerModel>(
    model: M,
    optim: impl Into<ReleaseOptimizer>,
    lr_scheduler: impl Into<ModuleLrScheduler>,
) -> Learner<M> {
    let (release, scheduler) = (optim.into(), lr_scheduler.into());
    assert!(
        !release.has_reduction(),
        "gradient release: the Learner takes replicas from its strategy, as it saves and validates \
         once; leave out `with_reduction`, and use `GradientReleaseStrategy::with_replicas`"
    );
    let optim = expect(release.own_optimizer());
    // The states stay with the learner, into which others may be loaded.
    let stateless = optim.clone().load_record(OptimizerRecord::default());
    let learners_scheduler = match release.not_burns() {
        None => scheduler.clone(),
        Some(what) => scheduler
            .clone()
            .with_group(ParamGroup::from_path(DOOR), NotBurns(what)),
    };
    let parts = Parts {
        optim: release.with_optimizer(stateless),
        scheduler,
    };
    let optim = optim.with_group(ParamGroup::from_path(DOOR), Door::Of(Arc::new(parts)), None);
    Learner::new(model, optim, learners_scheduler)
}

/// Stops a strategy that would train without a setting of the optimizer: it steps the scheduler.
#[derive(Clone)]
struct NotBurns(&'static str);

impl LrScheduler for NotBurns {
    fn step(&mut self) -> LearningRate {
        panic!(
            "gradient release: this strategy would train without the {} of the optimizer; use \
             `GradientReleaseStrategy`",
            self.0
        )
    }

    fn to_record(&self) -> LrSchedulerRecord {
        LrSchedulerRecord::new()
    }

    fn load_record(&mut self, _: LrSchedulerRecord) {}
}

/// The parts of a learner that a strategy needs, beside its model.
pub(super) struct Parts {
    pub(super) optim: ReleaseOptimizer,
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
        // Of a learner that another strategy has trained on this thread.
        OPENED.take();
        learner.load_optim(knock(device));
        let parts = OPENED.take()?;
        let stateless = expect(parts.optim.own_optimizer());
        let stateless = stateless.with_group(ParamGroup::from_path(DOOR), Door::Load, None);
        let mut release = parts.optim.with_optimizer(stateless.load_record(optim));
        if let Some(record) = LOADED.take() {
            release = release.load_gradient_record(record);
        }
        Some(Self {
            optim: release,
            scheduler: resumed(parts.scheduler.clone(), scheduler),
        })
    }
}

/// The optimizer of a checkpoint. The state of clipping and loss scaling is that of a parameter that
/// no model has.
pub(super) fn to_save(
    optim: ModuleOptimizer,
    record: GradientRecord,
    device: &Device,
) -> ModuleOptimizer {
    match record == GradientRecord::default() {
        true => optim,
        false => with_state(optim, Door::Save(record), device),
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
    /// The state of clipping and loss scaling in the record that is being loaded.
    static LOADED: RefCell<Option<GradientRecord>> = const { RefCell::new(None) };
}

/// A group's optimizer in an optimizer of Burn's. Its only states are those that are loaded.
enum Door {
    /// In the optimizer of a learner.
    Of(Arc<Parts>),
    /// Sends parts or a state.
    Knock,
    /// Takes a state out of a record.
    Load,
    /// Puts a state into a record.
    Save(GradientRecord),
}

/// The name of the state in a record, as JSON.
const GRADIENTS: &str = "gradients";

impl DynOptimizer for Door {
    fn step_dyn(
        &self,
        rank: usize,
        _: LearningRate,
        tensor: BridgeTensor,
        _: BridgeTensor,
        _: Option<DynState>,
    ) -> (BridgeTensor, Option<DynState>) {
        let record = match self {
            Self::Save(record) => Some(record.clone()),
            _ => None,
        };
        (tensor, Some(DynState::create(record, rank)))
    }

    fn to_device_dyn(&self, state: DynState, _: &Device) -> DynState {
        state
    }

    fn state_flatten(&self, prefix: &str, state: &DynState, out: &mut StateSink) {
        if let Some(record) = state.downcast_ref::<Option<GradientRecord>>() {
            let bytes = serde_json::to_vec(record).expect("the record has no maps of other keys");
            out.push_tensor(prefix, GRADIENTS, TensorData::from(&bytes[..]));
        }
    }

    fn state_unflatten(
        &self,
        rank: usize,
        prefix: &str,
        source: &mut StateSource,
        _: &Device,
    ) -> Option<DynState> {
        let record = source.take_tensor(prefix, GRADIENTS).map(|data| {
            serde_json::from_slice(data.as_bytes()).unwrap_or_else(|error| {
                panic!("gradient release: no state of clipping or loss scaling: {error}")
            })
        });
        match self {
            Self::Of(parts) => {
                OPENED.set(Some(parts.clone()));
                Some(DynState::create::<Option<GradientRecord>>(record, rank))
            }
            _ => {
                LOADED.set(record);
                None
            }
        }
    }
}

/// The record of a state at the path of the door.
fn knock(device: &Device) -> OptimizerRecord {
    let optim = ModuleOptimizer::from(SgdConfig::new().build());
    with_state(optim, Door::Knock, device).to_record()
}

/// An optimizer with a state at the path of the door.
fn with_state(optim: ModuleOptimizer, door: Door, device: &Device) -> ModuleOptimizer {
    let mut optim = optim.with_group(ParamGroup::from_path(DOOR), door, None);
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
    optim
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

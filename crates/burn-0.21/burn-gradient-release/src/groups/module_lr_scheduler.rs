//! A learning rate for each group of parameters.

use std::{
    fmt::{self, Debug, Formatter},
    sync::{Arc, Mutex, Weak},
};

use burn::{
    lr_scheduler::LrScheduler,
    module::ParamId,
    optim::LearningRate,
    record::{PrecisionSettings, Record},
    tensor::backend::Backend,
};
use serde::{Deserialize, Serialize};

use super::{any_scheduler::AnyScheduler, param_group::ParamGroup};
use crate::util::lock::lock;

/// A scheduler for each group of parameters, and one for all others.
///
/// The name is that of Burn 0.22. It is an [`LrScheduler`] of Burn 0.21: its rate is that of the
/// base scheduler, and burn-train's `Learner` steps, saves and loads it. Burn's trait returns one
/// rate, so with every step the rates of the groups are published to [`rates`](Self::rates).
///
/// If a parameter is in several groups, the one that was added last decides.
///
/// # Clones
///
/// A clone has the state of the original, and a handle of its own: stepping it does not change what
/// an optimizer reads from the original's. There is one exception, because burn-train loads a
/// checkpoint into a clone and replaces the original by it: a clone that has [loaded a
/// record](LrScheduler::load_record) publishes to the original's handle, too, once the original is
/// gone. Where several clones are trained with, give each optimizer the handle of its own.
///
/// # Example
///
/// ```
/// use burn::{
///     lr_scheduler::{LrScheduler, linear::LinearLrSchedulerConfig},
///     module::ParamId,
/// };
/// use burn_gradient_release::{ModuleLrScheduler, ParamGroup};
///
/// # fn main() -> Result<(), String> {
/// let decay = LinearLrSchedulerConfig::new(1e-2, 1e-3, 9).init()?;
/// let head = ParamGroup::from_predicate("head.");
/// let mut scheduler = ModuleLrScheduler::new(1e-4).with_group(head, decay);
///
/// let rates = scheduler.rates();
/// assert_eq!(rates.base(), None);
/// for expected in [1e-2, 9e-3, 8e-3] {
///     assert_eq!(scheduler.step(), 1e-4);
///     let head = rates.lr_from_param(ParamId::new(), Some("head.weight")).unwrap();
///     assert!((head - expected).abs() < 1e-12);
///     assert_eq!(rates.lr_from_param(ParamId::new(), Some("body.weight")), Some(1e-4));
/// }
/// # Ok(())
/// # }
/// ```
pub struct ModuleLrScheduler {
    base: Box<dyn AnyScheduler>,
    groups: Vec<(ParamGroup, Box<dyn AnyScheduler>)>,
    rates: ModuleLearningRates,
    /// Held by this scheduler alone: tells its clones whether it still exists.
    alive: Arc<()>,
    /// The scheduler that this was cloned from.
    original: Option<Original>,
    /// Whether this is to replace the original.
    is_loaded: bool,
}

/// The scheduler that a clone replaces if it loads a record: burn-train resumes with
/// `self.lr_scheduler.clone().load_record(record)`, while the optimizer holds the original's
/// handle.
struct Original {
    /// All that it published to.
    handles: Vec<ModuleLearningRates>,
    alive: Weak<()>,
}

impl ModuleLrScheduler {
    /// A scheduler for all parameters that are in no group.
    pub fn new(base: impl LrScheduler + 'static) -> Self {
        Self {
            base: Box::new(base),
            groups: Vec::new(),
            rates: ModuleLearningRates::default(),
            alive: Arc::new(()),
            original: None,
            is_loaded: false,
        }
    }

    /// Adds a scheduler for the parameters of a group.
    pub fn with_group(mut self, group: ParamGroup, scheduler: impl LrScheduler + 'static) -> Self {
        self.groups.push((group, Box::new(scheduler)));
        self
    }

    /// The handle that the rates are published to, for an optimizer that reads them while a
    /// `Learner` owns the scheduler.
    pub fn rates(&self) -> ModuleLearningRates {
        self.rates.clone()
    }

    pub(crate) fn has_groups(&self) -> bool {
        !self.groups.is_empty()
    }

    /// All handles that the rates are published to: also those of the original, if this has replaced
    /// it.
    fn handles(&self) -> impl Iterator<Item = &ModuleLearningRates> {
        let is_gone = |original: &&Original| original.alive.strong_count() == 0;
        let original = self.original.as_ref().filter(is_gone);
        let inherited = original.filter(|_| self.is_loaded);
        let inherited = inherited.into_iter().flat_map(|original| &original.handles);
        inherited.chain([&self.rates])
    }
}

impl LrScheduler for ModuleLrScheduler {
    type Record<B: Backend> = ModuleLrSchedulerRecord;

    /// Steps every scheduler, publishes the rates, and returns the rate of the base.
    fn step(&mut self) -> LearningRate {
        let base = self.base.next();
        let groups = self.groups.iter_mut();
        let groups = groups.map(|(group, scheduler)| (group.clone(), scheduler.next()));
        let published = Published {
            base,
            groups: groups.collect(),
        };
        self.handles()
            .for_each(|handle| handle.publish(published.clone()));
        base
    }

    fn to_record<B: Backend>(&self) -> Self::Record<B> {
        let groups = self.groups.iter();
        ModuleLrSchedulerRecord {
            base: self.base.save(),
            groups: groups.map(|(_, scheduler)| scheduler.save()).collect(),
        }
    }

    /// Loads the states of all schedulers. The rates stay published where they were: see
    /// [`ModuleLrScheduler`].
    ///
    /// # Panics
    ///
    /// If the record has another number of groups, or belongs to schedulers of another kind: Burn's
    /// trait cannot return an error.
    fn load_record<B: Backend>(mut self, record: Self::Record<B>) -> Self {
        assert_eq!(
            record.groups.len(),
            self.groups.len(),
            "gradient release: the record of the `ModuleLrScheduler` has {} groups, and the \
             scheduler has {}; before it is loaded, add the groups it was saved with, in the same \
             order (`with_group`)",
            record.groups.len(),
            self.groups.len(),
        );
        load(self.base.as_mut(), record.base, &"all other parameters");
        for ((group, scheduler), record) in self.groups.iter_mut().zip(record.groups) {
            load(scheduler.as_mut(), record, group);
        }
        self.is_loaded = true;
        self
    }
}

fn load(scheduler: &mut dyn AnyScheduler, record: Vec<u8>, of: &dyn fmt::Display) {
    scheduler.load(record).unwrap_or_else(|error| {
        panic!(
            "gradient release: the record of the `ModuleLrScheduler` does not fit the scheduler for \
             {of} ({error}); use the kind of scheduler it was saved with"
        )
    });
}

impl Clone for ModuleLrScheduler {
    fn clone(&self) -> Self {
        let groups = self.groups.iter();
        Self {
            base: self.base.boxed_clone(),
            groups: groups
                .map(|(group, scheduler)| (group.clone(), scheduler.boxed_clone()))
                .collect(),
            rates: self.rates.fork(),
            alive: Arc::new(()),
            original: Some(Original {
                handles: self.handles().cloned().collect(),
                alive: Arc::downgrade(&self.alive),
            }),
            is_loaded: false,
        }
    }
}

/// Withdraws the rates, so that an optimizer that still reads them notices.
impl Drop for ModuleLrScheduler {
    fn drop(&mut self) {
        self.handles().for_each(ModuleLearningRates::withdraw);
    }
}

impl Debug for ModuleLrScheduler {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let groups = self.groups.iter().map(|(group, _)| group);
        f.debug_struct("ModuleLrScheduler")
            .field("groups", &Vec::from_iter(groups))
            .field("rates", &self.rates)
            .finish_non_exhaustive()
    }
}

/// The learning rates of the last step of a [`ModuleLrScheduler`], as it publishes them.
///
/// Clones read the same rates.
#[derive(Clone, Debug, Default)]
pub struct ModuleLearningRates(Arc<Mutex<Option<Published>>>);

/// The rates of one step.
#[derive(Clone, Debug)]
pub(crate) struct Published {
    pub(crate) base: LearningRate,
    pub(crate) groups: Vec<(ParamGroup, LearningRate)>,
}

impl ModuleLearningRates {
    /// The rate of the parameters that are in no group. `None` before the first step, and once the
    /// scheduler was dropped.
    pub fn base(&self) -> Option<LearningRate> {
        self.published().map(|published| published.base)
    }

    /// The rate of a parameter. `None` before the first step.
    pub fn lr_from_param(&self, id: ParamId, path: Option<&str>) -> Option<LearningRate> {
        let published = self.published()?;
        Some(published.rate_of(id, path))
    }

    pub(crate) fn published(&self) -> Option<Published> {
        lock(&self.0).clone()
    }

    fn publish(&self, rates: Published) {
        *lock(&self.0) = Some(rates);
    }

    fn withdraw(&self) {
        *lock(&self.0) = None;
    }

    /// A handle of its own with the same rates.
    fn fork(&self) -> Self {
        Self(Arc::new(Mutex::new(self.published())))
    }
}

impl Published {
    /// The rate of the last group that contains the parameter.
    pub(crate) fn rate_of(&self, id: ParamId, path: Option<&str>) -> LearningRate {
        let mut groups = self.groups.iter().rev();
        let group = groups.find(|(group, _)| group.matches(&id, path));
        group.map_or(self.base, |(_, rate)| *rate)
    }
}

/// The states of the schedulers of a [`ModuleLrScheduler`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModuleLrSchedulerRecord {
    base: Vec<u8>,
    groups: Vec<Vec<u8>>,
}

impl<B: Backend> Record<B> for ModuleLrSchedulerRecord {
    type Item<S: PrecisionSettings> = Self;

    fn into_item<S: PrecisionSettings>(self) -> Self::Item<S> {
        self
    }

    fn from_item<S: PrecisionSettings>(item: Self::Item<S>, _device: &B::Device) -> Self {
        item
    }
}

//! The processes that train replicas, or this one alone.

#[cfg(feature = "data-parallel")]
use std::sync::Arc;

use burn::module::Module;
use burn::optim::ModuleOptimizer;
use burn::train::Interrupter;
#[cfg(feature = "data-parallel")]
use lean_replicas::ReplicaError;

use crate::ReleaseOptimizer;
use crate::error::expect;
#[cfg(feature = "data-parallel")]
use crate::{DataParallel, GradientReduction};

/// The reason of a replica's interrupter begins so once another replica was interrupted. A colon
/// and the reason there follow.
#[cfg(feature = "data-parallel")]
pub const INTERRUPTED_ELSEWHERE: &str = "Another replica was interrupted";

/// The processes of a training. Each replica makes the same calls. Where they do not agree, training
/// panics, which ends all of them.
#[derive(Clone, Debug, Default)]
pub(super) struct Processes {
    #[cfg(feature = "data-parallel")]
    pub(super) parallel: Option<DataParallel>,
}

impl Processes {
    /// Whether this process does what is done once.
    pub(super) fn is_first(&self) -> bool {
        #[cfg(feature = "data-parallel")]
        if let Some(parallel) = &self.parallel {
            return parallel.replicas().is_first();
        }
        true
    }

    /// Compares what the processes are set to.
    pub(super) fn same_settings<const N: usize>(&self, settings: [(&str, usize); N]) {
        #[cfg(feature = "data-parallel")]
        if let Some(parallel) = &self.parallel {
            replicated(parallel.replicas().same_settings(settings));
        }
        let _ = settings;
    }

    /// Compares the models, and makes the optimizer step with the mean gradients of all replicas.
    pub(super) fn with_reduction<M: Module>(
        &self,
        optim: ReleaseOptimizer,
        model: &M,
    ) -> ReleaseOptimizer {
        #[cfg(feature = "data-parallel")]
        if let Some(parallel) = &self.parallel {
            replicated(parallel.verify(model));
            return optim.with_reduction(Arc::new(parallel.clone()));
        }
        let _ = model;
        optim
    }

    /// The model with the running statistics of the first replica: each has updated its own. Weights
    /// that differ are not those of the mean gradients.
    pub(super) fn shared<M: Module>(&self, model: M) -> M {
        #[cfg(feature = "data-parallel")]
        if let Some(parallel) = &self.parallel {
            return replicated(parallel.share_running_states(model));
        }
        model
    }

    /// Burn's optimizer with the states of all replicas, to be saved by the first one.
    pub(super) fn whole_optimizer(&self, optim: &ReleaseOptimizer) -> Option<ModuleOptimizer> {
        #[cfg(feature = "data-parallel")]
        if let Some(parallel) = self.parallel.as_ref().filter(|all| all.is_sharded()) {
            return replicated(parallel.gather_optimizer(optim));
        }
        self.is_first().then(|| expect(optim.own_optimizer()))
    }

    /// Whether this process was interrupted, or another.
    pub(super) fn should_stop(&self, at: impl Fn() -> String, interrupter: &Interrupter) -> bool {
        #[cfg(feature = "data-parallel")]
        if let Some(parallel) = &self.parallel {
            let own = interrupter.should_stop().then(|| {
                let error = interrupter.error().map(|error| error.to_string());
                let reason = error.or_else(|| interrupter.get_message());
                reason.unwrap_or_else(|| "reason unknown".into())
            });
            let reason = replicated(parallel.replicas().anybody_says(&at(), own));
            if let Some(reason) = &reason
                && !interrupter.should_stop()
            {
                interrupter.stop(Some(&format!("{INTERRUPTED_ELSEWHERE}: {reason}")));
            }
            return reason.is_some();
        }
        let _ = at;
        interrupter.should_stop()
    }

    /// The decision of the first process.
    pub(super) fn first_says(&self, what: impl Fn() -> String, flag: bool) -> bool {
        #[cfg(feature = "data-parallel")]
        if let Some(parallel) = &self.parallel {
            return replicated(parallel.replicas().first_says(&what(), flag));
        }
        let _ = what;
        flag
    }
}

/// Burn's traits leave no way but a panic.
#[cfg(feature = "data-parallel")]
fn replicated<T>(result: Result<T, ReplicaError>) -> T {
    result.unwrap_or_else(|error| panic!("gradient release: {error}"))
}

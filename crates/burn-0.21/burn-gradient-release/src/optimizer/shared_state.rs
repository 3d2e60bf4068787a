//! State of an optimizer from step to step, which its [handles](super::handle) share.

use std::sync::{Arc, Mutex, MutexGuard};

use burn::{module::ParamId, optim::LearningRate, tensor::backend::Backend};

use super::{gradients::GradNorm, report::StepReport, session::Session};
use crate::{error::ReleaseError, util::lock::lock};

/// The state, behind a lock that is never held while user code runs: that of the model, of the
/// optimizer, or of an owner of both.
pub(super) struct SharedState<B: Backend>(Arc<Mutex<State<B>>>);

#[derive(Default)]
struct State<B: Backend> {
    session: Option<Session<B>>,
    /// Result of a first backward pass, until the step is finished.
    measured: Option<GradNorm>,
    report: Option<StepReport>,
    /// Error that makes the states worthless until a record is loaded.
    fault: Option<ReleaseError>,
}

impl<B: Backend> SharedState<B> {
    pub(super) fn new() -> Self {
        Self(Arc::default())
    }

    fn state(&self) -> MutexGuard<'_, State<B>> {
        // Ignores poisoning: `fault` records the panic.
        lock(&self.0)
    }

    /// A second handle to the same state.
    pub(super) fn share(&self) -> Self {
        Self(self.0.clone())
    }

    /// A state of its own for a copy of the optimizer, which is not armed.
    pub(super) fn fork(&self) -> Self {
        let state = self.state();
        Self(Arc::new(Mutex::new(State {
            report: state.report.clone(),
            fault: state.check_idle().err(),
            ..State::default()
        })))
    }

    pub(super) fn check_idle(&self) -> Result<(), ReleaseError> {
        self.state().check_idle()
    }

    /// Refuses while a backward waits for its `step`, or has stopped: the gradients that it dropped
    /// had taken their sums with them.
    pub(super) fn check_arm(
        &self,
        path_of: impl FnOnce(ParamId) -> String,
    ) -> Result<(), ReleaseError> {
        let state = self.state();
        state.check_idle()?;
        state.check_stopped(path_of)
    }

    /// Refuses after a backward that has stopped.
    pub(super) fn check_stopped(
        &self,
        path_of: impl FnOnce(ParamId) -> String,
    ) -> Result<(), ReleaseError> {
        self.state().check_stopped(path_of)
    }

    pub(super) fn check_fault(&self) -> Result<(), ReleaseError> {
        self.state().check_fault()
    }

    /// The rate that a model is armed with.
    pub(super) fn armed(&self) -> Option<LearningRate> {
        let state = self.state();
        let session = state.session.as_ref();
        let session = session.filter(|session| !session.is_measuring());
        session.and_then(|session| Some(session.plan()?.learning_rate))
    }

    /// Result of a first backward pass for the next step.
    pub(super) fn measured(&self) -> Option<GradNorm> {
        self.state().measured
    }

    pub(super) fn set_measured(&self, measured: Option<GradNorm>) {
        self.state().measured = measured;
    }

    pub(super) fn report(&self) -> Option<StepReport> {
        self.state().report.clone()
    }

    /// Calls `look` with the session, under the lock: the only user code that it may run is the
    /// visit of a model's fields.
    pub(super) fn with_session<R>(&self, look: impl FnOnce(Option<&Session<B>>) -> R) -> R {
        look(self.state().session.as_ref())
    }

    pub(super) fn take_session(&self) -> Option<Session<B>> {
        self.state().session.take()
    }

    pub(super) fn arm(&self, session: Session<B>) {
        self.state().session = Some(session);
    }

    /// Begins to finish the step: should the optimizer panic before [`finish`](Self::finish), the
    /// model is gone and the states are mixed.
    pub(super) fn begin_finish(&self) -> Option<Session<B>> {
        let mut state = self.state();
        let session = state.session.take();
        state.fault = Some(ReleaseError::Interrupted {
            stepped: session.as_ref().map_or(0, Session::acted),
            armed: session.as_ref().map_or(0, Session::armed),
        });
        session
    }

    pub(super) fn finish(&self, report: StepReport) {
        let mut state = self.state();
        state.fault = None;
        state.measured = None;
        state.report = Some(report);
    }
}

impl<B: Backend> State<B> {
    /// Refuses while a backward waits for its `step`.
    fn check_idle(&self) -> Result<(), ReleaseError> {
        self.check_fault()?;
        match &self.session {
            Some(session) if session.acted() > 0 => Err(ReleaseError::Unfinished {
                stepped: session.acted(),
                armed: session.armed(),
            }),
            _ => Ok(()),
        }
    }

    fn check_fault(&self) -> Result<(), ReleaseError> {
        if let Some(fault) = &self.fault {
            return Err(fault.clone());
        }
        match &self.session {
            Some(session) if session.is_interrupted() => Err(ReleaseError::Interrupted {
                stepped: session.acted(),
                armed: session.armed(),
            }),
            // A model of which only a part was stepped, and the rest will not be.
            Some(session) if session.acted() > 0 => self.check_stopped(|param| param.to_string()),
            _ => Ok(()),
        }
    }

    fn check_stopped(&self, path_of: impl FnOnce(ParamId) -> String) -> Result<(), ReleaseError> {
        let session = self.session.as_ref();
        let stopped = session.and_then(|session| session.stopped(path_of));
        stopped.map_or(Ok(()), Err)
    }
}

//! The backward pass under way on this thread.

use std::{any::Any, cell::RefCell, sync::Arc, thread};

use burn::tensor::backend::Backend;
use burn_autodiff::grads::Gradients;

use crate::slot::{Progress, Slot, When};

thread_local! {
    static PASSES: RefCell<Vec<Pass>> = const { RefCell::new(Vec::new()) };
}

#[derive(Default)]
struct Pass {
    /// Slots of the backend that runs the pass; the type of a thread local cannot name it.
    deferred: Vec<Arc<dyn Any + Send + Sync>>,
    touched: Vec<Arc<Progress>>,
}

/// Ends the pass when dropped; by a panic, it tells the optimizers that were at work.
pub(crate) struct PassGuard(());

/// Begins a backward pass.
pub(crate) fn begin() -> PassGuard {
    PASSES.with_borrow_mut(|passes| passes.push(Pass::default()));
    PassGuard(())
}

/// Leaves a slot to the end of the pass. Outside a pass there is nothing it could be stepped with.
pub(crate) fn defer<B: Backend>(slot: Arc<Slot<B>>) {
    with_current(|pass| pass.deferred.push(slot));
}

/// Notes that slots have changed a weight or a sum during this pass.
pub(crate) fn touch(progress: &Arc<Progress>) {
    with_current(|pass| {
        if !pass
            .touched
            .iter()
            .any(|touched| Arc::ptr_eq(touched, progress))
        {
            pass.touched.push(progress.clone());
        }
    });
}

fn with_current(note: impl FnOnce(&mut Pass)) {
    // A graph may be dropped while its thread ends: then there is no pass either.
    let _ = PASSES.try_with(|passes| {
        if let Some(pass) = passes.borrow_mut().last_mut() {
            note(pass);
        }
    });
}

impl PassGuard {
    /// Acts on what was not complete before the whole tape had run.
    pub(crate) fn release_deferred<B: Backend>(&self, grads: &mut Gradients) {
        let mut deferred = Vec::new();
        with_current(|pass| deferred.append(&mut pass.deferred));
        for slot in deferred {
            let slot = slot
                .downcast::<Slot<B>>()
                .expect("a pass runs on one backend");
            slot.act(grads, When::Late);
        }
    }
}

impl Drop for PassGuard {
    fn drop(&mut self) {
        let pass = PASSES.with_borrow_mut(Vec::pop);
        if let (true, Some(pass)) = (thread::panicking(), pass) {
            pass.touched
                .iter()
                .for_each(|progress| progress.interrupt());
        }
    }
}

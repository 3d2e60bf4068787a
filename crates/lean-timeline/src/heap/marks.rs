//! What a training says of its work. Without a recording each only calls the work.

use super::session::Session;
use super::tracker::{set_work, with_tracked, work};
use crate::ledger::Ledger;
use crate::snapshot::{Parameter, PhaseKind};

/// Makes a forward pass: from the batch to the loss, with which a training step begins.
///
/// `found` are the [parameters] of the model.
pub fn forward<T>(
    backend: &'static str,
    found: impl Fn() -> Vec<(Parameter, usize)>,
    pass: impl FnOnce() -> T,
) -> T {
    if !is_recording() {
        return pass();
    }
    parameters(&found());
    mark(|session| session.count_forward(backend));
    let result = within("forward", pass, || mark_ledger(Ledger::end_pass));
    // A lazy parameter has no memory before its first use.
    parameters(&found());
    result
}

/// Says where the parameters of the model are now, each with the address of its memory.
pub fn parameters(found: &[(Parameter, usize)]) {
    mark_ledger(|ledger| {
        for (index, (parameter, address)) in found.iter().enumerate() {
            // Cloned: what is taken outside has to be released outside.
            if let Some(block) = ledger.at(*address) {
                ledger.set_parameter(index, parameter.clone(), block);
            }
        }
    });
}

/// Makes a backward pass: from the loss to the gradients.
pub fn backward<T>(pass: impl FnOnce() -> T) -> T {
    if !is_recording() {
        return pass();
    }
    mark(|session| {
        session.set_read(None);
        session.ledger.begin_pass(PhaseKind::Backward);
    });
    within("backward", pass, || mark_ledger(Ledger::end_pass))
}

/// Makes the optimizer's step of one parameter, in the optimizer or inside the backward pass.
///
/// `weight` and `gradient` are the addresses of their memory, and `stepped` says that of the new
/// weight. What the step leaves in use besides the weight is the optimizer's state.
pub fn step<T>(
    weight: Option<usize>,
    gradient: Option<usize>,
    run: impl FnOnce() -> T,
    stepped: impl FnOnce(&T) -> Option<usize>,
) -> T {
    let (Some(weight), Some(gradient)) = (weight, gradient) else {
        return run();
    };
    let mut is_known = false;
    mark_ledger(|ledger| {
        if let (Some(weight), Some(gradient)) = (ledger.at(weight), ledger.at(gradient)) {
            ledger.begin_step(weight, gradient);
            is_known = true;
        }
    });
    if !is_known {
        return run();
    }
    let mut new = None;
    let run = || {
        let result = run();
        new = stepped(&result);
        result
    };
    let result = within("step", run, || {});
    mark_ledger(|ledger| match new.and_then(|new| ledger.at(new)) {
        Some(weight) => ledger.end_step(weight),
        None => ledger.abandon_step(),
    });
    result
}

/// Notes that the pass of this thread reads the parameter at an address. What the forward pass takes
/// from here on is for that parameter.
pub fn read(address: impl FnOnce() -> Option<usize>) {
    if matches!(work(), None | Some("backward" | "step")) {
        return;
    }
    set_read(address());
}

/// Names the work within a pass, as the operation of the memory that it takes.
pub fn operation<T>(name: &'static str, run: impl FnOnce() -> T) -> T {
    match work() {
        None => run(),
        Some(_) => within(name, run, || {}),
    }
}

/// Recomputes a part of the forward pass, within a backward pass.
pub fn recompute<T>(run: impl FnOnce() -> T) -> T {
    if work().is_none() {
        return run();
    }
    // What comes after it is backward again, which reads no parameter.
    within("recompute", run, || set_read(None))
}

/// Whether a recording is under way, and its last step is not over.
pub fn is_recording() -> bool {
    with_tracked(|tracked| tracked.session.as_ref().is_some_and(Session::is_open))
}

/// Not an event: nothing is sampled.
fn set_read(address: Option<usize>) {
    with_tracked(|tracked| {
        if let Some(session) = &mut tracked.session {
            session.set_read(address);
        }
    });
}

fn mark(event: impl FnOnce(&mut Session)) {
    with_tracked(|tracked| tracked.record(event));
}

fn mark_ledger(event: impl FnOnce(&mut Ledger)) {
    mark(|session| event(&mut session.ledger));
}

/// Runs with a name of the work of this thread, and `end` after it, also after a panic.
fn within<T>(name: &'static str, run: impl FnOnce() -> T, end: impl FnOnce()) -> T {
    struct End<F: FnOnce()>(Option<&'static str>, Option<F>);
    impl<F: FnOnce()> Drop for End<F> {
        fn drop(&mut self) {
            set_work(self.0);
            if let Some(end) = self.1.take() {
                end();
            }
        }
    }
    let _end = End(set_work(Some(name)), Some(end));
    run()
}

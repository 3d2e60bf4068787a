//! What an optimizer says of a parameter before it steps it.
//!
//! Burn's trait has no such question: what an optimizer does not take panics in the middle of the
//! backward pass, or the backend reads the one type as the other. So it is asked by a step whose result
//! is dropped.

use std::cell::RefCell;
#[cfg(feature = "optim")]
use std::collections::BTreeMap;

#[cfg(feature = "optim")]
use burn::optim::{RecordState, StateSource};
#[cfg(feature = "optim")]
use burn::tensor::Device;

thread_local! {
    static ANSWER: RefCell<Option<Answer>> = const { RefCell::new(None) };
}

/// What an optimizer has said of a parameter.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    /// Takes gradients in f32 of weights in half precision. Burn's optimizers do not.
    pub(crate) takes_f32: bool,
    /// Why it cannot step the parameter.
    pub(crate) refusal: Option<String>,
    /// The names under which states were looked for that can refuse a parameter.
    #[cfg(feature = "optim")]
    pub(crate) states: Vec<String>,
}

/// Collects what optimizers say meanwhile.
pub(crate) fn asked(question: impl FnOnce()) -> Answer {
    /// A step that has panicked is not to make the next one a question.
    struct Asking;
    impl Drop for Asking {
        fn drop(&mut self) {
            ANSWER.take();
        }
    }
    ANSWER.set(Some(Answer::default()));
    let _asking = Asking;
    question();
    ANSWER.take().unwrap_or_default()
}

/// Answers, if this is a question. Returns whether it is one.
#[cfg(feature = "optim")]
fn answer(say: impl FnOnce(&mut Answer)) -> bool {
    ANSWER.with_borrow_mut(|answer| answer.as_mut().map(say).is_some())
}

/// Called in its step by an optimizer that takes gradients in f32 of weights in half precision.
#[cfg(feature = "optim")]
pub(crate) fn takes_f32_gradients() {
    answer(|answer| answer.takes_f32 = true);
}

/// Whether a step is a question.
#[cfg(feature = "scratch")]
pub(crate) fn is_question() -> bool {
    ANSWER.with_borrow(Option::is_some)
}

/// Called first in its step by an optimizer that does not take every parameter, with the reason if it
/// does not take this one. Returns whether it was only asked.
///
/// # Panics
///
/// With the reason, if this is no question.
#[cfg(feature = "optim")]
pub(crate) fn is_only_asked(takes: Result<(), String>) -> bool {
    let refusal = takes.err();
    let is_asked = answer(|answer| answer.refusal.clone_from(&refusal));
    match refusal {
        Some(reason) if !is_asked => panic!("{reason}"),
        _ => is_asked,
    }
}

/// Whether an optimizer with such states answers questions, as one inside another does or does not.
/// Called in a question.
#[cfg(feature = "optim")]
pub(crate) fn answers<S: RecordState>(device: &Device) -> bool {
    let looked_for = || ANSWER.with_borrow(|answer| answer.as_ref().map(|it| it.states.len()));
    let before = looked_for();
    drop(S::state_unflatten(
        "",
        &mut StateSource::new(BTreeMap::new()),
        device,
    ));
    looked_for() > before
}

/// Called by the states of such an optimizer before they are read. Returns whether it was only asked.
#[cfg(feature = "optim")]
pub(crate) fn is_looked_for(name: &str) -> bool {
    answer(|answer| answer.states.push(name.into()))
}

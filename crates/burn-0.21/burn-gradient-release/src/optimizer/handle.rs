//! Reaching an optimizer that its owner keeps private but clones.
//!
//! An optimizer that is cloned on a thread that asks for a handle offers one to itself. This needs
//! nothing from the owner, and runs no code of the model.

use std::{any::Any, cell::RefCell};

use crate::util::lend::lend;

thread_local! {
    /// The handles offered; only the caller of [`capture`] knows their type.
    static ASKED: RefCell<Option<Vec<Box<dyn Any>>>> = const { RefCell::new(None) };
}

/// Runs `clone` and returns the handle of the one optimizer of type `H` that was cloned in it.
pub(super) fn capture<H: 'static>(clone: impl FnOnce()) -> Option<H> {
    let offered = lend(&ASKED, Vec::new(), clone).unwrap_or_default();
    let mut handles = offered
        .into_iter()
        .filter_map(|handle| handle.downcast::<H>().ok());
    let handle = handles.next()?;
    handles.next().is_none().then_some(*handle)
}

/// Offers a handle, if this thread asks for one.
pub(super) fn offer<H: 'static>(handle: impl FnOnce() -> H) {
    let is_asked = ASKED.with_borrow(Option::is_some);
    if is_asked {
        let handle = Box::new(handle());
        ASKED.with_borrow_mut(|asked| asked.as_mut().map(|offered| offered.push(handle)));
    }
}

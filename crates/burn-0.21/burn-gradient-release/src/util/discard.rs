//! Dropping long chains without a deep stack.

use std::{any::Any, cell::RefCell};

thread_local! {
    /// Values to drop after the current drop; `None` if there is none.
    static QUEUE: RefCell<Option<Vec<Box<dyn Any>>>> = const { RefCell::new(None) };
}

/// Drops `contents`. Values that are discarded meanwhile are dropped one after another, so that a
/// chain of a million operations, each of which holds its operands, takes no more stack than a
/// chain of two.
pub(crate) fn discard(contents: impl Any) {
    let mut contents: Option<Box<dyn Any>> = Some(Box::new(contents));
    let is_queued = QUEUE.try_with(|queue| match &mut *queue.borrow_mut() {
        Some(queue) => {
            queue.extend(contents.take());
            true
        }
        queue => {
            *queue = Some(Vec::new());
            false
        }
    });
    if is_queued.unwrap_or(true) {
        // Queued; or the thread is ending, and `contents` is dropped right here.
        return;
    }
    while contents.is_some() {
        drop(contents);
        contents = QUEUE.with_borrow_mut(|queue| queue.as_mut()?.pop());
    }
    QUEUE.set(None);
}

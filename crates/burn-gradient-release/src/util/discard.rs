//! Dropping long chains without a deep stack.

use std::{any::Any, cell::RefCell};

thread_local! {
    /// Values to drop after the drop under way; `None` if there is none.
    static QUEUE: RefCell<Option<Vec<Box<dyn Any>>>> = const { RefCell::new(None) };
}

/// Drops `contents`, and what that drops by this function one after the other: a chain of a million
/// operations, each of which holds its operands, takes no more stack than one of two.
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
        // Or the thread is ending, and so are its chains.
        return;
    }
    while contents.is_some() {
        drop(contents);
        contents = QUEUE.with_borrow_mut(|queue| queue.as_mut()?.pop());
    }
    QUEUE.set(None);
}

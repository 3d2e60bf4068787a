//! Lending a value to a thread local while some work runs.

use std::{cell::RefCell, thread::LocalKey};

/// Runs `work` while `place` holds the value, and returns both. Afterwards `place` is empty, also
/// after a panic.
pub(crate) fn lend<T: 'static>(
    place: &'static LocalKey<RefCell<Option<T>>>,
    value: T,
    work: impl FnOnce(),
) -> Option<T> {
    struct Clear<T: 'static>(&'static LocalKey<RefCell<Option<T>>>);

    impl<T> Drop for Clear<T> {
        fn drop(&mut self) {
            self.0.take();
        }
    }

    place.set(Some(value));
    let _clear = Clear(place);
    work();
    place.take()
}

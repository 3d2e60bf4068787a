//! Lending a value to a thread local while some work runs.

use std::{cell::RefCell, thread::LocalKey};

/// Runs `work` while `place` holds the value, which is returned. Afterwards `place` holds what it held
/// before, also after a panic.
pub(crate) fn lend<T: 'static>(
    place: &'static LocalKey<RefCell<Option<T>>>,
    value: T,
    work: impl FnOnce(),
) -> Option<T> {
    struct Restore<T: 'static>(&'static LocalKey<RefCell<Option<T>>>, Option<T>);

    impl<T> Drop for Restore<T> {
        fn drop(&mut self) {
            self.0.set(self.1.take());
        }
    }

    let _restore = Restore(place, place.replace(Some(value)));
    work();
    place.take()
}

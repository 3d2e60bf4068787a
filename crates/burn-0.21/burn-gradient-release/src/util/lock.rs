//! Locks without poison.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks the mutex. Ignores poisoning: values that a panic may leave incomplete record it
/// themselves.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The value of a mutex that is borrowed exclusively. Ignores poisoning, as [`lock`] does.
pub(crate) fn get_mut<T>(mutex: &mut Mutex<T>) -> &mut T {
    mutex.get_mut().unwrap_or_else(PoisonError::into_inner)
}

//! One test at a time on a device that tunes its kernels.
//!
//! The first time that a kernel is needed for some shape, cubecl times the candidates. A thread
//! that needs it meanwhile gets the first candidate instead of the fastest, and its sums come in
//! another order: of two runs that are compared, one would then have used another kernel.

use std::cell::RefCell;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use burn::tensor::backend::Backend;

static DEVICE: Mutex<()> = Mutex::new(());

thread_local! {
    static TURN: RefCell<Option<MutexGuard<'static, ()>>> = const { RefCell::new(None) };
}

/// Waits for this thread's turn, which lasts until the thread ends: every test has a thread, or all
/// have the same one. Threads of a test's own do not ask, and use what the test has tuned.
pub(crate) fn take<B: Backend>() {
    if !B::name(&Default::default()).contains("cubecl") {
        return;
    }
    TURN.with_borrow_mut(|turn| {
        // A test that failed has not damaged the device.
        turn.get_or_insert_with(|| DEVICE.lock().unwrap_or_else(PoisonError::into_inner));
    });
    start_all();
}

/// Starts every server on the devices before any of them works: where one is started while another
/// works, both can wait for ever (cubecl 0.10).
fn start_all() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        #[cfg(has_wgpu)]
        {
            start::<burn::backend::Wgpu>();
            start::<burn_gradient_release_device_memory::MeteredWgpu>();
        }
        #[cfg(has_cuda)]
        {
            start::<burn::backend::Cuda>();
            start::<burn_gradient_release_device_memory::MeteredCuda>();
        }
    });
}

#[cfg(any(has_wgpu, has_cuda))]
fn start<B: Backend>() {
    B::sync(&Default::default()).expect("the device works");
}

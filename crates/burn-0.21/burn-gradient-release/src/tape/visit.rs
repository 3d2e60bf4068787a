//! When a backward pass reaches a node.

use std::{
    cell::Cell,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use burn::tensor::backend::Backend;
use burn_autodiff::{
    checkpoint::base::Checkpointer,
    grads::Gradients,
    ops::{Backward, Ops},
};

use crate::tape::{AdTensor, NEVER_RUN, register};

thread_local! {
    /// The pass that this thread runs, or is about to run; 0 if there is none.
    static PASS: Cell<u64> = const { Cell::new(0) };
}

/// A pass of burn-autodiff over a part of the tape, on this thread. It ends when this is dropped.
///
/// Burn's passes free old graphs as well: those of other losses and of other threads. A marker that
/// is dropped with them was not reached: only one that [awaits](Visit::await_pass) the pass is
/// counted.
pub(crate) struct Pass(());

impl Pass {
    pub(crate) fn begin() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        PASS.set(NEXT.fetch_add(1, Ordering::Relaxed));
        Self(())
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        PASS.set(0);
    }
}

/// Puts a node on the tape that is reached right before `parent`, but never run: `visit` then says
/// in which order such nodes were reached.
pub(crate) fn marker<B: Backend>(parent: AdTensor<B>, visit: Visit) -> AdTensor<B> {
    #[derive(Debug)]
    struct Marker;

    impl<B: Backend, const N: usize> Backward<B, N> for Marker {
        type State = Option<Reached>;

        fn backward(self, _: Ops<Option<Reached>, N>, _: &mut Gradients, _: &mut Checkpointer) {}
    }

    let value = parent.primitive.clone();
    register(Marker, Some(Reached(visit)), vec![parent], NEVER_RUN, value)
}

/// Moment at which a pass reached a [`marker`].
#[derive(Clone, Debug, Default)]
pub(crate) struct Visit(Arc<Moment>);

#[derive(Debug, Default)]
struct Moment {
    /// Number of the pass that it awaits.
    pass: AtomicU64,
    /// Position in the order of reaching; 0 if the pass has not reached it.
    number: AtomicU64,
}

impl Visit {
    /// From now on only the current [`Pass`] counts.
    pub(crate) fn await_pass(&self) {
        self.0.pass.store(PASS.get(), Ordering::Relaxed);
        self.0.number.store(0, Ordering::Relaxed);
    }

    /// Position in the order in which markers were reached; 0 if the pass has not reached it.
    pub(crate) fn get(&self) -> u64 {
        self.0.number.load(Ordering::Relaxed)
    }

    /// Notes that it was reached now.
    pub(crate) fn note(&self) {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        self.0.number.store(number, Ordering::Relaxed);
    }
}

/// While Burn collects the tape, it drops the nodes that it does not run, in the order of reaching.
#[derive(Clone, Debug)]
struct Reached(Visit);

impl Drop for Reached {
    fn drop(&mut self) {
        let pass = PASS.get();
        if pass != 0 && self.0.0.pass.load(Ordering::Relaxed) == pass {
            self.0.note();
        }
    }
}

// With the feature `distributed`, burn-autodiff has more bounds on a backend.
#[cfg(all(test, not(feature = "distributed")))]
mod tests {
    use burn::{
        backend::{Autodiff, Flex},
        tensor::{TensorData, backend::AutodiffBackend, ops::FloatTensorOps},
    };

    use super::*;
    use crate::tape;

    fn leaf() -> AdTensor<Flex> {
        let value = Flex::float_from_data(TensorData::from([0.0f32]), &Default::default());
        tape::leaf::<Flex>(value)
    }

    /// A marker above a leaf, and its visit.
    fn marked(leaf: &AdTensor<Flex>) -> (AdTensor<Flex>, Visit) {
        let visit = Visit::default();
        (marker(leaf.clone(), visit.clone()), visit)
    }

    fn run(markers: Vec<AdTensor<Flex>>) {
        let root = leaf();
        let above = markers.into_iter().chain([root.clone()]).collect();
        let root = tape::hook(above, 1, root.primitive, |_, _| {});
        drop(Autodiff::<Flex>::backward(root));
    }

    #[test]
    fn a_pass_reaches_the_last_first() {
        let leaf = leaf();
        let (markers, visits): (Vec<_>, Vec<_>) =
            [(); 3].map(|()| marked(&leaf)).into_iter().unzip();
        let _pass = Pass::begin();
        visits.iter().for_each(Visit::await_pass);
        run(markers);
        let numbers: Vec<_> = visits.iter().map(Visit::get).collect();
        assert!(numbers.is_sorted_by(|one, next| one > next), "{numbers:?}");
        assert!(numbers.iter().all(|number| *number > 0));
    }

    #[test]
    fn a_marker_dropped_outside_its_pass_was_not_reached() {
        let visit = Visit::default();
        let _pass = Pass::begin();
        visit.await_pass();
        drop(Pass::begin());
        drop(Reached(visit.clone()));
        assert_eq!(visit.get(), 0, "outside of all passes");
        let _other = Pass::begin();
        drop(Reached(visit.clone()));
        assert_eq!(visit.get(), 0, "in another pass");
    }

    #[test]
    fn a_marker_dropped_by_another_thread_was_not_reached() {
        let visit = Visit::default();
        let _pass = Pass::begin();
        visit.await_pass();
        let reached = Reached(visit.clone());
        let other = std::thread::spawn(|| {
            let _pass = Pass::begin();
            drop(reached);
        });
        other.join().expect("it only drops");
        assert_eq!(visit.get(), 0);
        drop(Reached(visit.clone()));
        assert_ne!(visit.get(), 0, "in the pass itself");
    }

    #[test]
    fn an_earlier_pass_is_forgotten() {
        let visit = Visit::default();
        visit.note();
        let _pass = Pass::begin();
        visit.await_pass();
        assert_eq!(visit.get(), 0);
    }
}

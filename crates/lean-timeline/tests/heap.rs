//! The recorder of the heap, with slices in place of tensors.
//!
//! All in one test: a process has one heap, and tests of one program are its threads.

use std::cell::OnceCell;
use std::hint::black_box;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use lean_timeline::Snapshot;
use lean_timeline::analysis::{Peak, Totals};
use lean_timeline::heap::{Heap, RecordError, Recorder, Recording};
use lean_timeline::heap::{backward, forward, operation, parameters, read, recompute, step};
use lean_timeline::snapshot::{Category, Parameter, PhaseKind};
use peak_alloc::PeakAlloc;

#[global_allocator]
static HEAP: Heap<PeakAlloc> = Heap::from_allocator(PeakAlloc);

/// Names of the two weights, and their elements.
const NAMES: [&str; 2] = ["one", "two"];
const SIZES: [usize; 2] = [1000, 3000];

type Slice = Vec<f32>;

fn slice(elements: usize) -> Slice {
    black_box(vec![1.0; elements])
}

fn address(slice: &Slice) -> Option<usize> {
    Some(slice.as_ptr().addr())
}

/// Two weights, each with a moment.
struct Model {
    weights: [Slice; 2],
    moments: [Slice; 2],
    /// The first forward pass makes it, and it stays.
    workspace: OnceCell<Slice>,
}

impl Model {
    fn new() -> Self {
        Self {
            weights: SIZES.map(slice),
            moments: [Slice::new(), Slice::new()],
            workspace: OnceCell::new(),
        }
    }

    fn parameters(&self) -> Vec<(Parameter, usize)> {
        let weights = self.weights.iter().zip(NAMES);
        let parameter = |(weight, name): (&Slice, &str)| {
            let parameter = Parameter {
                path: name.into(),
                shape: vec![weight.len()],
                bytes: 4 * weight.len() as u64,
                is_embedding: false,
            };
            (parameter, weight.as_ptr().addr())
        };
        weights.map(parameter).collect()
    }

    /// Each weight leaves an activation of twice its size, and takes a workspace.
    fn forward(&self) -> Vec<Slice> {
        let pass = || {
            self.workspace.get_or_init(|| slice(800));
            let mut activations = Vec::with_capacity(2);
            for weight in &self.weights {
                read(|| address(weight));
                activations.push(operation("double", || {
                    drop(slice(500));
                    slice(2 * weight.len())
                }));
            }
            activations
        };
        forward("slices", || self.parameters(), pass)
    }

    /// The step of a weight makes a new weight and a new moment.
    fn step(&mut self, index: usize, grad: Slice) {
        let Self {
            weights, moments, ..
        } = self;
        let weight = std::mem::take(&mut weights[index]);
        let moment = std::mem::take(&mut moments[index]);
        let (of_weight, of_grad) = (address(&weight), address(&grad));
        let run = || {
            let stepped = (slice(weight.len()), slice(weight.len()));
            drop((weight, moment, grad));
            stepped
        };
        let (weight, moment) = step(of_weight, of_grad, run, |(weight, _)| address(weight));
        (weights[index], moments[index]) = (weight, moment);
    }

    /// One training step; `release` steps inside the backward pass.
    fn train(&mut self, release: bool) {
        let mut activations = self.forward();
        let mut grads = Vec::with_capacity(2);
        backward(|| {
            for index in [1, 0] {
                recompute(|| drop(slice(700)));
                activations.pop();
                let grad = slice(SIZES[index]);
                match release {
                    true => self.step(index, grad),
                    false => grads.push((index, grad)),
                }
            }
        });
        for (index, grad) in grads {
            self.step(index, grad);
        }
    }
}

/// Bytes of a category, and the parameters.
fn bytes(snapshot: &Snapshot, category: Category) -> Vec<(u64, Option<&str>)> {
    let held = snapshot.holders.iter();
    let held = held.filter(|held| held.category == category);
    let path = |of: usize| &*snapshot.parameters[of].path;
    held.map(|held| (held.bytes, held.parameter.map(path)))
        .collect()
}

fn operations(snapshot: &Snapshot, bytes: u64) -> Vec<&str> {
    let held = snapshot.holders.iter().filter(|held| held.bytes == bytes);
    held.map(|held| &*snapshot.operations[held.operation])
        .collect()
}

fn kinds(snapshot: &Snapshot) -> Vec<PhaseKind> {
    snapshot.phases.iter().map(|phase| phase.kind).collect()
}

/// The peak beyond what was in use at the beginning of the step.
fn peak(snapshot: &Snapshot) -> u64 {
    let peak = Peak::of(snapshot, &Totals::of(snapshot)).expect("there are ticks");
    let mut samples = snapshot.samples.iter();
    let begin = samples.find(|sample| sample.tick == snapshot.phases[0].from);
    peak.bytes - begin.expect("a phase begins with a sample").in_use
}

fn start(steps: Range<usize>) -> Recording {
    let recorder = Recorder::new("slices").with_steps(steps);
    recorder.start().expect("no other recording is under way")
}

#[test]
fn the_heap_is_recorded() {
    errors();
    for release in [false, true] {
        purposes(release);
    }
    peaks();
    nothing_is_left_between_recordings();
    a_panic_ends_a_pass();
    threads();
    what_another_thread_releases();
    late_steps();
}

fn purposes(release: bool) {
    use PhaseKind::{Backward, Forward, Optimizer, Step};
    let recording = start(1..2);
    let mut model = Model::new();
    for _ in 0..2 {
        model.train(release);
    }
    let snapshot = recording.finish().unwrap();
    assert_eq!(snapshot.check(), Ok(()));

    let steps = match release {
        false => vec![Forward, Backward, Optimizer, Step(1), Step(0)],
        true => vec![Forward, Backward, Step(1), Step(0)],
    };
    assert_eq!(kinds(&snapshot), steps);
    assert!(snapshot.phases.iter().all(|phase| phase.iteration == 0));
    let (one, two) = (Some("one"), Some("two"));
    let bytes = |category| bytes(&snapshot, category);
    // Old weights and moments, and new ones.
    let both = [(12_000, two), (4000, one)].repeat(2);
    assert_eq!(bytes(Category::Parameters), both);
    assert_eq!(bytes(Category::OptimizerState), both);
    assert!(bytes(Category::Other).contains(&(3200, None)));
    assert_eq!(bytes(Category::Activations), [(8000, one), (24_000, two)]);
    assert_eq!(bytes(Category::Gradients), [(12_000, two), (4000, one)]);
    let temporaries = [(2000, one), (2000, two), (2800, None), (2800, None)];
    assert_eq!(bytes(Category::Temporaries), temporaries);
    assert_eq!(operations(&snapshot, 2000), ["double"; 2]);
    assert_eq!(operations(&snapshot, 2800), ["recompute"; 2]);
    assert_eq!(operations(&snapshot, 8000), ["double"]);
}

/// The counting allocator below sees each word that the recorder's allocator adds.
fn peaks() {
    for release in [false, true] {
        let mut model = Model::new();
        model.train(release);
        let before = PeakAlloc.current_usage();
        PeakAlloc.reset_peak_usage();
        model.train(release);
        let counted = (PeakAlloc.peak_usage() - before) as u64;

        let recording = start(0..1);
        model.train(release);
        let snapshot = recording.finish().unwrap();
        let recorded = peak(&snapshot);
        // The word before each of the allocations in use at the peak.
        let words = 10 * size_of::<usize>() as u64;
        let range = counted - words..=counted;
        assert!(range.contains(&recorded), "{recorded} {counted}");
    }
}

fn nothing_is_left_between_recordings() {
    let mut model = Model::new();
    let mut peaks = Vec::new();
    let mut holders = Vec::new();
    model.train(false);
    for round in 0..4 {
        let recording = start(0..1);
        model.train(false);
        if round == 1 {
            // Dropped on the way.
            drop(recording);
            continue;
        }
        let snapshot = recording.finish().unwrap();
        peaks.push(peak(&snapshot));
        let of_training = snapshot
            .holders
            .iter()
            .filter(|held| held.category != Category::Other);
        holders.push(of_training.count());
        // Weights and moments that are older than the recording are known.
        let states = bytes(&snapshot, Category::OptimizerState);
        assert_eq!(states.len(), 4);
    }
    assert_eq!(peaks, [peaks[0]; 3]);
    assert_eq!(holders, [holders[0]; 3]);
    let before = PeakAlloc.current_usage();
    for _ in 0..3 {
        drop(start(0..1));
    }
    assert!(PeakAlloc.current_usage() <= before + 1024);
}

fn a_panic_ends_a_pass() {
    let recording = start(0..2);
    let model = Model::new();
    let failing = || forward("slices", || model.parameters(), || panic!("on purpose"));
    catch_unwind(AssertUnwindSafe(failing)).expect_err("it panics");
    // Not within a pass: the recording goes on.
    let other = slice(1234);
    model.forward();
    drop(other);
    let snapshot = recording.finish().unwrap();
    assert_eq!(kinds(&snapshot), [PhaseKind::Forward; 2]);
    assert!(bytes(&snapshot, Category::Other).contains(&(4 * 1234, None)));
    assert_eq!(operations(&snapshot, 4 * 1234), ["outside of a pass"]);
}

/// What other threads take belongs to no step. Many take and release memory at the same addresses.
fn threads() {
    let recording = start(0..1);
    let model = Model::new();
    let pass = || {
        let kept = thread::scope(|scope| {
            let work = |_| {
                scope.spawn(|| {
                    (0..1000).for_each(|round| drop(slice(400 + round % 7)));
                    slice(999)
                })
            };
            let workers: Vec<_> = (0..4).map(work).collect();
            let kept = workers.into_iter().map(|worker| worker.join().unwrap());
            kept.collect::<Vec<Slice>>()
        });
        (kept, slice(333))
    };
    let kept = forward("slices", || model.parameters(), pass);
    parameters(&model.parameters());
    let snapshot = recording.finish().unwrap();
    drop(kept);

    assert_eq!(bytes(&snapshot, Category::Activations)[0].0, 4 * 333);
    let holders = snapshot.holders.iter();
    let of_threads = holders.clone().filter(|held| held.bytes == 4 * 999);
    let categories: Vec<Category> = of_threads.map(|held| held.category).collect();
    assert_eq!(categories, [Category::Other; 4]);
    // Everything that was released has an end.
    let mut short = holders.filter(|held| (1600..4 * 407).contains(&held.bytes));
    assert!(short.all(|held| held.until < snapshot.times.len()));
}

/// Not what a step reads, though it is older than the step.
fn what_another_thread_releases() {
    let recording = start(0..1);
    let mut model = Model::new();
    model.forward();
    let foreign = slice(2345);
    let grad = backward(|| slice(SIZES[0]));
    let (weight, grad) = (std::mem::take(&mut model.weights[0]), grad);
    let (of_weight, of_grad) = (address(&weight), address(&grad));
    let run = || {
        thread::scope(|scope| scope.spawn(|| drop(foreign)).join().unwrap());
        drop(grad);
        weight
    };
    model.weights[0] = step(of_weight, of_grad, run, address);
    let snapshot = recording.finish().unwrap();
    assert!(bytes(&snapshot, Category::Other).contains(&(4 * 2345, None)));
    assert_eq!(bytes(&snapshot, Category::OptimizerState), []);
}

/// What was before them takes no memory, and they are recorded as if it had not been.
fn late_steps() {
    const LATE: usize = 200;
    let mut model = Model::new();
    let mut snapshots = [1, LATE].map(|first| {
        let recording = start(first..first + 1);
        (0..first / 2 + 1).for_each(|_| model.train(false));
        let before = PeakAlloc.current_usage();
        (first / 2 + 1..first).for_each(|_| model.train(false));
        assert!(PeakAlloc.current_usage() < before + 4096, "{first}");
        model.train(false);
        recording.finish().unwrap()
    });
    for snapshot in &mut snapshots {
        snapshot.times.clear();
    }
    let [early, late] = snapshots;
    assert_eq!(late.phases, early.phases);
    let held = |snapshot: &Snapshot| {
        let holders = snapshot.holders.iter();
        let held = holders.map(|held| (held.bytes, held.category, held.from, held.until));
        held.filter(|held| held.1 != Category::Other)
            .collect::<Vec<_>>()
    };
    assert_eq!(held(&late), held(&early));
}

fn errors() {
    let recorder = || Recorder::new("none");
    let empty = recorder().with_steps(3..3).start();
    assert!(matches!(empty, Err(RecordError::NoSteps)));
    let nowhere = recorder().with_file("no/such/folder/file").start();
    assert!(matches!(nowhere, Err(RecordError::Save(_))));
    let recording = start(1..2);
    assert!(matches!(recorder().start(), Err(RecordError::UnderWay)));
    Model::new().train(false);
    let error = recording.finish().unwrap_err();
    assert!(matches!(error, RecordError::TooShort { made: 1, first: 1 }));
    let recording = start(0..1);
    forward("slices", Vec::new, || ());
    assert!(matches!(recording.finish(), Err(RecordError::NoParameters)));
}

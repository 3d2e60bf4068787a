//! Schedulers that the optimizer owns: saved and resumed in another process, they give the weights
//! of the uninterrupted run.

use std::ops::Range;
use std::path::Path;
use std::process::Command;

use burn::lr_scheduler::LrScheduler;
use burn::lr_scheduler::composed::ComposedLrSchedulerConfig;
use burn::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
use burn::lr_scheduler::exponential::ExponentialLrSchedulerConfig;
use burn::lr_scheduler::linear::LinearLrSchedulerConfig;
use burn::lr_scheduler::noam::NoamLrSchedulerConfig;
use burn::lr_scheduler::step::StepLrSchedulerConfig;
use burn::module::Module;
use burn::optim::{Adam, AdamConfig, Optimizer};
use burn::record::{FullPrecisionSettings, NamedMpkFileRecorder, Recorder};
use burn_gradient_release::{ReleaseOptimizer, WithGradientRelease};

use crate::harness::models::{Mlp, MlpModel, Scenario, Size};
use crate::harness::run::{Start, ordinary_step};
use crate::harness::{Plain, Release, Weights};

type P = Plain;
type R = Release;
type Model = MlpModel<R>;
type Optim = ReleaseOptimizer<Adam, Model, R>;

/// In the process that resumes: the directory of what was saved.
const RESUMES: &str = "PROMISES_RESUMES_A_SCHEDULER";
const SAVED_AFTER: u64 = 3;
const STEPS: u64 = 9;

/// What is done with a scheduler of any type, in a directory of its own.
#[derive(Clone, Copy)]
enum Task {
    /// Trains for a while, and saves all that another process needs.
    Save,
    /// Goes on from there.
    Resume,
    /// Compares with plain Burn, uninterrupted.
    Compare,
}

impl Task {
    fn with_each_scheduler(self, start: &Start, directory: &Path) {
        let within = |name: &str| directory.join(name);
        let in_range = "the rates are in range";
        self.with(start, &within("constant"), 0.01);
        let linear = LinearLrSchedulerConfig::new(0.05, 0.001, 10);
        self.with(start, &within("linear"), linear.init().expect(in_range));
        let cosine = CosineAnnealingLrSchedulerConfig::new(0.05, 7);
        self.with(start, &within("cosine"), cosine.init().expect(in_range));
        let exponential = ExponentialLrSchedulerConfig::new(0.05, 0.8);
        let exponential = exponential.init().expect(in_range);
        self.with(start, &within("exponential"), exponential);
        let step = StepLrSchedulerConfig::new(0.05, 2).with_gamma(0.5);
        self.with(start, &within("step"), step.init().expect(in_range));
        let noam = NoamLrSchedulerConfig::new(0.5).with_warmup_steps(4);
        self.with(start, &within("noam"), noam.init().expect(in_range));
        let composed = ComposedLrSchedulerConfig::new()
            .linear(LinearLrSchedulerConfig::new(0.5, 0.1, 5))
            .cosine(CosineAnnealingLrSchedulerConfig::new(0.5, 4));
        self.with(start, &within("composed"), composed.init().expect(in_range));
    }

    fn with<S: LrScheduler + 'static>(self, start: &Start, directory: &Path, rates: S) {
        match self {
            Self::Save => save(start, directory, rates),
            Self::Resume => resume(start, directory, rates),
            Self::Compare => compare(start, directory, rates),
        }
    }
}

fn recorder() -> NamedMpkFileRecorder<FullPrecisionSettings> {
    NamedMpkFileRecorder::default()
}

fn owning<S: LrScheduler + 'static>(rates: S) -> Optim {
    AdamConfig::new()
        .init()
        .with_gradient_release()
        .with_lr_scheduler(rates)
}

/// Some steps of the loop that knows nothing of release.
fn run(mut model: Model, optim: &mut Optim, steps: Range<u64>) -> Model {
    for step in steps {
        let rate = optim
            .next_learning_rate()
            .expect("the optimizer owns its rate");
        let loss = Mlp::loss::<R>(&model, Size::Small, step);
        model = ordinary_step(rate, model, optim, loss);
    }
    model
}

fn save<S: LrScheduler + 'static>(start: &Start, directory: &Path, rates: S) {
    let mut alone = rates.clone();
    let mut optim = owning(rates);
    let model = run(start.model::<Mlp, R>(), &mut optim, 0..SAVED_AFTER);
    let saved = optim.lr_scheduler::<S>().expect("as it was given");
    // It stands where it stands without an optimizer around it.
    for _ in 0..SAVED_AFTER {
        alone.step();
    }
    let (next, expected) = (saved.clone().step(), alone.step());
    assert_eq!(next.to_bits(), expected.to_bits(), "{directory:?}");

    std::fs::create_dir(directory).expect("writable");
    let to = |file: &str| directory.join(file);
    let rates = saved.to_record::<R>();
    Recorder::<R>::record(&recorder(), rates, to("rates")).expect("saved");
    Recorder::<R>::record(&recorder(), optim.to_record(), to("optim")).expect("saved");
    model.save_file(to("model"), &recorder()).expect("saved");
}

fn resume<S: LrScheduler + 'static>(start: &Start, directory: &Path, rates: S) {
    let (from, device) = (|file: &str| directory.join(file), Default::default());
    let record = Recorder::<R>::load(&recorder(), from("rates"), &device).expect("loaded");
    let rates = rates.load_record::<R>(record);
    let record = Recorder::<R>::load(&recorder(), from("optim"), &device).expect("loaded");
    let mut optim = owning(rates).load_record(record);
    let model = start.model::<Mlp, R>();
    let model = model.load_file(from("model"), &recorder(), &device);
    let model = run(model.expect("loaded"), &mut optim, SAVED_AFTER..STEPS);
    let saved = model.save_file(from("resumed"), &recorder());
    saved.expect("saved");
}

fn compare(start: &Start, directory: &Path, mut rates: impl LrScheduler) {
    let mut plain = start.model::<Mlp, P>();
    let mut optim = AdamConfig::new().init();
    for step in 0..STEPS {
        let loss = Mlp::loss::<P>(&plain, Size::Small, step);
        plain = ordinary_step(rates.step(), plain, &mut optim, loss);
    }
    let model = start.model::<Mlp, R>();
    let model = model.load_file(directory.join("resumed"), &recorder(), &Default::default());
    let resumed = Weights::of::<R, _>(&model.expect("resumed"));
    resumed.assert_same(&Weights::of::<P, _>(&plain), directory.display());
}

#[test]
fn resumed_in_another_process() {
    let start = Start::new::<Mlp>(Size::Small);
    if let Some(directory) = std::env::var_os(RESUMES) {
        return Task::Resume.with_each_scheduler(&start, Path::new(&directory));
    }
    let directory = tempfile::tempdir().expect("a directory");
    Task::Save.with_each_scheduler(&start, directory.path());
    let this = "owned_schedulers::resumed_in_another_process";
    let output = Command::new(std::env::current_exe().expect("a test has a path"))
        .args(["--exact", this, "--nocapture", "--test-threads=1"])
        .env(RESUMES, directory.path())
        .output()
        .expect("a test can be run again");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{said}"
    );
    Task::Compare.with_each_scheduler(&start, directory.path());
}

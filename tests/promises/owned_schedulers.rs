//! Schedulers that the optimizer owns: saved and resumed in another process, they give the weights
//! of the uninterrupted run.

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
use burn::optim::{Adam, AdamConfig, GradientsParams, Optimizer};
use burn::record::{FullPrecisionSettings, NamedMpkFileRecorder, Recorder};
use burn_gradient_release::{ReleaseOptimizer, WithGradientRelease};

use crate::harness::models::{Mlp, MlpModel, Scenario, Size};
use crate::harness::run::Start;
use crate::harness::{Plain, Release, Weights};

type P = Plain;
type R = Release;
type Model = MlpModel<R>;
type Optim = ReleaseOptimizer<Adam, Model, R>;

/// In the process that resumes: the directory of what was saved.
const RESUMES: &str = "PROMISES_RESUMES_A_SCHEDULER";
const SAVED_AFTER: u64 = 3;
const STEPS: u64 = 9;

/// A test with a scheduler of any type.
trait Check {
    fn check<S: LrScheduler + 'static>(&self, name: &str, rates: S);
}

/// Every scheduler of Burn.
fn each_scheduler(check: &impl Check) {
    let in_range = "the rates are in range";
    check.check("constant", 0.01);
    let linear = LinearLrSchedulerConfig::new(0.05, 0.001, 10);
    check.check("linear", linear.init().expect(in_range));
    let cosine = CosineAnnealingLrSchedulerConfig::new(0.05, 7);
    check.check("cosine", cosine.init().expect(in_range));
    let exponential = ExponentialLrSchedulerConfig::new(0.05, 0.8);
    check.check("exponential", exponential.init().expect(in_range));
    let step = StepLrSchedulerConfig::new(0.05, 2).with_gamma(0.5);
    check.check("step", step.init().expect(in_range));
    let noam = NoamLrSchedulerConfig::new(0.5).with_warmup_steps(4);
    check.check("noam", noam.init().expect(in_range));
    let composed = ComposedLrSchedulerConfig::new()
        .linear(LinearLrSchedulerConfig::new(0.5, 0.1, 5))
        .cosine(CosineAnnealingLrSchedulerConfig::new(0.5, 4));
    check.check("composed", composed.init().expect(in_range));
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
fn run(mut model: Model, optim: &mut Optim, steps: std::ops::Range<u64>) -> Model {
    for step in steps {
        let rate = optim
            .next_learning_rate()
            .expect("the optimizer owns its rate");
        let grads = Mlp::loss::<R>(&model, Size::Small, step).backward();
        let grads = GradientsParams::from_grads(grads, &model);
        model = optim.step(rate, model, grads);
    }
    model
}

/// Trains for a while and saves all that another process needs.
struct Save<'a> {
    directory: &'a Path,
    model: &'a Model,
}

impl Check for Save<'_> {
    fn check<S: LrScheduler + 'static>(&self, name: &str, rates: S) {
        let mut alone = rates.clone();
        let mut optim = owning(rates);
        let model = run(self.model.clone(), &mut optim, 0..SAVED_AFTER);
        let saved = optim.lr_scheduler::<S>().expect("as it was given");
        // It stands where it stands without an optimizer around it.
        for _ in 0..SAVED_AFTER {
            alone.step();
        }
        let (next, expected) = (saved.clone().step(), alone.step());
        assert_eq!(
            next.to_bits(),
            expected.to_bits(),
            "{name}: {next} for {expected}"
        );

        let directory = self.directory.join(name);
        std::fs::create_dir(&directory).expect("writable");
        let to = |file: &str| directory.join(file);
        let rates = saved.to_record::<R>();
        Recorder::<R>::record(&recorder(), rates, to("rates")).expect("saved");
        Recorder::<R>::record(&recorder(), optim.to_record(), to("optim")).expect("saved");
        model.save_file(to("model"), &recorder()).expect("saved");
    }
}

/// Goes on from there.
struct Resume<'a> {
    directory: &'a Path,
    model: &'a Model,
}

impl Check for Resume<'_> {
    fn check<S: LrScheduler + 'static>(&self, name: &str, rates: S) {
        let directory = self.directory.join(name);
        let (from, device) = (|file: &str| directory.join(file), Default::default());
        let record = Recorder::<R>::load(&recorder(), from("rates"), &device).expect("loaded");
        let rates = rates.load_record::<R>(record);
        let record = Recorder::<R>::load(&recorder(), from("optim"), &device).expect("loaded");
        let mut optim = owning(rates).load_record(record);
        let model = self.model.clone();
        let model = model
            .load_file(from("model"), &recorder(), &device)
            .expect("loaded");
        let model = run(model, &mut optim, SAVED_AFTER..STEPS);
        model
            .save_file(from("resumed"), &recorder())
            .expect("saved");
    }
}

/// Compares with plain Burn, uninterrupted.
struct Compare<'a> {
    directory: &'a Path,
    start: &'a Start,
}

impl Check for Compare<'_> {
    fn check<S: LrScheduler + 'static>(&self, name: &str, mut rates: S) {
        let mut plain = self.start.model::<Mlp, P>();
        let mut optim = AdamConfig::new().init();
        for step in 0..STEPS {
            let grads = Mlp::loss::<P>(&plain, Size::Small, step).backward();
            let grads = GradientsParams::from_grads(grads, &plain);
            plain = optim.step(rates.step(), plain, grads);
        }
        let resumed = self.directory.join(name).join("resumed");
        let model = self.start.model::<Mlp, R>();
        let model = model.load_file(resumed, &recorder(), &Default::default());
        let resumed = Weights::of::<R, _>(&model.expect("resumed"));
        resumed.assert_same(&Weights::of::<P, _>(&plain), name);
    }
}

#[test]
fn resumed_in_another_process() {
    let start = Start::new::<Mlp>(Size::Small);
    let model = &start.model::<Mlp, R>();
    if let Some(directory) = std::env::var_os(RESUMES) {
        let directory = Path::new(&directory);
        return each_scheduler(&Resume { directory, model });
    }
    let folder = tempfile::tempdir().expect("a folder");
    let directory = folder.path();
    each_scheduler(&Save { directory, model });
    let this = "owned_schedulers::resumed_in_another_process";
    let output = Command::new(std::env::current_exe().expect("a test has a path"))
        .args(["--exact", this, "--nocapture", "--test-threads=1"])
        .env(RESUMES, directory)
        .output()
        .expect("a test can be run again");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{said}"
    );
    let start = &start;
    each_scheduler(&Compare { directory, start });
}

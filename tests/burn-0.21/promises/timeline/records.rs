//! The records of a recorded optimizer are those of the optimizer: a checkpoint passes both ways.

use burn::backend::Flex;
use burn::optim::{AdamConfig, Optimizer};
use burn::record::{BinBytesRecorder, FullPrecisionSettings, Recorder};
use burn::tensor::backend::AutodiffBackend;
use burn_gradient_release_timeline::{RecordSteps, Recorded};

use crate::harness::models::{Mlp, MlpModel, Scenario, Size};
use crate::harness::run::{RATE, Start, ordinary_step};
use crate::harness::weights::{load, save};
use crate::harness::{Plain, Weights};

type Stock = Plain<Flex>;
type OnRecord = Plain<Recorded<Flex>>;

const BEFORE: u64 = 3;
const AFTER: u64 = 3;

/// The records of a model and an optimizer.
struct Checkpoint {
    model: Vec<u8>,
    optim: Vec<u8>,
}

fn recorder() -> BinBytesRecorder<FullPrecisionSettings> {
    BinBytesRecorder::new()
}

fn begin<B: AutodiffBackend>(
    start: &Start,
    mut optim: impl Optimizer<MlpModel<B>, B>,
) -> Checkpoint {
    let mut model = start.model::<Mlp, B>();
    for step in 0..BEFORE {
        let loss = Mlp::loss::<B>(&model, Size::Small, step);
        model = ordinary_step(RATE, model, &mut optim, loss);
    }
    let record = recorder().record(optim.to_record(), ());
    Checkpoint {
        model: save(model),
        optim: record.expect("a record becomes bytes"),
    }
}

fn go_on<B: AutodiffBackend, O: Optimizer<MlpModel<B>, B>>(
    from: &Checkpoint,
    optim: O,
) -> Vec<u64> {
    let device = Default::default();
    let model = Mlp::init::<B>(Size::Small, &device);
    let mut model = load::<B, _>(model, &from.model, &device);
    let record = recorder().load(from.optim.clone(), &device);
    let mut optim = optim.load_record(record.expect("bytes become a record"));
    let mut weights = Vec::new();
    for step in BEFORE..BEFORE + AFTER {
        let loss = Mlp::loss::<B>(&model, Size::Small, step);
        model = ordinary_step(RATE, model, &mut optim, loss);
        weights.push(Weights::of::<B, _>(&model).digest());
    }
    weights
}

#[test]
fn a_checkpoint_passes_both_ways() {
    let start = Start::new::<Mlp>(Size::Small);
    let stock = begin::<Stock>(&start, AdamConfig::new().init());
    let on_record = begin::<OnRecord>(&start, AdamConfig::new().init().recorded());
    let expected = go_on::<Stock, _>(&stock, AdamConfig::new().init());
    let recorded = go_on::<OnRecord, _>(&stock, AdamConfig::new().init().recorded());
    assert_eq!(recorded, expected, "from stock Burn");
    let back = go_on::<Stock, _>(&on_record, AdamConfig::new().init());
    assert_eq!(back, expected, "to stock Burn");
    let without = go_on::<Stock, _>(
        &Checkpoint {
            optim: fresh(),
            ..stock
        },
        AdamConfig::new().init(),
    );
    assert_ne!(without, expected, "the states matter");
}

/// The record of an optimizer that has not stepped.
fn fresh() -> Vec<u8> {
    let optim = AdamConfig::new().init::<Stock, MlpModel<Stock>>();
    let record = recorder().record(optim.to_record(), ());
    record.expect("a record becomes bytes")
}

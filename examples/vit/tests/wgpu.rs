//! Training on wgpu, beside Flex.

#[path = "../../tests/vit/program.rs"]
mod program;
#[path = "cli/this.rs"]
mod this;

use burn::module::{Module, ModuleVisitor, Param};
use burn::store::ModuleRecord;
use burn::tensor::{Device, Tensor};
use program::{Home, result};
use this::PROGRAM;
use vit::model::{Model, Vit};
use vit_inputs::Preset;

/// All weights after the second epoch.
fn weights(home: &Home, name: &str) -> Vec<f64> {
    struct Visitor(Vec<f64>);
    impl ModuleVisitor for Visitor {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.extend(param.val().into_data().iter::<f64>());
        }
    }
    let config = Preset::Tiny.config(8, 3, 4);
    let file = home.folder(name).join("checkpoint/model-2.bpk");
    let model = Vit::new(&config, &Device::flex());
    let model = model.load_record(ModuleRecord::load(file).unwrap());
    let mut visitor = Visitor(Vec::new());
    model.visit(&mut visitor);
    visitor.0
}

fn norm(numbers: impl Iterator<Item = f64>) -> f64 {
    numbers.map(|number| number * number).sum::<f64>().sqrt()
}

/// One test of few runs, as each run compiles its kernels. Each backend trains the second epoch from the
/// checkpoint of the other one, and from its own.
#[test]
fn a_run_passes_between_backends() {
    let home = Home::new();
    for (first, second) in [("flex", "wgpu"), ("wgpu", "flex")] {
        // The masks of dropout would be others.
        let run = result(&mut home.train(first, 2, &format!("--dropout 0 --backend {first}")));
        let expected = weights(&home, first);
        home.forget(first, 1);
        let to = result(&mut home.resume(first, &format!("--backend {second}")));
        let found = weights(&home, first);
        let [loss, expected_loss] = [&to, &run].map(|it| it["validation_loss"].as_f64().unwrap());
        let difference = norm(found.iter().zip(&expected).map(|(found, it)| found - it));
        let difference = difference / norm(expected.into_iter());
        println!("from {first} to {second}: {difference:e}, loss {loss} for {expected_loss}");
        assert!(
            difference < 1e-4,
            "from {first} to {second}: {difference:e}"
        );
        assert!(
            (loss - expected_loss).abs() < 1e-4,
            "{loss} for {expected_loss}"
        );
        if first == "wgpu" {
            let bytes = |key: &str| run[key].as_u64().unwrap();
            // The weights, and two moments of AdamW for each.
            assert!(bytes("peak_bytes") > 3 * 4 * 200_000, "{run}");
            assert!(bytes("peak_reserved_bytes") >= bytes("peak_bytes"), "{run}");
        }
    }
}

//! Results on one thread and on several.

use std::process::Command;

use super::attention::{PACKED, Shape};
use super::harness::{noise, spread};
use super::{activations, cross_entropy, rotary};
use crate::harness::prelude::*;

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    const NAME: &str = "operations::threads::results_do_not_depend_on_the_number_of_threads";
    const VARIABLE: &str = "BURN_LEAN_TEST_THREADS";
    if std::env::var_os(VARIABLE).is_some() {
        let mut cases = vec![
            PACKED.case(Shape::new(2, 4, 203, 8)),
            cross_entropy::case_of_tokens(300, 64, 500),
            rotary::case([2, 8, 203, 64], true),
        ];
        let gate = spread(0.0, 6.0, 200_000, 1);
        cases.extend(activations::gated_cases(gate, noise(200_000, 2)));
        for case in cases {
            let found = case.found(&flex(), DType::F32);
            let bits = found.numbers().map(f64::to_bits);
            let sum = bits.fold(0_u64, |sum, bits| sum.rotate_left(5).wrapping_add(bits));
            println!("\nbits of {}: {sum:x}", case.name());
        }
        return;
    }
    let bits = |threads: &str| {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", NAME, "--nocapture"])
            .env(VARIABLE, "")
            .env("RAYON_NUM_THREADS", threads)
            .output()
            .unwrap();
        let output = String::from_utf8(output.stdout).unwrap();
        let lines = output.lines().filter(|line| line.starts_with("bits of"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let expected = bits("1");
    assert_eq!(expected.len(), 6);
    assert_eq!(bits("3"), expected);
}

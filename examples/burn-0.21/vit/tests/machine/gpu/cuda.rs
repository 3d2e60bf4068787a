use crate::both::trial;
use crate::program::{fails, train};
use libtest_mimic::Trial;
use tempfile::TempDir;

pub(super) fn tests() -> Vec<Trial> {
    vec![trial(
        "cuda_that_is_missing_is_named",
        cuda_that_is_missing_is_named,
    )]
}

fn cuda_that_is_missing_is_named() {
    let home = TempDir::new().unwrap();
    let run = home.path().join("run");
    let texts = [
        "error: CUDA is not usable here: ",
        "no include/cuda_runtime.h in ",
    ];
    // Hides the headers on a machine with CUDA.
    let mut vit = train(&run, &["--backend", "cuda"]);
    let (code, _) = fails(vit.env("CUDA_PATH", home.path()), &texts);
    assert_eq!(code, 1);
    assert!(!run.exists(), "nothing should have been written");
}

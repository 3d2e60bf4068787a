use assert_cmd::Command;
use libtest_mimic::Trial;
use tempfile::TempDir;

pub(crate) fn tests() -> Vec<Trial> {
    vec![Trial::test("cuda_that_is_missing_is_named", || {
        cuda_that_is_missing_is_named();
        Ok(())
    })]
}

fn cuda_that_is_missing_is_named() {
    let home = TempDir::new().unwrap();
    let run = home.path().join("run");
    let mut vit = Command::cargo_bin("vit").unwrap();
    vit.args(["train", "--backend", "cuda", "--artifact-dir"])
        .arg(&run)
        // Hides the headers on a machine with CUDA.
        .env("CUDA_PATH", home.path());
    let output = vit.assert().code(1).get_output().clone();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(
        stderr.starts_with("error: CUDA is not usable here: "),
        "{stderr}"
    );
    assert!(stderr.contains("no include/cuda_runtime.h in "), "{stderr}");
    assert!(output.stdout.is_empty());
    assert!(!run.exists(), "nothing should have been written");
}

//! A program of several processes, which `mpirun` starts: this one.
//!
//! Counts as ignored where no processes can be started together.

use std::{env, error::Error, process::Command};

use libtest_mimic::{Arguments, Failed, Trial};

/// Set in the processes of the program: what it is to do.
const PROGRAM: &str = "REPLICAS_TEST_PROGRAM";

fn main() -> Result<(), Box<dyn Error>> {
    if let Ok(program) = env::var(PROGRAM) {
        return program::run(&program);
    }
    let has_mpirun = Command::new("mpirun").arg("--version").output().is_ok();
    let is_missing = cfg!(not(feature = "mpi")) || !has_mpirun;
    let tests: [(&str, fn()); 2] = [
        ("who_leaves_says_why", who_leaves_says_why),
        ("many_processes_gather", many_processes_gather),
    ];
    let tests = tests.map(|(name, test)| {
        let trial = Trial::test(name, move || -> Result<(), Failed> {
            test();
            Ok(())
        });
        trial.with_ignored_flag(is_missing)
    });
    libtest_mimic::run(&Arguments::from_args(), tests.into()).exit();
}

/// Runs a program in so many processes. Whether it succeeds, and what it says.
fn run(processes: usize, program: &str) -> (bool, String) {
    let output = Command::new("mpirun")
        .args(["--oversubscribe", "-n", &processes.to_string()])
        .arg(env::current_exe().unwrap())
        .env(PROGRAM, program)
        // In a container everybody is root.
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        .output()
        .unwrap();
    let [out, err] = [output.stdout, output.stderr].map(|said| String::from_utf8(said).unwrap());
    (output.status.success(), format!("{out}\n{err}"))
}

fn who_leaves_says_why() {
    for rank in ["0", "2"] {
        let (is_well, said) = run(3, rank);
        assert!(!is_well, "{said}");
        assert!(said.contains("no such image"), "rank {rank}: {said}");
    }
}

fn many_processes_gather() {
    let (is_well, said) = run(8, "gather");
    assert!(is_well, "{said}");
}

#[cfg(not(feature = "mpi"))]
mod program {
    use super::*;

    pub(super) fn run(_program: &str) -> Result<(), Box<dyn Error>> {
        Ok(())
    }
}

#[cfg(feature = "mpi")]
mod program {
    use std::{thread, time::Duration};

    use burn_replicas::{Exchange, Mpi, Replicas};

    use super::*;

    /// As an operator's `fn main() -> Result`, whose error is printed when everything is dropped.
    pub(super) fn run(program: &str) -> Result<(), Box<dyn Error>> {
        if program == "gather" {
            return gather();
        }
        // Dropped after the replicas.
        let mut _model = None;
        let replicas = Replicas::new(Mpi::initialize)?;
        replicas.meet("the beginning")?;
        if replicas.rank().to_string() == program {
            _model = Some(SlowToDrop);
            return Err("no such image".into());
        }
        replicas.meet("the first batch")?;
        Ok(())
    }

    /// What is freed after the replicas and before the error is printed.
    struct SlowToDrop;

    impl Drop for SlowToDrop {
        fn drop(&mut self) {
            thread::sleep(Duration::from_millis(300));
        }
    }

    /// Other numbers of bytes from each, in several segments.
    fn gather() -> Result<(), Box<dyn Error>> {
        let exchange = Exchange::new(Replicas::new(Mpi::initialize)?);
        let (rank, size) = (exchange.replicas().rank(), exchange.replicas().size());
        let of = |rank: usize| vec![rank as u8; (9 << 20) + rank];
        let gathered = exchange.gather("bytes", of(rank))?;
        match rank {
            0 => assert!((0..size).all(|rank| gathered[rank] == of(rank))),
            _ => assert!(gathered.iter().all(Vec::is_empty)),
        }
        Ok(())
    }
}

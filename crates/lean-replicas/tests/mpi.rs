//! A program of several processes, which `mpirun` starts: this one.
//!
//! Counts as ignored where no processes can be started together.

use std::{
    env,
    error::Error,
    process::Command,
    time::{Duration, Instant},
};

use libtest_mimic::{Arguments, Failed, Trial};

/// Set in the processes of the program: what it is to do.
const PROGRAM: &str = "REPLICAS_TEST_PROGRAM";

fn main() -> Result<(), Box<dyn Error>> {
    if let Ok(program) = env::var(PROGRAM) {
        return program::run(&program);
    }
    let has_mpirun = Command::new("mpirun").arg("--version").output().is_ok();
    let is_missing = cfg!(not(feature = "mpi")) || !has_mpirun;
    let tests: [(&str, fn()); 4] = [
        ("who_leaves_says_why", who_leaves_says_why),
        (
            "who_leaves_others_that_are_stopped_says_why",
            who_leaves_stopped_others_says_why,
        ),
        ("many_processes_gather", many_processes_gather),
        (
            "machines_have_the_means_of_one",
            machines_have_the_means_of_one,
        ),
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

/// Nobody who leaves waits for ever for a process that the operator, or a debugger, has stopped.
fn who_leaves_stopped_others_says_why() {
    let begun = Instant::now();
    let (is_well, said) = run(2, "stopped");
    assert!(!is_well, "{said}");
    assert!(said.contains("no such image"), "{said}");
    assert!(begun.elapsed() < Duration::from_secs(60), "{said}");
}

/// 8 with 9 MiB each, 32 with 3: the first receives more than a segment.
fn many_processes_gather() {
    for (processes, mib) in [(8, 9), (32, 3)] {
        let (is_well, said) = run(processes, &format!("gather {mib} MiB"));
        assert!(is_well, "{processes} processes: {said}");
    }
}

fn machines_have_the_means_of_one() {
    for machine in ["1", "2", "3", "6"] {
        let (is_well, said) = run(6, &format!("machines of {machine}"));
        assert!(is_well, "{said}");
    }
    let (is_well, said) = run(3, "machines of 2");
    let refusal = "3 processes are not machines of 2 each";
    assert!(!is_well && said.contains(refusal), "{said}");
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
    use std::{process, thread};

    use lean_replicas::{Exchange, Known, Mpi, Recipients, Replicas};

    use super::*;

    /// As an operator's `fn main() -> Result`, whose error is printed when everything is dropped.
    pub(super) fn run(program: &str) -> Result<(), Box<dyn Error>> {
        if let Some(mib) = program.strip_prefix("gather ") {
            return gather(mib.trim_end_matches(" MiB").parse()?);
        }
        if program == "stopped" {
            return leave_stopped_others();
        }
        if let Some(processes) = program.strip_prefix("machines of ") {
            return mean(processes.parse()?);
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

    /// The second process stops itself, and the first leaves with an error.
    fn leave_stopped_others() -> Result<(), Box<dyn Error>> {
        let replicas = Replicas::new(Mpi::initialize)?.with_timeout(Duration::from_secs(2));
        replicas.meet("the beginning")?;
        if replicas.rank() == 1 {
            let this = process::id().to_string();
            Command::new("kill").args(["-STOP", &this]).status()?;
        }
        thread::sleep(Duration::from_millis(500));
        Err("no such image".into())
    }

    /// What is freed after the replicas and before the error is printed.
    struct SlowToDrop;

    impl Drop for SlowToDrop {
        fn drop(&mut self) {
            thread::sleep(Duration::from_millis(300));
        }
    }

    /// The mean of numbers that add up to something else in another order.
    fn mean(of_a_machine: usize) -> Result<(), Box<dyn Error>> {
        let replicas = Replicas::new(move || Mpi::initialize()?.in_machines_of(of_a_machine))?;
        let (rank, size) = (replicas.rank(), replicas.size());
        let exchange = Exchange::new(replicas);
        exchange.know(vec![Known {
            id: 0,
            path: "weight".into(),
            size: 4,
            is_trained: true,
        }]);
        let of = |rank: usize| -> Vec<f32> {
            let number = |at: usize| [1e8, 1.0, -1e8, 1e-8][(at + rank) % 4] * (1 + at % 7) as f32;
            (0..300_001).map(number).collect()
        };
        let mut expected = of(0);
        for rank in 1..size {
            for (sum, number) in expected.iter_mut().zip(of(rank)) {
                *sum += number;
            }
        }
        let expected: Vec<_> = expected.iter().map(|sum| sum / size as f32).collect();
        let values = of(rank);
        let (pending, _) = exchange.mean(0, "f32", values, Recipients::All, |mean| mean)?;
        assert_eq!(pending.wait()?, expected);
        Ok(())
    }

    /// Other numbers of bytes from each, in several segments.
    fn gather(mib: usize) -> Result<(), Box<dyn Error>> {
        let exchange = Exchange::new(Replicas::new(Mpi::initialize)?);
        let (rank, size) = (exchange.replicas().rank(), exchange.replicas().size());
        let of = |rank: usize| vec![rank as u8; (mib << 20) + rank];
        let gathered = exchange.gather("bytes", of(rank))?;
        match rank {
            0 => assert!((0..size).all(|rank| gathered[rank] == of(rank))),
            _ => assert!(gathered.iter().all(Vec::is_empty)),
        }
        Ok(())
    }
}

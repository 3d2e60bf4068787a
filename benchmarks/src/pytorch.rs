//! A Python that has PyTorch. This program contains the Python programs of `pytorch/`.

use crate::machine::TorchVersions;
use crate::process;
use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

const PROGRAMS: [(&str, &str); 4] = [
    ("run.py", include_str!("../pytorch/run.py")),
    ("models.py", include_str!("../pytorch/models.py")),
    ("optimizers.py", include_str!("../pytorch/optimizers.py")),
    ("memory.py", include_str!("../pytorch/memory.py")),
];

/// Time limit of loading PyTorch, which is slow the first time.
const START_UP: Duration = Duration::from_secs(180);

/// A Python that has PyTorch.
#[derive(Debug)]
pub struct PyTorch {
    python: PathBuf,
    programs: TempDir,
    /// Its versions.
    pub versions: TorchVersions,
}

impl PyTorch {
    /// Asks a Python for its versions.
    ///
    /// # Errors
    ///
    /// It has no PyTorch.
    pub fn find(python: &Path) -> Result<Self> {
        let programs = TempDir::with_prefix("benchmarks-")?;
        for (name, text) in PROGRAMS {
            fs::write(programs.path().join(name), text)?;
        }
        let output = process::run(call(python, &programs).arg("versions"), START_UP)?;
        let output = output.context("PyTorch did not load in time")?;
        let versions = serde_json::from_str(&output).context("it wrote no versions")?;
        Ok(Self {
            python: python.into(),
            programs,
            versions,
        })
    }

    /// The command that measures the run that follows as JSON.
    pub fn command(&self) -> Command {
        call(&self.python, &self.programs)
    }
}

fn call(python: &Path, programs: &TempDir) -> Command {
    let mut command = Command::new(python);
    command.arg(programs.path().join("run.py"));
    // Keeps Python from writing `__pycache__` beside the programs.
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

//! PyTorch, where there is a Python that has it.
//!
//! The programs in `pytorch/` travel inside this one.

use crate::measure::{Measured, Purpose};
use crate::process;
use crate::results::Settings;
use crate::shape::Shape;
use anyhow::{Context, Result};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
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

/// To load PyTorch for the first time can take this long.
const START_UP: Duration = Duration::from_secs(180);

/// How PyTorch's Adam gets its gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum TorchMode {
    /// All parameters in a few calls, PyTorch's choice on CUDA
    Foreach,
    /// One parameter after the other
    NoForeach,
    /// All parameters in one kernel
    Fused,
    /// One parameter at a time inside the backward pass, as in PyTorch's tutorial
    Hook,
    /// optimi's gradient release
    Optimi,
}

/// A run in PyTorch; travels to its process as JSON.
#[derive(Clone, Debug, Serialize)]
pub struct TorchSpec {
    /// The model.
    pub model: Shape,
    /// `cpu` or `cuda`.
    pub device: String,
    /// How Adam gets its gradients.
    pub mode: TorchMode,
    /// What the process is for.
    pub measure: Purpose,
    /// Images or sequences in a step.
    pub batch_size: usize,
    /// What all runs of a suite have in common.
    #[serde(flatten)]
    pub settings: Settings,
}

/// What a Python has.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TorchVersions {
    /// Python's own version.
    pub python: String,
    /// PyTorch's.
    pub torch: String,
    /// optimi's, if it is there.
    pub optimi: Option<String>,
    /// That of CUDA, if PyTorch sees a GPU.
    pub cuda: Option<String>,
    /// The GPU that it sees.
    pub gpu: Option<String>,
    /// Threads on the CPU.
    pub threads: usize,
}

/// A Python that has PyTorch.
#[derive(Debug)]
pub struct PyTorch {
    python: PathBuf,
    programs: TempDir,
    /// What it has.
    pub versions: TorchVersions,
}

impl PyTorch {
    /// Looks whether this Python has PyTorch.
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

    /// Measures one run in a process of its own; none if it took longer than `limit`.
    pub fn measure(&self, spec: &TorchSpec, limit: Duration) -> Result<Option<Measured>> {
        let mut command = call(&self.python, &self.programs);
        command.arg(serde_json::to_string(spec)?);
        let Some(output) = process::run(&mut command, limit)? else {
            return Ok(None);
        };
        let measured = serde_json::from_str(&output).context("PyTorch wrote no result")?;
        Ok(Some(measured))
    }
}

fn call(python: &Path, programs: &TempDir) -> Command {
    let mut command = Command::new(python);
    command.arg(programs.path().join("run.py"));
    // Nothing is to be written beside the programs.
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

//! The machine and the versions behind the numbers.

use serde::{Deserialize, Serialize};

/// The machine.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// Operating system and processor family.
    pub system: String,
    /// Model name of the processor.
    pub processor: Option<String>,
    /// Hardware threads that this process may use.
    pub threads: usize,
    /// Bytes of main memory.
    pub memory_bytes: Option<u64>,
    /// GPUs that NVIDIA's driver lists: name, driver, memory.
    pub gpus: Vec<String>,
    /// Adapters that wgpu lists, in a build that has wgpu.
    pub adapters: Vec<String>,
}

impl Machine {
    /// The machine in one line.
    pub fn describe(&self) -> String {
        let mut parts = self.gpus.clone();
        let adapters = self.adapters.iter();
        parts.extend(adapters.map(|name| format!("wgpu adapter {name}")));
        parts.extend(self.processor.clone());
        parts.push(format!("{} threads", self.threads));
        if let Some(bytes) = self.memory_bytes {
            parts.push(format!("{:.0} GiB", bytes as f64 / f64::from(1 << 30)));
        }
        parts.push(self.system.clone());
        parts.join(", ")
    }
}

/// Versions of the libraries.
#[derive(Clone, Debug, Serialize)]
pub struct Versions {
    /// This workspace.
    pub gradient_release: String,
    /// Burn 0.21, as in `Cargo.lock`.
    pub burn: String,
    /// Burn 0.22, as in `Cargo.lock`.
    pub burn_0_22: String,
    /// cubecl, below Burn's GPU backends.
    pub cubecl: String,
    /// The compiler.
    pub rustc: String,
    /// `release` or `debug`.
    pub profile: String,
    /// PyTorch and what is around it.
    pub pytorch: Option<TorchVersions>,
}

impl Versions {
    /// The versions in one line.
    pub fn describe(&self) -> String {
        let mut text = format!(
            "Burn {} and {}, cubecl {}, {}, {} build",
            self.burn, self.burn_0_22, self.cubecl, self.rustc, self.profile
        );
        if let Some(pytorch) = &self.pytorch {
            text += &format!("; PyTorch {}, Python {}", pytorch.torch, pytorch.python);
            if let Some(optimi) = &pytorch.optimi {
                text += &format!(", optimi {optimi}");
            }
            if let Some(torchao) = &pytorch.torchao {
                text += &format!(", torchao {torchao}");
            }
        }
        text
    }
}

/// Versions of a Python with PyTorch.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TorchVersions {
    /// Python.
    pub python: String,
    /// PyTorch.
    pub torch: String,
    /// optimi, if it is installed.
    pub optimi: Option<String>,
    /// torchao, if it is installed.
    pub torchao: Option<String>,
    /// CUDA, if PyTorch sees a GPU.
    pub cuda: Option<String>,
    /// Name of that GPU.
    pub gpu: Option<String>,
    /// Threads on the CPU.
    pub threads: usize,
}

//! A file system with little room, for tests of what happens when it is full.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Mounted on a folder until it is dropped.
#[derive(Debug)]
pub struct SmallDisk(PathBuf);

impl SmallDisk {
    /// A disk of so many KiB. `None` if this process may not mount one, which it says.
    pub fn mount(folder: &Path, kib: usize) -> Option<Self> {
        if !mount(&["-t", "tmpfs", "-o", &size(kib), "tmpfs"], folder) {
            eprintln!("skipped: this process may not mount a small file system");
            return None;
        }
        Some(Self(folder.to_path_buf()))
    }

    /// Gives it another size.
    ///
    /// # Panics
    ///
    /// If the system does not.
    pub fn resize(&self, kib: usize) {
        let options = format!("remount,{}", size(kib));
        assert!(mount(&["-o", &options], &self.0), "it was mounted before");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

fn size(kib: usize) -> String {
    format!("size={kib}k")
}

fn mount(options: &[&str], folder: &Path) -> bool {
    let mount = Command::new("mount").args(options).arg(folder).output();
    mount.is_ok_and(|done| done.status.success())
}

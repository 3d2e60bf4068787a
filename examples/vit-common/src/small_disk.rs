//! A file system with little room, for tests of what happens when it is full.

use crate::terminal::note;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{self, Command};

/// Mounted on a folder until it is dropped.
#[derive(Debug)]
pub struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Whether this process may mount one. A test that needs it counts as ignored, else.
    pub fn can_mount() -> bool {
        let folder = env::temp_dir().join(format!("small-disk-{}", process::id()));
        let is_mounted = fs::create_dir(&folder).is_ok() && Self::mount(&folder, 24).is_some();
        let _ = fs::remove_dir(&folder);
        is_mounted
    }

    /// A disk of so many KiB. `None` if this process may not mount one, which it says.
    pub fn mount(folder: &Path, kib: usize) -> Option<Self> {
        if !mount(&["-t", "tmpfs", "-o", &size(kib), "tmpfs"], folder) {
            note("this process may not mount a small file system");
            return None;
        }
        Some(Self(folder.to_path_buf()))
    }

    /// Gives it another size, and lets programs write.
    ///
    /// # Panics
    ///
    /// If the system does not.
    pub fn resize(&self, kib: usize) {
        self.remount(&format!("rw,{}", size(kib)));
    }

    /// Lets no program write.
    ///
    /// # Panics
    ///
    /// If the system does not.
    pub fn make_read_only(&self) {
        self.remount("ro");
    }

    fn remount(&self, options: &str) {
        let options = format!("remount,{options}");
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

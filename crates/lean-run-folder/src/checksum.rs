//! The checksum beside a file, as `sha256sum` writes and checks it.
//!
//! ```text
//! # run 5c1f…
//! 9b07…  model-3.mpk
//! ```

use std::{
    fs::{self, File},
    io::{self, ErrorKind},
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};

use crate::{
    UNFINISHED,
    disk::{publish, remove},
    error::at,
};

/// The end of a checksum's file name, after the name of its file.
pub const EXTENSION: &str = ".sha256";

/// Prefix of the line that names the run of a file. `sha256sum` skips it.
const RUN: &str = "# run ";

/// A description of a file that was saved.
#[derive(Clone, Debug, PartialEq)]
pub struct Checksum {
    /// SHA-256 of its bytes.
    file: String,
    /// SHA-256 of what the program has said of its run, if it has.
    run: Option<String>,
}

/// Tells a run from others, in few bytes.
pub fn digest_of_run(settings: &[u8]) -> String {
    hex(Sha256::digest(settings).as_slice())
}

/// The path of the checksum of a file.
pub fn path_of(file: &Path) -> PathBuf {
    file.with_file_name(name_of(file) + EXTENSION)
}

/// Whether a file is as it was saved, and by the run of this [digest](digest_of_run). A file without
/// a checksum counts as both.
///
/// # Errors
///
/// What it is not, as an error of the kind `InvalidData`; or it cannot be read.
pub fn verify(file: &Path, run: Option<&str>) -> io::Result<()> {
    let Some(saved) = Checksum::read(file)? else {
        return Ok(());
    };
    if saved.file != digest(file)? {
        let text = format!("{} is not as it was saved", file.display());
        return Err(io::Error::new(ErrorKind::InvalidData, text));
    }
    if let (Some(saved), Some(run)) = (&saved.run, run)
        && saved != run
    {
        let text = format!("{} was saved by a run with other settings", file.display());
        return Err(io::Error::new(ErrorKind::InvalidData, text));
    }
    Ok(())
}

/// Removes checksums whose files are gone, if they have such a name: Burn removes old checkpoints, and
/// knows of no checksums.
///
/// # Errors
///
/// If the folder cannot be read, or a checksum not removed.
pub fn remove_orphans(folder: &Path, is_own: impl Fn(&str) -> bool) -> io::Result<()> {
    for entry in fs::read_dir(folder).map_err(|error| at(folder, &error))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if let Some(of) = name.strip_suffix(EXTENSION)
            // Another thread may be writing it.
            && !of.starts_with(UNFINISHED)
            && is_own(of)
            && !path.with_file_name(of).exists()
        {
            remove(&path)?;
        }
    }
    Ok(())
}

impl Checksum {
    /// Reads a file that was saved, by the run of this [digest](digest_of_run) if it is known.
    ///
    /// # Errors
    ///
    /// If the file cannot be read.
    pub fn new(file: &Path, run: Option<String>) -> io::Result<Self> {
        let file = digest(file)?;
        Ok(Self { file, run })
    }

    /// Gives the file, once it is written, its name, in place of one that is there, and writes the
    /// checksum beside it.
    ///
    /// # Errors
    ///
    /// If the disk does not take them, or a checksum that is there cannot be removed.
    pub fn publish(&self, unfinished: &Path, file: &Path) -> io::Result<()> {
        // Never beside a file that it is not of: killed in between, there is none.
        remove(&path_of(file))?;
        publish(unfinished, file)?;
        self.write(file)
    }

    fn write(&self, file: &Path) -> io::Result<()> {
        let name = name_of(file);
        let run = self.run.iter().map(|run| format!("{RUN}{run}\n"));
        let text = run.collect::<String>() + &format!("{}  {name}\n", self.file);
        let unfinished = file.with_file_name(format!("{UNFINISHED}{name}{EXTENSION}"));
        fs::write(&unfinished, text)?;
        publish(&unfinished, &path_of(file))
    }

    /// Reads that of a file. `None` if there is none, as where an earlier version has saved.
    fn read(file: &Path) -> io::Result<Option<Self>> {
        let path = path_of(file);
        let text = match fs::read(&path) {
            // What is no text has no line of a checksum.
            Ok(bytes) => String::from_utf8(bytes).unwrap_or_default(),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                let text = format!("cannot read {}: {error}", path.display());
                return Err(io::Error::new(error.kind(), text));
            }
        };
        let (runs, files): (Vec<_>, Vec<_>) = text.lines().partition(|line| line.starts_with('#'));
        let run = runs.iter().find_map(|line| line.strip_prefix(RUN));
        let digest = match files.as_slice() {
            [line] => line.strip_suffix(&format!("  {}", name_of(file))),
            _ => None,
        };
        let of_another = || {
            let text = format!("{} is no checksum of {}", path.display(), name_of(file));
            io::Error::new(ErrorKind::InvalidData, text)
        };
        Ok(Some(Self {
            file: digest.ok_or_else(of_another)?.into(),
            run: run.map(String::from),
        }))
    }
}

fn name_of(file: &Path) -> String {
    let name = file.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// SHA-256 of the bytes of a file, as lower-case hexadecimal digits. The file is not held in memory.
///
/// # Errors
///
/// If it cannot be read.
pub fn digest(file: &Path) -> io::Result<String> {
    let mut hasher = Sha256::new();
    io::copy(&mut File::open(file)?, &mut hasher)?;
    Ok(hex(hasher.finalize().as_slice()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checksum_that_cannot_be_read_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("model-3.mpk");
        fs::write(&file, "weights").unwrap();
        let checksum = path_of(&file);
        fs::write(&checksum, b"\xff\xfe  model-3.mpk\n").unwrap();
        let error = verify(&file, None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
        let name = checksum.display();
        assert_eq!(
            error.to_string(),
            format!("{name} is no checksum of model-3.mpk")
        );
        fs::remove_file(&checksum).unwrap();
        fs::create_dir(&checksum).unwrap();
        let text = verify(&file, None).unwrap_err().to_string();
        assert!(text.starts_with(&format!("cannot read {name}: ")), "{text}");
    }
}

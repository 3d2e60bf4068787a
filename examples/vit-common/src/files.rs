//! Files that are complete or not there.

use anyhow::Result;
use serde::Serialize;
use std::fs::{self, File};
use std::path::Path;

/// Settings and results are written to this file, which is then renamed. A rename is atomic, so a
/// file under its final name is complete.
const UNFINISHED: &str = "unfinished.json";

/// Writes `value` to the file `name` of the folder.
pub fn write_json(folder: &Path, name: &str, value: &impl Serialize) -> Result<()> {
    let unfinished = folder.join(UNFINISHED);
    let mut file = File::create(&unfinished)?;
    serde_json::to_writer_pretty(&mut file, value)?;
    file.sync_all()?;
    Ok(fs::rename(unfinished, folder.join(name))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        for value in ["long enough to leave something", "short"] {
            write_json(folder.path(), "a.json", &value).unwrap();
            let read = fs::read_to_string(folder.path().join("a.json")).unwrap();
            assert_eq!(read, format!("{value:?}"));
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}

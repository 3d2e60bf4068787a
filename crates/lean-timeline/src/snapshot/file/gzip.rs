//! A snapshot as a stream of bytes.

use std::io::{self, BufWriter, Read, Write};
use std::path::Path;

use flate2::{Compression, read::GzDecoder, write::GzEncoder};

use super::{
    check::check,
    columns::{Contents, Header},
};
use crate::snapshot::{
    data::Snapshot,
    error::SnapshotError,
    format::{FORMAT, VERSION},
};

/// The two bytes that every gzip begins with.
const GZIP: [u8; 2] = [0x1f, 0x8b];

pub(super) fn compress(snapshot: &Snapshot, to: impl Write) -> io::Result<()> {
    let mut gzip = BufWriter::new(GzEncoder::new(to, Compression::default()));
    serde_json::to_writer(&mut gzip, &Contents::of(snapshot))?;
    let gzip = gzip.into_inner().map_err(io::IntoInnerError::into_error)?;
    gzip.finish()?.flush()
}

/// Reads a snapshot, and tells what else it may be if it is none.
pub(super) fn decompress(mut from: impl Read, path: &Path) -> Result<Snapshot, SnapshotError> {
    let foreign = || SnapshotError::Foreign { path: path.into() };
    let inconsistent = |problem| SnapshotError::Inconsistent {
        path: path.into(),
        problem,
    };
    let mut packed = Vec::new();
    from.read_to_end(&mut packed)
        .map_err(|reason| SnapshotError::Read {
            path: path.into(),
            reason,
        })?;
    // An empty file may be all that was written before the disk was full.
    if !GZIP.starts_with(&packed[..packed.len().min(GZIP.len())]) {
        return Err(foreign());
    }
    let mut json = Vec::new();
    GzDecoder::new(packed.as_slice())
        .read_to_end(&mut json)
        .map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => SnapshotError::Truncated { path: path.into() },
            _ => SnapshotError::Damaged {
                path: path.into(),
                problem: error.to_string(),
            },
        })?;
    drop(packed);
    match serde_json::from_slice::<Header>(&json) {
        Ok(Header { format, version }) if format == FORMAT && version == VERSION => {}
        Ok(Header { format, version }) if format == FORMAT => {
            return Err(SnapshotError::Newer {
                path: path.into(),
                version,
            });
        }
        _ => return Err(foreign()),
    }
    let contents = serde_json::from_slice::<Contents<'_>>(&json);
    let snapshot = contents
        .map_err(|error| error.to_string())
        .and_then(Contents::into_snapshot)
        .map_err(inconsistent)?;
    check(&snapshot).map_err(inconsistent)?;
    Ok(snapshot)
}

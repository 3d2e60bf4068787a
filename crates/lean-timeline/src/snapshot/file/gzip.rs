//! A snapshot as a stream of bytes.

use std::io::{self, BufWriter, Read, Write};

use flate2::{Compression, read::GzDecoder, write::GzEncoder};

use super::{
    check::check,
    columns::{Contents, Header},
    problem::Problem,
};
use crate::snapshot::{
    data::Snapshot,
    format::{FORMAT, VERSION},
};

/// The two bytes that every gzip begins with.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Writes a snapshot as gzip of JSON.
pub(super) fn compress(snapshot: &Snapshot, to: impl Write) -> io::Result<()> {
    let mut gzip = BufWriter::new(GzEncoder::new(to, Compression::default()));
    serde_json::to_writer(&mut gzip, &Contents::of(snapshot))?;
    let gzip = gzip.into_inner().map_err(io::IntoInnerError::into_error)?;
    gzip.finish()?.flush()
}

/// Reads a snapshot, and tells what else it may be if it is none.
pub(super) fn decompress(mut from: impl Read) -> Result<Snapshot, Problem> {
    let mut packed = Vec::new();
    from.read_to_end(&mut packed).map_err(Problem::Io)?;
    if !packed.starts_with(&GZIP) {
        // An empty file, or one byte of gzip: all that was written before the disk was full.
        return Err(match GZIP.starts_with(&packed) {
            true => Problem::Truncated,
            false => Problem::Foreign,
        });
    }
    let mut json = Vec::new();
    if let Err(error) = GzDecoder::new(packed.as_slice()).read_to_end(&mut json) {
        let is_ours = can_begin_ours(&json);
        return Err(match error.kind() {
            _ if !is_ours => Problem::Foreign,
            io::ErrorKind::UnexpectedEof => Problem::Truncated,
            _ => Problem::Damaged(error.to_string()),
        });
    }
    drop(packed);
    match serde_json::from_slice::<Contents<'_>>(&json) {
        Ok(contents) if contents.format == FORMAT && contents.version == VERSION => {
            let snapshot = contents.into_snapshot().map_err(Problem::Inconsistent)?;
            check(&snapshot)?;
            Ok(snapshot)
        }
        Ok(Contents {
            format, version, ..
        }) => Err(other(&format, version, "")),
        Err(error) => Err(match serde_json::from_slice::<Header>(&json) {
            Ok(Header { format, version }) => other(&format, version, &error.to_string()),
            Err(_) if json.len() >= FORMAT.len() && can_begin_ours(&json) => {
                Problem::Damaged(error.to_string())
            }
            Err(_) => Problem::Foreign,
        }),
    }
}

/// Why JSON that has a header is not a snapshot that can be read.
fn other(format: &str, version: u64, problem: &str) -> Problem {
    match version {
        _ if format != FORMAT => Problem::Foreign,
        VERSION => Problem::Inconsistent(problem.into()),
        0 => Problem::Inconsistent("there is no version 0 of the format".into()),
        _ => Problem::Newer(version),
    }
}

/// Whether a text can be the beginning of a snapshot.
fn can_begin_ours(json: &[u8]) -> bool {
    let dense: Vec<u8> = json
        .iter()
        .take(100)
        .copied()
        .filter(|byte| !byte.is_ascii_whitespace())
        .collect();
    let ours = format!(r#"{{"format":"{FORMAT}""#);
    let length = ours.len().min(dense.len());
    dense[..length] == ours.as_bytes()[..length]
}

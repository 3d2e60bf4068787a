//! Numbers, names and tables as text.

use comfy_table::presets::ASCII_MARKDOWN;
use comfy_table::{CellAlignment, ContentArrangement, Table};

/// The longest line, in characters.
pub(super) const WIDTH: usize = 100;

/// Bytes in MiB, without the unit.
pub(super) fn mib(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / f64::from(1 << 20))
}

/// A difference of bytes in MiB, with its sign and without the unit.
pub(super) fn mib_more(bytes: i64) -> String {
    let text = format!("{:+.1}", bytes as f64 / f64::from(1 << 20));
    match text.as_str() {
        "-0.0" | "+0.0" => "0.0".into(),
        _ => text,
    }
}

/// A share, in per cent.
pub(super) fn percent(part: u64, whole: u64) -> String {
    match whole {
        0 => "-".into(),
        whole => format!("{:.1} %", 100.0 * part as f64 / whole as f64),
    }
}

/// A name without control characters, which a terminal would obey, in at most 100 characters. A
/// longer one loses its middle.
pub(super) fn clean(name: &str) -> String {
    let shown = |char: char| if char.is_control() { '?' } else { char };
    let name: Vec<char> = name.chars().map(shown).collect();
    match name.len() {
        0 => "-".into(),
        1..=WIDTH => name.into_iter().collect(),
        length => {
            let (head, tail) = (&name[..WIDTH / 2 - 1], &name[length - WIDTH / 2..]);
            head.iter().chain(&['…']).chain(tail).collect()
        }
    }
}

/// A text of several lines in one.
pub(super) fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A table whose first columns, so many, hold numbers. Long names are wrapped.
pub(super) fn table(header: &[&str], numbers: std::ops::Range<usize>) -> Table {
    let mut table = Table::new();
    table
        .load_preset(ASCII_MARKDOWN)
        .set_header(header)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(WIDTH as u16);
    for column in numbers {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

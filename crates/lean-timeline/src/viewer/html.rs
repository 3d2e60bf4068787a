//! The page: one HTML file with its snapshots, styles and scripts. It makes no requests.

use super::text::escape;
use crate::snapshot::{Snapshot, SnapshotError};
use base64::engine::general_purpose::STANDARD;
use base64::write::EncoderStringWriter;

const PAGE: &str = include_str!("page/index.html");

/// The theme first, whose variables the others read.
const STYLES: [&str; 7] = [
    include_str!("page/style/theme.css"),
    include_str!("page/style/base.css"),
    include_str!("page/style/bar.css"),
    include_str!("page/style/panel.css"),
    include_str!("page/style/legend.css"),
    include_str!("page/style/tooltip.css"),
    include_str!("page/style/holders.css"),
];

/// Each after those whose functions and classes it uses.
const SCRIPTS: [&str; 15] = [
    include_str!("page/units.js"),
    include_str!("page/snapshot.js"),
    include_str!("page/range_max.js"),
    include_str!("page/totals.js"),
    include_str!("page/lives.js"),
    include_str!("page/scale.js"),
    include_str!("page/pixels.js"),
    include_str!("page/paint.js"),
    include_str!("page/panel_text.js"),
    include_str!("page/legend.js"),
    include_str!("page/list.js"),
    include_str!("page/drawing.js"),
    include_str!("page/pointer.js"),
    include_str!("page/panel.js"),
    include_str!("page/main.js"),
];

/// The page of one snapshot, or of two side by side.
///
/// # Errors
///
/// A snapshot contradicts itself.
pub fn page(snapshots: &[Snapshot]) -> Result<String, SnapshotError> {
    let titles: Vec<_> = snapshots.iter().map(|of| of.title.as_str()).collect();
    let data = snapshots
        .iter()
        .map(embedded)
        .collect::<Result<String, _>>()?;
    Ok(fill(PAGE, |name| match name {
        "title" => escape(&titles.join(" | ")),
        "style" => STYLES.join("\n"),
        "snapshots" => data.clone(),
        // In a function, so that nothing becomes a global that is not meant to.
        "script" => format!("(() => {{\n\"use strict\";\n{}}})();", SCRIPTS.join("\n")),
        name => unreachable!("the page has no placeholder {name}"),
    }))
}

/// The file of a snapshot, as a script element that the browser does not run.
fn embedded(snapshot: &Snapshot) -> Result<String, SnapshotError> {
    let mut file = EncoderStringWriter::new(&STANDARD);
    snapshot.write(&mut file)?;
    Ok(format!(
        "<script type=\"application/gzip\" data-snapshot>{}</script>\n",
        file.into_inner()
    ))
}

/// Replaces every `{{name}}` of a template, in one pass: a value may contain `{{name}}` itself.
fn fill(template: &str, value: impl Fn(&str) -> String) -> String {
    let mut parts = template.split("{{");
    let mut page: String = parts.next().unwrap_or_default().into();
    for part in parts {
        let (name, rest) = part
            .split_once("}}")
            .expect("every {{ of the template is closed");
        page += &value(name);
        page += rest;
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_title_cannot_leave_its_element() {
        let snapshot = Snapshot {
            title: "</title><script>alert(1)</script> {{style}} & more".into(),
            ..Snapshot::default()
        };
        let page = page(&[snapshot]).unwrap();
        let text = "&lt;/title&gt;&lt;script&gt;alert(1)&lt;/script&gt; {{style}} &amp; more";
        assert!(page.contains(&format!("<title>{text}</title>")));
        assert!(!page.contains("alert(1)</script>"));
    }

    #[test]
    fn the_page_makes_no_requests() {
        let page = page(&[Snapshot::default()]).unwrap();
        assert!(page.contains("default-src 'none'"));
        for way_out in ["http:", "https:", "url(", "src=", "@import", "import("] {
            assert!(!page.contains(way_out), "{way_out}");
        }
    }
}

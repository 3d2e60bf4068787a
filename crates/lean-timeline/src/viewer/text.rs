//! Numbers, names and sentences as text.

use textwrap::{Options, WordSplitter};

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

/// A whole number, its digits in groups of three.
pub(super) fn count(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Microseconds, in microseconds, milliseconds or seconds.
pub(super) fn time(microseconds: u64) -> String {
    match microseconds {
        0..1_000 => format!("{microseconds} us"),
        1_000..1_000_000 => format!("{:.1} ms", microseconds as f64 / 1e3),
        _ => format!("{:.2} s", microseconds as f64 / 1e6),
    }
}

/// A name in at most `width` characters. A longer one loses its middle. Control characters, which a
/// terminal would obey, become question marks.
pub(super) fn fit(name: &str, width: usize) -> String {
    let clean: Vec<char> = name
        .chars()
        .map(|char| if char.is_control() { '?' } else { char })
        .collect();
    if clean.len() <= width {
        return clean.into_iter().collect();
    }
    let room = width.saturating_sub(1);
    let (head, tail) = (room / 2, room - room / 2);
    let head = clean[..head].iter();
    let tail = clean[clean.len() - tail..].iter();
    head.chain(['…'].iter()).chain(tail).collect()
}

/// Sentences in lines of at most `width` columns, the first one after `lead`, the others after
/// `indent`.
pub(super) fn wrap(lead: &str, text: &str, width: usize, indent: &str) -> String {
    let options = Options::new(width)
        .initial_indent(lead)
        .subsequent_indent(indent)
        .break_words(false)
        .word_splitter(WordSplitter::NoHyphenation);
    textwrap::fill(&one_line(text), options)
}

/// A text of several lines in one, as an error is printed.
pub(super) fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A text as the content of an element of HTML or SVG, or as the value of an attribute in double
/// quotes.
pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_exact_to_a_tenth() {
        assert_eq!(mib(0), "0.0");
        assert_eq!(mib(3 << 19), "1.5");
        assert_eq!(mib(4678 << 20), "4678.0");
        assert_eq!(mib_more(-(3 << 19)), "-1.5");
        assert_eq!(mib_more(3 << 19), "+1.5");
        assert_eq!(mib_more(-1), "0.0");
        assert_eq!(percent(1, 4), "25.0 %");
        assert_eq!(percent(1, 0), "-");
    }

    #[test]
    fn digits_are_grouped() {
        let texts = [0, 999, 1_000, 1_234_567].map(count);
        assert_eq!(texts, ["0", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn times_have_a_unit_that_suits_them() {
        let texts = [999, 1_500, 2_345_678].map(time);
        assert_eq!(texts, ["999 us", "1.5 ms", "2.35 s"]);
    }

    #[test]
    fn a_long_name_loses_its_middle() {
        assert_eq!(fit("weight", 6), "weight");
        assert_eq!(fit("blocks.3.mlp.fc1.weight", 11), "block…eight");
        assert_eq!(fit("a\u{1b}[31m", 9), "a?[31m");
    }

    #[test]
    fn sentences_are_wrapped() {
        assert_eq!(wrap("- ", "one two three", 9, "  "), "- one two\n  three");
        assert_eq!(wrap("", "unbreakable", 3, ""), "unbreakable");
        assert_eq!(wrap("", "a-b well-kept", 6, ""), "a-b\nwell-kept");
        assert_eq!(wrap("  ", "one\n two   three", 80, ""), "  one two three");
    }

    #[test]
    fn a_text_becomes_one_line() {
        assert_eq!(one_line(" one\n  two\tthree\n"), "one two three");
    }

    #[test]
    fn markup_becomes_text() {
        let text = r#"<a href="b">&amp;</a>"#;
        let escaped = "&lt;a href=&quot;b&quot;&gt;&amp;amp;&lt;/a&gt;";
        assert_eq!(escape(text), escaped);
    }
}

//! How often each leaf is a parent on the tape of a backward pass: so many registrations of its
//! gradient are to come.
//!
//! Burn shows its tape in one place: the `Debug` text of the checkpointer ends with `NodeTree { map:
//! {NodeId { value: 3 }: [NodeId { value: 1 }, ..], ..} } }`. It is read as it is written, without
//! keeping it.

use std::collections::HashMap;
use std::fmt::{self, Write};

use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;

/// Counts how often the nodes in `counts` are parents. Returns whether the text was understood, and
/// has the node `root`.
pub(super) fn count(
    checkpointer: &Checkpointer,
    root: NodeId,
    counts: &mut HashMap<u64, usize>,
) -> bool {
    read(format_args!("{checkpointer:?}"), root.value, counts)
}

fn read(text: fmt::Arguments<'_>, root: u64, counts: &mut HashMap<u64, usize>) -> bool {
    let mut reader = Reader {
        counts,
        root,
        has_root: false,
        place: Place::Before,
        literal: b"",
        number: 0,
    };
    let is_written = reader.write_fmt(text).is_ok();
    is_written && reader.place == Place::End && reader.literal.is_empty() && reader.has_root
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Before,
    FirstNode,
    NodeNumber,
    FirstParent,
    ParentNumber,
    AfterParent,
    AfterNode,
    End,
    Unknown,
}

struct Reader<'a> {
    counts: &'a mut HashMap<u64, usize>,
    root: u64,
    has_root: bool,
    place: Place,
    /// What has to come before the text goes on at `place`.
    literal: &'static [u8],
    number: u64,
}

impl Reader<'_> {
    fn expect(&mut self, literal: &'static [u8], then: Place) {
        (self.literal, self.place, self.number) = (literal, then, 0);
    }

    fn byte(&mut self, byte: u8) {
        if let Some((next, others)) = self.literal.split_first() {
            match *next == byte {
                true => self.literal = others,
                false => self.expect(b"", Place::Unknown),
            }
            return;
        }
        match (self.place, byte) {
            (Place::FirstNode, b'N') => self.expect(b"odeId { value: ", Place::NodeNumber),
            (Place::AfterNode, b',') => self.expect(b" NodeId { value: ", Place::NodeNumber),
            (Place::FirstNode | Place::AfterNode, b'}') => self.expect(b" } }", Place::End),
            (Place::NodeNumber, b' ') => {
                self.has_root |= self.number == self.root;
                self.expect(b"}: [", Place::FirstParent);
            }
            (Place::FirstParent, b'N') => self.expect(b"odeId { value: ", Place::ParentNumber),
            (Place::AfterParent, b',') => self.expect(b" NodeId { value: ", Place::ParentNumber),
            (Place::FirstParent | Place::AfterParent, b']') => self.place = Place::AfterNode,
            (Place::ParentNumber, b' ') => {
                if let Some(count) = self.counts.get_mut(&self.number) {
                    *count += 1;
                }
                self.expect(b"}", Place::AfterParent);
            }
            (Place::NodeNumber | Place::ParentNumber, b'0'..=b'9') => {
                let digit = u64::from(byte - b'0');
                self.number = self.number.wrapping_mul(10).wrapping_add(digit);
            }
            _ => self.place = Place::Unknown,
        }
    }
}

impl Write for Reader<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // `derive(Debug)` writes the name of a type in one piece. What is written before it are the
        // states of operations, in which a type of that name may be, too.
        if text == "NodeTree" {
            self.counts.values_mut().for_each(|count| *count = 0);
            self.has_root = false;
            self.expect(b" { map: {", Place::FirstNode);
        } else if self.place != Place::Before {
            text.bytes().for_each(|byte| self.byte(byte));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pieces in which a `derive(Debug)` writes its text.
    struct Pieces<'a>(&'a [&'a str]);

    impl fmt::Display for Pieces<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.0.iter().try_for_each(|piece| f.write_str(piece))
        }
    }

    fn counted(pieces: &[&str]) -> Option<[usize; 2]> {
        let mut counts = HashMap::from([(1, 0), (22, 0)]);
        let understood = read(format_args!("{}", Pieces(pieces)), 7, &mut counts);
        understood.then(|| [counts[&1], counts[&22]])
    }

    const TREE: &str = " { map: {NodeId { value: 7 }: [NodeId { value: 1 }, NodeId { value: 22 }], \
                        NodeId { value: 1 }: [], NodeId { value: 3 }: [NodeId { value: 1 }]} } }";

    #[test]
    fn parents_are_counted() {
        let before = "Checkpointer { retro_forwards: [1, 22], node_tree: ";
        assert_eq!(counted(&[before, "NodeTree", TREE]), Some([2, 1]));
        let by_bytes: Vec<&str> = (0..TREE.len()).map(|at| &TREE[at..=at]).collect();
        assert_eq!(
            counted(&[&[before, "NodeTree"], &by_bytes[..]].concat()),
            Some([2, 1])
        );
    }

    #[test]
    fn a_state_that_looks_like_a_tape_is_not_read() {
        assert_eq!(
            counted(&["NodeTree", TREE, ", ", "NodeTree", TREE]),
            Some([2, 1])
        );
    }

    #[test]
    fn another_text_is_not_understood() {
        assert_eq!(counted(&["Tree", TREE]), None);
        // Without the root of the pass.
        assert_eq!(counted(&["NodeTree", " { map: {} } }"]), None);
        for (from, to) in [
            ("map", "nodes"),
            ("}: [", "}: {"),
            ("value: 22", "value: x22"),
            ("NodeId { value: 3 }", "NodeId(3)"),
            ("} } }", "} }"),
            ("} } }", "} } }, other: 1"),
        ] {
            let text = TREE.replacen(from, to, 1);
            assert_ne!(text, TREE);
            assert_eq!(counted(&["NodeTree", &text]), None, "{text}");
        }
    }
}

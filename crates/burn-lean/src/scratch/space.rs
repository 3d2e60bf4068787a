//! Which bytes of a file are free.

use std::collections::BTreeMap;

/// Tensors begin at pages, so that one can be read, written and let go without its neighbours.
pub(super) const PAGE: usize = 4096;

/// A run of pages in one segment of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Place {
    pub(super) segment: usize,
    /// In the segment, in bytes.
    pub(super) offset: usize,
    pub(super) len: usize,
}

impl Place {
    fn end(self) -> usize {
        self.offset + self.len
    }
}

/// The free places of a file, by where they begin.
#[derive(Debug, Default)]
pub(super) struct Space {
    free: BTreeMap<(usize, usize), Place>,
    in_use: usize,
}

/// The bytes that a tensor of `bytes` bytes takes.
pub(super) fn whole_pages(bytes: usize) -> usize {
    bytes.next_multiple_of(PAGE)
}

impl Space {
    pub(super) fn in_use(&self) -> usize {
        self.in_use
    }

    /// Takes the first place that is large enough.
    pub(super) fn take(&mut self, bytes: usize) -> Option<Place> {
        let len = whole_pages(bytes);
        let (&at, &found) = self.free.iter().find(|(_, place)| place.len >= len)?;
        self.free.remove(&at);
        let taken = Place { len, ..found };
        self.add(Place {
            offset: taken.end(),
            len: found.len - len,
            ..found
        });
        self.in_use += len;
        Some(taken)
    }

    pub(super) fn give_back(&mut self, place: Place) {
        self.in_use -= place.len;
        self.add(place);
    }

    /// Adds a free place, and joins it with those beside it. A segment is a mapping of its own, so no
    /// place reaches from one into the next.
    pub(super) fn add(&mut self, mut place: Place) {
        if place.len == 0 {
            return;
        }
        let after = (place.segment, place.end());
        if let Some(next) = self.free.remove(&after) {
            place.len += next.len;
        }
        let before = self.free.range(..(place.segment, place.offset)).next_back();
        if let Some((&at, &previous)) = before
            && (previous.segment, previous.end()) == (place.segment, place.offset)
        {
            self.free.remove(&at);
            place = Place {
                len: previous.len + place.len,
                ..previous
            };
        }
        self.free.insert((place.segment, place.offset), place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(segment: usize, pages: usize) -> Place {
        Place {
            segment,
            offset: 0,
            len: pages * PAGE,
        }
    }

    #[test]
    fn places_are_whole_pages_that_join_again_when_they_are_free() {
        let mut space = Space::default();
        space.add(segment(0, 4));
        let [a, b, c] = [1, PAGE + 1, PAGE].map(|bytes| space.take(bytes).expect("there is room"));
        assert_eq!([a.len, b.len, c.len], [PAGE, 2 * PAGE, PAGE]);
        assert_eq!(space.in_use(), 4 * PAGE);
        assert_eq!(space.take(1), None);
        for place in [b, a, c] {
            space.give_back(place);
        }
        assert_eq!(space.take(4 * PAGE), Some(segment(0, 4)));
    }

    #[test]
    fn no_place_reaches_from_one_segment_into_the_next() {
        let mut space = Space::default();
        space.add(segment(0, 2));
        space.add(segment(1, 2));
        assert_eq!(space.take(3 * PAGE), None);
        let all = [2, 1, 1].map(|pages| space.take(pages * PAGE).expect("there is room"));
        all.into_iter().for_each(|place| space.give_back(place));
        assert_eq!(space.take(3 * PAGE), None);
        assert_eq!(space.take(2 * PAGE), Some(segment(0, 2)));
    }
}

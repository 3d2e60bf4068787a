//! A file without a name, mapped into memory.
//!
//! This is the only place that knows of addresses. A place of the file belongs to one buffer, from when
//! it is taken to when the buffer is dropped, so a buffer's slice has no other owner.
//!
//! A new tensor is written by way of the file: a disk that fails is then an error, where a write into the
//! mapping would end the process.
#![allow(unsafe_code)]

use std::fs::File;
use std::mem::MaybeUninit;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, RwLock};

use burn::tensor::{AllocationProperty, Bytes};
use burn_std::{AccessError, AccessPolicy, AllocationController};
use memmap2::{Advice, MmapOptions, MmapRaw, UncheckedAdvice};
use rustix::fs::{self, FallocateFlags, fadvise, fallocate, fstatfs, fstatvfs};

use super::error::ScratchError;
use super::space::{PAGE, Place, Space, whole_pages};
use crate::lock::lock;

/// What the file grows by at least when a tensor has no room: a process cannot have many mappings.
const LEAST_GROWTH: usize = 1 << 20;
/// And at most, beyond what is needed.
const MOST_GROWTH: usize = 256 << 20;

/// The kind of a file system that keeps its files in memory, as Linux names it.
const TMPFS: i64 = 0x0102_1994;
const RAMFS: i64 = 0x8584_58f6;

#[derive(Debug)]
pub(super) struct ScratchFile {
    file: File,
    folder: PathBuf,
    space: Mutex<Space>,
    segments: RwLock<Vec<Segment>>,
}

#[derive(Debug)]
struct Segment {
    map: MmapRaw,
    /// Where it begins in the file.
    start: u64,
}

impl Segment {
    fn addresses(&self) -> Range<usize> {
        let start = self.map.as_ptr().addr();
        start..start + self.map.len()
    }
}

impl ScratchFile {
    pub(super) fn create(folder: &Path) -> Result<Self, ScratchError> {
        let failed = |error: std::io::Error| ScratchError::Folder {
            folder: folder.into(),
            error: Arc::new(error),
        };
        // Without a name: nobody else can cut it, which would end the process, and a kill leaves nothing.
        let file = tempfile::tempfile_in(folder).map_err(failed)?;
        let kind = fstatfs(&file).map_err(|error| failed(error.into()))?.f_type;
        #[allow(clippy::unnecessary_cast)] // It has another width on other processors.
        if [TMPFS, RAMFS].contains(&(kind as i64)) {
            return Err(ScratchError::InMemory {
                folder: folder.into(),
            });
        }
        Ok(Self {
            file,
            folder: folder.into(),
            space: Mutex::default(),
            segments: RwLock::default(),
        })
    }

    pub(super) fn in_use(&self) -> usize {
        lock(&self.space).in_use()
    }

    pub(super) fn len(&self) -> usize {
        let segments = self.segments.read().unwrap_or_else(|it| it.into_inner());
        segments.iter().map(|segment| segment.map.len()).sum()
    }

    /// Adds space to the file. The disk has it from now on: a write into a hole of a full disk would end
    /// the process.
    pub(super) fn grow(&self, bytes: usize) -> Result<(), ScratchError> {
        let bytes = whole_pages(bytes);
        if bytes == 0 {
            return Ok(());
        }
        let mut segments = self.segments.write().unwrap_or_else(|it| it.into_inner());
        let start = segments
            .last()
            .map_or(0, |it| it.start + it.map.len() as u64);
        let allocated = fallocate(&self.file, FallocateFlags::empty(), start, bytes as u64);
        let mapped = allocated.map_err(std::io::Error::from).and_then(|()| {
            MmapOptions::new()
                .offset(start)
                .len(bytes)
                .map_raw(&self.file)
        });
        let map = mapped.map_err(|error| {
            // A part of it may be there, which is free again.
            let _ = self.file.set_len(start);
            self.no_space(bytes, error)
        })?;
        let segment = segments.len();
        segments.push(Segment { map, start });
        lock(&self.space).add(Place {
            segment,
            offset: 0,
            len: bytes,
        });
        Ok(())
    }

    fn no_space(&self, needed: usize, error: std::io::Error) -> ScratchError {
        ScratchError::Space {
            folder: self.folder.clone(),
            needed: needed as u64,
            free: fstatvfs(&self.file).map_or(0, |disk| disk.f_bavail * disk.f_frsize),
            error: Arc::new(error),
        }
    }

    /// A buffer in the file. The file grows if it has no room.
    pub(super) fn buffer(self: &Arc<Self>, bytes: &[u8]) -> Result<Bytes, ScratchError> {
        let place = loop {
            if let Some(place) = self.take(bytes.len()) {
                break place;
            }
            // Another thread may take it.
            let ahead = (self.len() / 8).clamp(LEAST_GROWTH, MOST_GROWTH);
            let grown = self.grow(bytes.len().max(ahead));
            grown.or_else(|_| self.grow(bytes.len()))?;
        };
        let buffer = Buffer {
            start: self.with_segment(place, |segment| {
                segment.map.as_mut_ptr().wrapping_add(place.offset)
            }),
            len: bytes.len(),
            place,
            file: Arc::clone(self),
        };
        let at = self.with_segment(place, |segment| segment.start) + place.offset as u64;
        let written = self.file.write_all_at(bytes, at);
        written.map_err(|error| self.no_space(bytes.len(), error))?;
        let len = bytes.len();
        // SAFETY: the place is as long, and all of it was written.
        Ok(unsafe { Bytes::from_controller(Box::new(buffer), len) })
    }

    fn take(&self, bytes: usize) -> Option<Place> {
        lock(&self.space).take(bytes)
    }

    fn with_segment<T>(&self, place: Place, run: impl FnOnce(&Segment) -> T) -> T {
        let segments = self.segments.read().unwrap_or_else(|it| it.into_inner());
        run(&segments[place.segment])
    }

    /// The place of memory that belongs to this file.
    pub(super) fn place_of(&self, bytes: &[u8]) -> Option<Place> {
        let address = bytes.as_ptr().addr();
        let segments = self.segments.read().unwrap_or_else(|it| it.into_inner());
        let mut numbered = segments.iter().enumerate();
        let found = numbered.find(|(_, segment)| segment.addresses().contains(&address));
        found.map(|(segment, found)| {
            let offset = address - found.addresses().start;
            let first = offset / PAGE * PAGE;
            Place {
                segment,
                offset: first,
                len: whole_pages(bytes.len() + offset - first),
            }
        })
    }

    /// Asks the system to read a place in the background. A hint: what it does with it is its own matter.
    pub(super) fn read_ahead(&self, place: Place) {
        self.with_segment(place, |segment| {
            let _ = segment
                .map
                .advise_range(Advice::WillNeed, place.offset, place.len);
        });
    }

    /// Takes places out of the memory of the process, and asks the system to write them in the background
    /// where they were changed, and to forget them where they were not.
    pub(super) fn let_go(&self, places: &[Place]) {
        // All of them first: the system would stop all threads for each page that it writes and that they
        // still see, and it writes pages together with those beside them.
        for place in places {
            self.with_segment(*place, |segment| {
                let (map, offset, len) = (&segment.map, place.offset, place.len);
                // SAFETY: of a shared mapping of a file, the bytes stay what they are.
                let _ =
                    unsafe { map.unchecked_advise_range(UncheckedAdvice::DontNeed, offset, len) };
            });
        }
        for place in places {
            let start = self.with_segment(*place, |segment| segment.start) + place.offset as u64;
            let len = NonZeroU64::new(place.len as u64);
            let _ = fadvise(&self.file, start, len, fs::Advice::DontNeed);
        }
    }
}

/// Bytes of a tensor in the file.
#[derive(Debug)]
struct Buffer {
    start: *mut u8,
    len: usize,
    place: Place,
    file: Arc<ScratchFile>,
}

impl Drop for Buffer {
    fn drop(&mut self) {
        lock(&self.file.space).give_back(self.place);
    }
}

impl AllocationController for Buffer {
    /// The largest that a copy in memory can have.
    fn alloc_align(&self) -> usize {
        align_of::<u128>()
    }

    fn property(&self) -> AllocationProperty {
        AllocationProperty::Other
    }

    unsafe fn memory_mut(
        &mut self,
        _: AccessPolicy,
    ) -> Result<&mut [MaybeUninit<u8>], AccessError> {
        // SAFETY: the place is as long, is mapped as long as the file lives, which the buffer keeps, and
        // belongs to this buffer alone.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.start.cast(), self.len) })
    }

    fn memory(&self, _: AccessPolicy) -> Result<&[MaybeUninit<u8>], AccessError> {
        // SAFETY: as in `memory_mut`.
        Ok(unsafe { std::slice::from_raw_parts(self.start.cast(), self.len) })
    }

    fn capacity(&self) -> usize {
        self.len
    }
}

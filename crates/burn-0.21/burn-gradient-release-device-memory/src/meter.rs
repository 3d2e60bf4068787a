//! The peak memory of a device.

/// The memory of a device in use and reserved, in bytes, by its own accounting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Held by tensors.
    pub in_use: u64,
    /// Taken from the device, for present and future tensors.
    pub reserved: u64,
    /// Padding of tensors for alignment; not part of `in_use`.
    pub padding: u64,
    /// Number of allocations in use.
    pub allocations: u64,
}

/// The most that a device had in use and reserved, in bytes.
///
/// The difference is the cost of fragmentation; the two need not be of the same moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peak {
    /// Held by tensors: exact at every allocation.
    pub in_use: u64,
    /// Taken from the device. Exact for cubecl's default pools, which give memory back only when
    /// told to.
    pub reserved: u64,
}

/// Follows the memory in use from one reading of the device's accounting to the next.
///
/// Between two readings only allocations are seen, so that the sum of the last reading and of the
/// allocations since is never less than what is in use: as long as it stays below the peak, there
/// is no new peak, and the device need not be asked.
#[derive(Debug, Default)]
pub struct Meter {
    peak: Peak,
    last: Usage,
    /// Upper bound of the memory in use.
    bound: u64,
}

impl Meter {
    /// Notes an allocation; whether the device has to be read now.
    pub(crate) fn allocated(&mut self, bytes: u64) -> bool {
        self.bound += bytes;
        self.bound > self.peak.in_use
    }

    /// Notes a reading of the device.
    pub(crate) fn read(&mut self, usage: Usage) {
        self.last = usage;
        self.bound = usage.in_use;
        self.peak.in_use = self.peak.in_use.max(usage.in_use);
        self.peak.reserved = self.peak.reserved.max(usage.reserved);
    }

    /// Forgets the peak up to the last reading.
    pub(crate) fn reset(&mut self) {
        self.peak = Peak {
            in_use: self.last.in_use,
            reserved: self.last.reserved,
        };
    }

    pub(crate) fn last(&self) -> Usage {
        self.last
    }

    pub(crate) fn peak(&self) -> Peak {
        self.peak
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(in_use: u64, reserved: u64) -> Usage {
        Usage {
            in_use,
            reserved,
            ..Usage::default()
        }
    }

    #[test]
    fn asks_only_where_a_new_peak_is_possible() {
        let mut meter = Meter::default();
        assert!(meter.allocated(100));
        meter.read(reading(100, 128));
        // All of it is freed, unseen.
        assert!(meter.allocated(1));
        meter.read(reading(1, 128));
        assert!(!meter.allocated(99), "at most 100 are in use");
        assert!(meter.allocated(1), "101 may be");
        meter.read(reading(101, 256));
        assert_eq!(
            meter.peak(),
            Peak {
                in_use: 101,
                reserved: 256
            }
        );
    }

    #[test]
    fn begins_anew_with_what_is_in_use() {
        let mut meter = Meter::default();
        meter.read(reading(100, 128));
        meter.read(reading(40, 128));
        meter.reset();
        assert_eq!(
            meter.peak(),
            Peak {
                in_use: 40,
                reserved: 128
            }
        );
        assert!(meter.allocated(1), "41 may be");
    }
}

//! Numbers by chance, the same in every run.

/// Pseudo-random numbers, by SplitMix64.
pub(crate) struct Noise(pub(crate) u64);

impl Noise {
    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// In [-1, 1).
    pub(crate) fn number(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    /// Numbers of many magnitudes, with zeros of both signs and denormal numbers among them.
    pub(crate) fn wild(&mut self) -> f32 {
        match self.bits() % 16 {
            0 => 0.0,
            1 => -0.0,
            2 => f32::from_bits((self.bits() >> 42) as u32),
            3 => self.number() * 1e4,
            4 => self.number() * 1e-20,
            _ => self.number(),
        }
    }
}

//! Sums of many numbers.

/// Partial sums at once.
pub(super) const LANES: usize = 16;

/// How many numbers are added up in 32 bits: 16 to a partial sum.
pub(super) const BLOCK: usize = 16 * LANES;

#[inline(always)]
pub(super) fn total(sums: [f32; LANES]) -> f64 {
    let mut quarters = [0.0; LANES / 4];
    for lane in 0..LANES / 4 {
        let at = |quarter: usize| f64::from(sums[lane + quarter * LANES / 4]);
        quarters[lane] = (at(0) + at(1)) + (at(2) + at(3));
    }
    (quarters[0] + quarters[1]) + (quarters[2] + quarters[3])
}

#[inline(always)]
pub(super) fn sum(numbers: &[f32]) -> f64 {
    let mut sum = 0.0;
    for block in numbers.chunks(BLOCK) {
        let (lanes, rest) = block.as_chunks::<LANES>();
        let mut sums = [0.0; LANES];
        for numbers in lanes {
            for lane in 0..LANES {
                sums[lane] += numbers[lane];
            }
        }
        for (sum, number) in sums.iter_mut().zip(rest) {
            *sum += number;
        }
        sum += total(sums);
    }
    sum
}

/// The sum of the products of numbers.
#[inline(always)]
pub(super) fn dot(one: &[f32], other: &[f32]) -> f64 {
    let mut sum = 0.0;
    for (one, other) in one.chunks(BLOCK).zip(other.chunks(BLOCK)) {
        let ((ones, one), (others, other)) = (one.as_chunks::<LANES>(), other.as_chunks::<LANES>());
        let mut sums = [0.0; LANES];
        for (one, other) in ones.iter().zip(others) {
            for lane in 0..LANES {
                sums[lane] += one[lane] * other[lane];
            }
        }
        for ((sum, one), other) in sums.iter_mut().zip(one).zip(other) {
            *sum += one * other;
        }
        sum += total(sums);
    }
    sum
}

/// The largest number; minus infinity of none. NaN does not count.
#[inline(always)]
pub(super) fn max(numbers: &[f32]) -> f32 {
    let (lanes, rest) = numbers.as_chunks::<LANES>();
    let mut largest = [f32::NEG_INFINITY; LANES];
    for numbers in lanes {
        for lane in 0..LANES {
            largest[lane] = larger(largest[lane], numbers[lane]);
        }
    }
    let mut max = f32::NEG_INFINITY;
    for number in largest.iter().chain(rest) {
        max = larger(max, *number);
    }
    max
}

/// One instruction, where `f32::max` asks for NaN.
#[inline(always)]
fn larger(one: f32, other: f32) -> f32 {
    if other > one { other } else { one }
}

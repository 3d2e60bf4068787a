// Finds the largest value of a range without reading all of them, so that a million events are drawn
// as fast as a thousand.

const BLOCK = 512;

class RangeMax {
  constructor(values) {
    this.values = values;
    const length = Math.ceil(values.length / BLOCK);
    // The index of the first largest value of every block.
    this.blocks = Uint32Array.from({ length }, (_, block) => {
      const from = block * BLOCK;
      return this.scan(from, Math.min(from + BLOCK, values.length), from);
    });
  }

  /** `best`, or the first index in `from..until` with a larger value. */
  scan(from, until, best) {
    const { values } = this;
    for (let i = from; i < until; i++) if (values[i] > values[best]) best = i;
    return best;
  }

  /** The index of the first largest value in `first..=last`. */
  at(first, last) {
    const [inner, outer] = [Math.ceil(first / BLOCK), Math.floor((last + 1) / BLOCK)];
    if (outer <= inner) return this.scan(first, last + 1, first);
    let best = this.scan(first, inner * BLOCK, first);
    for (let block = inner; block < outer; block++) {
      if (this.values[this.blocks[block]] > this.values[best]) best = this.blocks[block];
    }
    return this.scan(outer * BLOCK, last + 1, best);
  }
}

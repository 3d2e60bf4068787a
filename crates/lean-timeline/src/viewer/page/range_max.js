// Finds the largest value of a range without reading all of them, so that a million events are drawn
// as fast as a thousand.

const FAN = 16;

class RangeMax {
  constructor(values) {
    this.values = values;
    // Level k has the index of the first largest value of every FAN^(k+1) values.
    this.levels = [];
    let below = null;
    for (let length = values.length; length > FAN; length = Math.ceil(length / FAN)) {
      const level = new Uint32Array(Math.ceil(length / FAN));
      for (let block = 0; block < level.length; block++) {
        const end = Math.min((block + 1) * FAN, length);
        let best = below ? below[block * FAN] : block * FAN;
        for (let i = block * FAN + 1; i < end; i++) {
          const index = below ? below[i] : i;
          if (values[index] > values[best]) best = index;
        }
        level[block] = best;
      }
      this.levels.push(level);
      below = level;
    }
  }

  /** The index of the first largest value in `first..=last`. */
  at(first, last) {
    const { values, levels } = this;
    let best = first;
    let bound = last + 1;
    let right = NONE;
    // Goes from the values up to the coarsest level whose blocks fit, with the rest at both ends.
    let from = first;
    for (let level = -1; ; level++) {
      const index = (i) => (level < 0 ? i : levels[level][i]);
      const isTop = level + 1 >= levels.length;
      const inner = isTop ? bound : Math.min(Math.ceil(from / FAN) * FAN, bound);
      for (let i = from; i < inner; i++) {
        if (values[index(i)] > values[best]) best = index(i);
      }
      if (inner >= bound) break;
      const outer = Math.floor(bound / FAN) * FAN;
      for (let i = bound - 1; i >= Math.max(outer, inner); i--) {
        const found = index(i);
        if (right === NONE || values[found] >= values[right]) right = found;
      }
      if (outer <= inner) break;
      from = inner / FAN;
      bound = outer / FAN;
    }
    return right !== NONE && values[right] > values[best] ? right : best;
  }
}

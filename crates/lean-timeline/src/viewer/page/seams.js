// The seams between holders within the band of a category, found in one sweep over the events. Only
// holders that are large enough to be seen get a seam. A small one is part of the gap above the large
// one that was allocated before it.

const SHADES = 4;

// The states of a holder in the sweep: absent, part of a gap, with a seam, or released after that.
const ABSENT = 0;
const SMALL = 1;
const LARGE = 2;
const MERGED = 3;

class Seams {
  constructor(snapshot) {
    this.snapshot = snapshot;
    const { count, category, until } = snapshot.holders;
    // A counting sort of the holders by their end.
    const starts = new Uint32Array(snapshot.ticks + 2);
    for (let i = 0; i < count; i++) starts[until[i] + 1]++;
    for (let tick = 1; tick < starts.length; tick++) starts[tick] += starts[tick - 1];
    this.ending = new Uint32Array(count);
    for (let i = 0; i < count; i++) this.ending[starts[until[i]]++] = i;
    // Multiples of the golden ratio give neighbours shades that differ.
    const born = CATEGORIES.map(() => 0);
    this.shade = Uint8Array.from(category, (c) => ((born[c]++ * 0.618034) % 1) * SHADES);
    // One more node for each category: the bottom of its band.
    this.next = new Int32Array(count + CATEGORIES.length);
    this.previous = new Int32Array(count + CATEGORIES.length);
    this.gap = new Float64Array(count + CATEGORIES.length);
    this.owner = new Int32Array(count);
    this.state = new Uint8Array(count);
  }

  /**
   * Calls `draw(holder, category, below, left, right)` for every range of columns in which a holder
   * of `least` bytes or more has the same `below` it in its category.
   */
  trace(columns, shown, least, draw) {
    const { ending, next, previous, gap, owner, state } = this;
    const { bytes, category, from, until, count } = this.snapshot.holders;
    const bottom = (c) => count + c;
    const last = CATEGORIES.map((_, c) => bottom(c));
    const isShown = CATEGORIES.map((_, c) => shown.includes(c));
    gap.fill(0);
    state.fill(ABSENT);
    for (const node of last) next[node] = NONE;

    // The large holder with the small one's bytes in its gap; a released one passes its gap on.
    const keeper = (node) => {
      let root = node;
      while (root < count && state[root] === MERGED) root = owner[root];
      while (node < count && state[node] === MERGED) {
        const up = owner[node];
        owner[node] = root;
        node = up;
      }
      return root;
    };
    const arrive = (i) => {
      const c = category[i];
      if (!isShown[c]) return;
      if (bytes[i] < least) {
        state[i] = SMALL;
        owner[i] = last[c];
        gap[last[c]] += bytes[i];
        return;
      }
      state[i] = LARGE;
      gap[i] = 0;
      next[last[c]] = i;
      previous[i] = last[c];
      next[i] = NONE;
      last[c] = i;
    };
    const leave = (i) => {
      if (state[i] === SMALL) {
        gap[keeper(owner[i])] -= bytes[i];
        state[i] = ABSENT;
      } else if (state[i] === LARGE) {
        const before = previous[i];
        next[before] = next[i];
        if (next[i] === NONE) last[category[i]] = before;
        else previous[next[i]] = before;
        gap[before] += gap[i];
        owner[i] = before;
        state[i] = MERGED;
      }
    };

    // The first column of each holder's current seam, and the bytes below it.
    const open = new Map();
    const close = (i, column) => {
      const stretch = open.get(i);
      draw(i, category[i], stretch.below, stretch.column, column);
    };
    let born = 0;
    let dead = 0;
    let changed = true;
    let tick = NONE;
    for (let column = 0; column < columns.width; column++) {
      if (columns.tick[column] === tick) continue;
      tick = columns.tick[column];
      for (; born < count && from[born] <= tick; born++) {
        if (until[born] <= tick) continue;
        arrive(born);
        changed = true;
      }
      for (; dead < count && until[ending[dead]] <= tick; dead++) {
        if (state[ending[dead]] === ABSENT) continue;
        leave(ending[dead]);
        changed = true;
      }
      if (!changed) continue;
      changed = false;
      for (const c of shown) {
        let below = gap[bottom(c)];
        for (let i = next[bottom(c)]; i !== NONE; i = next[i]) {
          const stretch = open.get(i);
          if (!stretch) {
            open.set(i, { below, column, tick });
          } else {
            if (stretch.below !== below) {
              close(i, column);
              stretch.below = below;
              stretch.column = column;
            }
            stretch.tick = tick;
          }
          below += bytes[i] + gap[i];
        }
      }
      for (const [i, stretch] of open) {
        if (stretch.tick === tick) continue;
        close(i, column);
        open.delete(i);
      }
    }
    for (const i of open.keys()) close(i, columns.width);
  }
}

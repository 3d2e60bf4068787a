// The bytes of each category at each tick, and the peak.

/** Bytes of each category after each tick. */
function sweep(snapshot) {
  const { bytes, category, from, until, count } = snapshot.holders;
  const totals = CATEGORIES.map(() => new Float64Array(snapshot.ticks + 1));
  for (let i = 0; i < count; i++) {
    const total = totals[category[i]];
    total[from[i]] += bytes[i];
    total[until[i]] -= bytes[i];
  }
  for (const total of totals) {
    for (let tick = 1; tick < total.length; tick++) total[tick] += total[tick - 1];
  }
  return totals.map((total) => total.subarray(0, snapshot.ticks));
}

function sum(totals, ticks) {
  const all = new Float64Array(ticks);
  for (const total of totals) {
    for (let tick = 0; tick < ticks; tick++) all[tick] += total[tick];
  }
  return all;
}

/** The last tick of `first..=last` with the largest total. */
function fullest(known, first, last) {
  let best = first;
  for (let tick = first + 1; tick <= last; tick++) {
    if (known[tick] >= known[best]) best = tick;
  }
  return best;
}

/**
 * The workspaces of operations: memory in a sample's peak that no holder has. `sample[tick]` is the
 * sample, `bytes[tick]` the size.
 */
class Workspaces {
  constructor(ticks) {
    this.sample = new Int32Array(ticks).fill(NONE);
    this.bytes = new Float64Array(ticks);
  }

  add(tick, bytes, sample) {
    if (bytes <= this.bytes[tick]) return;
    this.bytes[tick] = bytes;
    this.sample[tick] = sample;
  }
}

/** The workspaces, and the peak with its tick. */
function measure(snapshot, known) {
  const { ticks, samples } = snapshot;
  const workspaces = new Workspaces(ticks);
  if (samples.count === 0) {
    const tick = new RangeMax(known).at(0, Math.max(ticks - 1, 0));
    return { workspaces, peak: { tick, bytes: known[tick] ?? 0 } };
  }
  const peak = { tick: 0, bytes: -1, sample: NONE };
  let before = 0;
  let inUse = 0;
  for (let i = 0; i < samples.count; i++) {
    const tick = fullest(known, before, samples.tick[i]);
    if (samples.peak[i] > Math.max(inUse, samples.inUse[i])) {
      workspaces.add(tick, samples.peak[i] - known[tick], i);
    }
    if (samples.peak[i] > peak.bytes) {
      Object.assign(peak, { tick, bytes: samples.peak[i], sample: i });
    }
    before = samples.tick[i];
    inUse = samples.inUse[i];
  }
  workspaces.add(peak.tick, peak.bytes - known[peak.tick], peak.sample);
  return { workspaces, peak: { tick: peak.tick, bytes: peak.bytes } };
}

/** The stack of the categories that are not hidden, and its highest tick. */
class Stack {
  constructor(snapshot) {
    this.snapshot = snapshot;
    const totals = sweep(snapshot);
    const { workspaces, peak } = measure(snapshot, sum(totals, snapshot.ticks));
    const temporaries = totals[TEMPORARIES];
    for (let tick = 0; tick < snapshot.ticks; tick++) temporaries[tick] += workspaces.bytes[tick];
    this.totals = totals;
    this.workspaces = workspaces;
    this.peak = peak;
    this.show(new Set());
  }

  show(hidden) {
    this.shown = CATEGORIES.map((_, c) => c).filter((c) => !hidden.has(c));
    this.height = sum(
      this.shown.map((c) => this.totals[c]),
      this.snapshot.ticks,
    );
    this.summits = new RangeMax(this.height);
    // With all categories shown this is the peak, also where another tick is equally high.
    const tick = hidden.size ? this.summits.at(0, this.snapshot.ticks - 1) : this.peak.tick;
    this.summit = { tick, bytes: hidden.size ? this.height[tick] : this.peak.bytes };
  }

  /** The bytes below category `c` at `tick`. */
  base(c, tick) {
    let base = 0;
    for (const other of this.shown) {
      if (other === c) break;
      base += this.totals[other][tick];
    }
    return base;
  }
}

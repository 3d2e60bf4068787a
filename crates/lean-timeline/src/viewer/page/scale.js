// Coordinates: ticks on the x axis, bytes on the y axis, and both in pixels.

/** The x axis: ticks by their time, or by their number. */
class Axis {
  constructor(times, isTime) {
    this.times = times;
    this.isTime = isTime;
    this.ticks = times.length;
    this.start = isTime ? (times[0] ?? 0) : 0;
    const last = times[this.ticks - 1] ?? 0;
    // The last event has no end: it gets the average width of the others.
    const share = Math.max((last - this.start) / Math.max(this.ticks, 1), 1);
    this.end = isTime ? last + share : Math.max(this.ticks, 1);
    this.width = this.end - this.start;
    this.narrowest = Math.min(8, this.width);
  }

  /** The beginning of `tick`. */
  at(tick) {
    if (tick >= this.ticks) return this.end;
    return this.isTime ? this.times[tick] : tick;
  }

  /** The first tick at or after `x`. */
  from(x) {
    if (!this.isTime) return Math.max(Math.ceil(x), 0);
    let low = 0;
    let high = this.ticks;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.times[middle] < x) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /** The tick that `x` lies in. */
  inForce(x) {
    const next = this.from(x);
    const tick = next < this.ticks && this.at(next) === x ? next : next - 1;
    return Math.min(Math.max(tick, 0), this.ticks - 1);
  }
}

/** The visible part of an axis, never narrower than a few ticks. */
class View {
  constructor(axis) {
    this.axis = axis;
    this.set(axis.start, axis.end);
  }

  set(start, end) {
    const { axis } = this;
    const width = Math.min(Math.max(end - start, axis.narrowest), axis.width);
    const middle = (start + end) / 2;
    this.start = Math.min(Math.max(middle - width / 2, axis.start), axis.end - width);
    this.end = this.start + width;
  }

  get isWhole() {
    return this.end - this.start >= this.axis.width * (1 - 1e-9);
  }

  zoom(factor, x) {
    const { narrowest, width: most } = this.axis;
    const width = Math.min(Math.max((this.end - this.start) * factor, narrowest), most);
    const share = (x - this.start) / (this.end - this.start);
    this.set(x - share * width, x + (1 - share) * width);
  }

  move(by) {
    const width = this.end - this.start;
    const start = Math.min(Math.max(this.start + by, this.axis.start), this.axis.end - width);
    this.set(start, start + width);
  }

  /** The view of the same ticks on another axis. */
  on(axis) {
    const view = new View(axis);
    if (!this.isWhole) {
      view.set(axis.at(this.axis.inForce(this.start)), axis.at(this.axis.from(this.end)));
    }
    return view;
  }
}

/** The ticks `first..=last` of each column of pixels, and the fullest of them. */
class Columns {
  constructor(view, width, summits) {
    const { axis, start, end } = view;
    this.width = width;
    this.first = new Uint32Array(width);
    this.last = new Uint32Array(width);
    this.tick = new Uint32Array(width);
    if (axis.ticks === 0) return;
    const step = (end - start) / width;
    for (let column = 0; column < width; column++) {
      const first = axis.inForce(start + column * step);
      const next = axis.from(start + (column + 1) * step);
      this.first[column] = first;
      this.last[column] = Math.min(Math.max(next - 1, first), axis.ticks - 1);
      this.tick[column] = summits.at(this.first[column], this.last[column]);
    }
  }
}

/** Marks of the y axis at round numbers, no closer than `gap` pixels. */
function byteMarks(low, high, height, gap) {
  const unit = unitFor(high);
  const step = roundStep(
    Math.max(((high - low) / unit.bytes) * (gap / height), unit.bytes === 1 ? 1 : 1e-6),
  );
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  const marks = [];
  for (let k = Math.ceil(low / unit.bytes / step - 1e-9); k * step * unit.bytes <= high; k++) {
    const number = (k * step).toLocaleString("en-US", { maximumFractionDigits: digits });
    marks.push({ at: k * step * unit.bytes, text: k === 0 ? "0" : `${number} ${unit.name}` });
  }
  return marks;
}

/** Marks of the x axis at round numbers, no closer than `gap` pixels. */
function axisMarks(view, width, gap) {
  const least = ((view.end - view.start) * gap) / width;
  const step = Math.max(roundStep(least), 1);
  const marks = [];
  for (let k = Math.ceil(view.start / step - 1e-9); k * step <= view.end; k++) {
    const at = k * step + 0; // never -0
    marks.push({ at, text: view.axis.isTime ? (at ? timeText(at, step) : "0") : countText(at) });
  }
  return marks;
}

// The panel of one snapshot: its plot, legend and list.

// In CSS pixels. The rows of phases and of parameters' steps, then the plot, then the x axis.
const LEFT = 78;
const RIGHT = 12;
const PHASES = 20;
const STEPS = 17;
const TOP = PHASES + STEPS + 8;
const BOTTOM = 26;

class Panel {
  constructor(root, snapshot, app) {
    this.app = app;
    this.root = root;
    this.snapshot = snapshot;
    this.stack = new Stack(snapshot);
    this.view = new View(new Axis(snapshot.times, app.isTime));
    this.plot = root.querySelector("[data-testid=plot]");
    this.drawing = new Drawing(this);
    this.legend = new Legend(root, (c, isAlone) => app.toggle(c, isAlone));
    this.list = new List(root, this.stack, {
      onLight: (holder) => this.light(holder),
      onOpen: (holder) => this.open(holder),
      onPeak: () => this.choose(null),
    });
    this.chosen = null;
    this.cursor = null;
    this.lit = null;
    this.took = { draw: 0, hover: 0 };
    listenToPointer(this);
    this.introduce();
    this.choose(null);
  }

  introduce() {
    const { title, backend, warnings } = this.snapshot;
    const put = (selector, text) => (this.root.querySelector(selector).textContent = text);
    const { tick, bytes } = this.stack.peak;
    put("[data-testid=title]", title);
    put("[data-role=backend]", backend);
    if (this.snapshot.ticks) {
      put("[data-testid=peak]", `Peak ${bytesText(bytes)}`);
      const place = phaseText(this.snapshot, tick);
      put("[data-role=where]", `in ${place}, ${momentText(this.snapshot, tick)}`);
    } else put("[data-testid=peak]", "Nothing was recorded");
    const box = this.root.querySelector(".warnings");
    box.hidden = warnings.length === 0;
    const count = warnings.length === 1 ? "A warning" : `${countText(warnings.length)} warnings`;
    box.querySelector("summary").textContent = `${count} from the recorder`;
    box.querySelector("ul").append(...warnings.map((text) => element("li", { textContent: text })));
    const label = `Memory of ${title} over time, at most ${bytesText(bytes)}`;
    this.plot.setAttribute("aria-label", label);
    this.list.body.closest("table").setAttribute("aria-label", `Holders of memory in ${title}`);
  }

  // The tick whose holders are listed: the peak's, unless another is pinned.

  get moment() {
    return this.chosen ?? this.stack.peak.tick;
  }

  choose(tick) {
    this.chosen = tick;
    if (this.snapshot.ticks) this.list.show(this.moment, this.momentName, tick === null);
    this.tell();
    this.drawing.overlaySoon();
  }

  get momentName() {
    return this.chosen === null ? "At the peak" : "At the pinned moment";
  }

  tell() {
    if (this.cursor) this.legend.show(this.stack, this.cursor.tick, "Under the cursor");
    else this.legend.show(this.stack, this.moment, this.momentName);
  }

  // Coordinates, in CSS pixels of the plot.

  get box() {
    const { clientWidth: width, clientHeight: height } = this.plot;
    return {
      left: LEFT,
      top: TOP,
      width: Math.max(width - LEFT - RIGHT, 1),
      height: Math.max(height - TOP - BOTTOM, 1),
    };
  }

  toX(x) {
    const { left, width } = this.box;
    return left + ((x - this.view.start) / (this.view.end - this.view.start)) * width;
  }

  toY(bytes) {
    const { top, height } = this.box;
    const { low, high } = this.app.range;
    return top + height - ((bytes - low) / (high - low)) * height;
  }

  fromX(pixel) {
    const { left, width } = this.box;
    return this.view.start + ((pixel - left) / width) * (this.view.end - this.view.start);
  }

  fromY(pixel) {
    const { top, height } = this.box;
    const { low, high } = this.app.range;
    return low + ((top + height - pixel) / height) * (high - low);
  }

  columnAt(pixel) {
    const { left, width } = this.box;
    const column = Math.floor(((pixel - left) / width) * this.drawing.columns.width);
    return Math.min(Math.max(column, 0), this.drawing.columns.width - 1);
  }

  /** The x coordinate of the middle of `tick`. */
  middleOf(tick) {
    const { axis } = this.view;
    return this.toX((axis.at(tick) + axis.at(tick + 1)) / 2);
  }

  // Changes of the view.

  use(isTime) {
    this.view = this.view.on(new Axis(this.snapshot.times, isTime));
    this.restack();
  }

  hide(hidden) {
    this.stack.show(hidden);
    this.legend.hide(hidden);
    this.choose(this.chosen);
    this.restack();
  }

  restack() {
    this.cursorOff();
    this.drawing.soon();
  }

  moved() {
    this.cursorOff();
    this.drawing.soon();
  }

  reset() {
    this.view.set(this.view.axis.start, this.view.axis.end);
    this.moved();
  }

  /** Zooms about `x`, by default the cursor or the middle. */
  zoom(factor, x) {
    const { axis, start, end } = this.view;
    this.view.zoom(factor, x ?? (this.cursor ? axis.at(this.cursor.tick) : (start + end) / 2));
    this.moved();
  }

  /** Shows the whole lifetime of a holder. */
  open(holder) {
    const { axis } = this.view;
    const [start, end] = [axis.at(holder.from), axis.at(holder.until)];
    const margin = Math.max((end - start) * 0.15, axis.narrowest / 2);
    this.view.set(Math.max(start - margin, axis.start), Math.min(end + margin, axis.end));
    this.moved();
  }

  show(from, until) {
    this.view.set(this.view.axis.at(from), this.view.axis.at(until));
    this.moved();
  }

  // The cursor, and the holder under it.

  hover(x, y) {
    if (!this.drawing.columns || this.snapshot.ticks === 0) return;
    const started = performance.now();
    const { left, top, width, height } = this.box;
    if (x < left || x >= left + width || y < 0 || y >= top + height) return this.cursorOff();
    const at = this.view.axis.inForce(this.fromX(x));
    if (y < top) {
      const span = spanAt(y < PHASES ? this.snapshot.phases : this.snapshot.steps, at);
      this.cursorOff();
      this.span = span;
      if (span) this.app.tooltip(spanCard(this.snapshot, span), this.plot, x, y);
      return;
    }
    const tick = this.drawing.columns.tick[this.columnAt(x)];
    this.cursor = { tick, x };
    this.light(holderAt(this.stack, tick, this.fromY(y)));
    this.tell();
    if (this.lit) this.app.tooltip(holderCard(this.snapshot, this.lit), this.plot, x, y);
    else this.app.tooltip(null);
    this.took.hover = performance.now() - started;
  }

  light(holder) {
    if (!isSame(holder, this.lit)) {
      this.lit = holder;
      this.list.light(holder);
    }
    this.drawing.overlaySoon();
  }

  cursorOff() {
    this.cursor = this.span = null;
    this.light(null);
    this.app.tooltip(null);
    this.tell();
  }
}

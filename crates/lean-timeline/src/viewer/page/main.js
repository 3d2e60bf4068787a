// The page: its panels, their shared state, and the interface for tests.

class App {
  constructor() {
    this.isTime = true;
    this.hidden = new Set();
    this.range = { low: 0, high: 1 };
    this.panels = [];
    this.colours = theme();
    this.tip = document.getElementById("tooltip");
  }

  async open() {
    const data = [...document.querySelectorAll("script[data-snapshot]")];
    const holder = document.getElementById("panels");
    for (const [index, script] of data.entries()) {
      const snapshot = decode(await unpack(script.textContent));
      script.remove();
      const root = document.getElementById("panel").content.cloneNode(true).firstElementChild;
      root.dataset.testid = `panel-${index}`;
      root.setAttribute("aria-label", snapshot.title);
      holder.append(root);
      this.panels.push(new Panel(root, snapshot, this));
    }
    document.querySelector("[data-testid=status]").remove();
    this.compare();
    this.listen();
    this.fitBytes();
    for (const panel of this.panels) {
      panel.drawing.soon();
      panel.drawing.now();
    }
  }

  /** Shows how the second snapshot's peak differs from the first's. */
  compare() {
    const [first, second] = this.panels;
    if (!second) return;
    const change = second.root.querySelector("[data-testid=change]");
    const [from, to] = [first.stack.peak.bytes, second.stack.peak.bytes];
    const difference = `${bytesText(Math.abs(to - from))} ${to < from ? "less" : "more"}`;
    const share = Math.abs((100 * (to - from)) / from).toLocaleString("en-US", {
      maximumFractionDigits: 1,
    });
    const text = from ? `${difference} (${to < from ? "−" : "+"}${share} %)` : difference;
    change.textContent = to === from ? "the same" : text;
    change.title = "Against the peak of the first snapshot";
    change.hidden = false;
  }

  listen() {
    const observer = new ResizeObserver(() => {
      this.tooltip(null);
      this.fitBytes();
      this.panels.forEach((panel) => panel.drawing.soon());
    });
    this.panels.forEach((panel) => observer.observe(panel.plot));
    document.querySelectorAll("input[name=axis]").forEach((input) => {
      input.addEventListener("change", () => {
        this.isTime = input.value === "time";
        this.panels.forEach((panel) => panel.use(this.isTime));
      });
    });
    const actions = {
      in: () => this.panels.forEach((panel) => panel.zoom(1 / 2)),
      out: () => this.panels.forEach((panel) => panel.zoom(2)),
      reset: () => this.reset(),
    };
    document.querySelectorAll("[data-action]").forEach((button) => {
      button.addEventListener("click", actions[button.dataset.action]);
    });
    const help = document.querySelector(".help");
    document.addEventListener(
      "click",
      (event) => help.contains(event.target) || (help.open = false),
    );
    help.addEventListener("keydown", (event) => event.key === "Escape" && (help.open = false));
    document.addEventListener("scroll", () => this.tooltip(null), { passive: true });
  }

  /** Shows all bytes, on one scale for all panels, with room for the peak's label. */
  fitBytes() {
    const most = Math.max(
      ...this.panels.map(({ stack }) => stack.height[stack.summit.tick] ?? 0),
      1,
    );
    const height = Math.min(...this.panels.map((panel) => panel.box.height));
    this.range = { low: 0, high: most / (1 - Math.min(34 / height, 0.5)) };
  }

  zoomBytes(factor, at) {
    const { low, high } = this.range;
    const full = { ...this.range };
    this.fitBytes();
    const most = this.range.high;
    const width = Math.min(Math.max((high - low) * factor, most / 1e5), most);
    const bottom = Math.min(
      Math.max(at - ((at - low) / (full.high - full.low)) * width, 0),
      most - width,
    );
    this.range = { low: bottom, high: bottom + width };
    this.panels.forEach((panel) => panel.moved());
  }

  reset() {
    this.fitBytes();
    this.panels.forEach((panel) => panel.reset());
  }

  toggle(c, isAlone) {
    const isOnlyOne = this.hidden.size === CATEGORIES.length - 1 && !this.hidden.has(c);
    if (isAlone)
      this.hidden = new Set(
        isOnlyOne ? [] : CATEGORIES.map((_, other) => other).filter((other) => other !== c),
      );
    else if (!this.hidden.delete(c)) this.hidden.add(c);
    this.panels.forEach((panel) => panel.hide(this.hidden));
    this.fitBytes();
  }

  tooltip(content, plot, x, y) {
    const { tip } = this;
    tip.hidden = !content;
    if (!content) return;
    tip.replaceChildren(...content);
    const place = plot.getBoundingClientRect();
    const { width, height } = tip.getBoundingClientRect();
    const gap = 16;
    let left = place.left + x + gap;
    if (left + width > innerWidth - 8) left = place.left + x - gap - width;
    const top = Math.min(place.top + y + gap, innerHeight - height - 8);
    tip.style.transform = `translate(${Math.max(left, 8)}px, ${Math.max(top, 8)}px)`;
  }
}

/** The interface for scripts outside, such as tests, in coordinates of the browser's window. */
function outside(panel) {
  return {
    ticks: panel.snapshot.ticks,
    holders: panel.snapshot.holders.count,
    peak: { tick: panel.stack.peak.tick, bytes: panel.stack.peak.bytes },
    took: panel.took,
    view: () => ({
      first: panel.drawing.columns.first[0],
      last: panel.drawing.columns.last[panel.drawing.columns.width - 1],
      ...panel.app.range,
    }),
    point: (tick, bytes) => {
      const { left, top } = panel.plot.getBoundingClientRect();
      return { x: left + panel.middleOf(tick), y: top + panel.toY(bytes) };
    },
    /** The tick drawn at `x`: the fullest of its column. */
    tickAt: (x) =>
      panel.drawing.columns.tick[panel.columnAt(x - panel.plot.getBoundingClientRect().left)],
    cursor: () => panel.cursor?.tick ?? null,
    moment: () => panel.moment,
    /** The number of the holder under the cursor; the workspace of an operation has none. */
    lit: () => (panel.lit && !panel.lit.isWorkspace ? panel.lit.index : null),
  };
}

const app = new App();
const opened = app.open().catch((error) => {
  const status = document.querySelector("[data-testid=status]");
  const text =
    "DecompressionStream" in window
      ? `This page is damaged: ${error.message}`
      : "This browser is too old for this page: it lacks DecompressionStream.";
  if (status) Object.assign(status, { textContent: text, className: "status failed" });
  throw error;
});
window.burnMemory = {
  opened: opened.then(() => performance.now()),
  get panels() {
    return app.panels.map(outside);
  },
};

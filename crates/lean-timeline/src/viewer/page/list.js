// The list of the holders at the chosen tick, largest first.

const PAGE = 50;

class List {
  constructor(root, stack, { onLight, onOpen, onPeak }) {
    const part = (name) => root.querySelector(`[data-testid=${name}]`);
    this.stack = stack;
    this.title = part("list-title");
    this.body = root.querySelector("tbody");
    this.rest = part("rest");
    this.more = part("more");
    this.filter = part("filter");
    this.toPeak = part("to-peak");
    this.limit = PAGE;
    this.rows = new Map();
    this.filter.addEventListener("input", () => this.fill());
    this.more.addEventListener("click", () => {
      this.limit += 4 * PAGE;
      this.fill();
    });
    this.toPeak.addEventListener("click", onPeak);
    const holderOf = (event) => this.rows.get(event.target.closest("tr")) ?? null;
    this.body.addEventListener("pointerover", (event) => onLight(holderOf(event)));
    this.body.addEventListener("pointerleave", () => onLight(null));
    this.body.addEventListener("click", (event) => holderOf(event) && onOpen(holderOf(event)));
  }

  show(tick, label, isPeak) {
    this.tick = tick;
    this.label = label;
    this.toPeak.hidden = isPeak;
    this.alive = aliveAt(this.stack, tick);
    this.limit = PAGE;
    this.fill();
  }

  describe(entry) {
    return entry.index === NONE
      ? describeWorkspace(this.stack, this.tick)
      : describe(this.stack, entry.index);
  }

  fill() {
    const { snapshot } = this.stack;
    const wanted = this.filter.value.trim().toLowerCase();
    const isWanted = (holder) =>
      `${nameOf(holder)} ${holder.operation} ${CATEGORIES[holder.category].name}`
        .toLowerCase()
        .includes(wanted);
    const found = wanted
      ? this.alive.filter((entry) => isWanted(this.describe(entry)))
      : this.alive;
    const rows = found.slice(0, this.limit).map((entry) => {
      const holder = this.describe(entry);
      return [holderRow(snapshot, holder), holder];
    });
    this.rows = new Map(rows);
    this.body.replaceChildren(...this.rows.keys());
    const bytes = (entries) => bytesText(entries.reduce((total, entry) => total + entry.bytes, 0));
    const count = `${countText(found.length)} ${wanted ? "found" : "holders"}`;
    this.title.textContent = `${this.label}: ${count}, ${bytes(found)}`;
    const rest = found.slice(this.limit);
    this.rest.textContent = rest.length
      ? `and ${countText(rest.length)} more with ${bytes(rest)}`
      : "";
    this.more.hidden = rest.length === 0;
  }

  /** Marks the row of `holder`, if the list has one. */
  light(holder) {
    for (const [row, of] of this.rows)
      row.classList.toggle("lit", holder !== null && isSame(of, holder));
  }
}

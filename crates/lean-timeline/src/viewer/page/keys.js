// The keys on a plot: they do all that the pointer does, and step through the holders.

class Keys {
  constructor(panel) {
    this.panel = panel;
    panel.plot.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || !panel.snapshot.ticks) return;
      if (this.press(event.key, event.shiftKey)) event.preventDefault();
    });
    panel.plot.addEventListener("blur", () => panel.cursorOff());
  }

  press(key, isShift) {
    const { panel } = this;
    const width = panel.view.end - panel.view.start;
    const zoom = { "+": 1 / 1.5, "=": 1 / 1.5, "-": 1.5, "−": 1.5 }[key];
    if (zoom) {
      const { cursor } = panel;
      panel.zoom(zoom);
      if (cursor) this.read(cursor.tick, cursor.height);
    } else if (key === "," || key === ".") {
      panel.view.move(key === "," ? -width / 5 : width / 5);
      panel.moved();
    } else if (key === "0") panel.app.reset();
    else if (key === "Escape") {
      panel.cursorOff();
      panel.choose(null);
    } else if (key === "Enter") panel.cursor && panel.choose(panel.cursor.tick);
    else if (key === "p" || key === "P") this.read(panel.stack.summit.tick, Infinity);
    else if (key === "ArrowLeft" || key === "ArrowRight")
      this.step(key === "ArrowLeft" ? -1 : 1, isShift);
    else if (key === "ArrowUp" || key === "ArrowDown") this.climb(key === "ArrowUp");
    else return false;
    return true;
  }

  step(direction, isSingle) {
    const { panel } = this;
    if (!panel.cursor) return this.read(panel.stack.summit.tick, Infinity);
    const { tick, height } = panel.cursor;
    const { columns } = panel.drawing;
    const column = panel.columnAt(panel.cursor.x) + direction * Math.ceil(columns.width / 100);
    const isInside = column >= 0 && column < columns.width;
    const far = isInside ? columns.tick[column] : tick;
    const next = isSingle || far === tick ? tick + direction : far;
    this.read(Math.min(Math.max(next, 0), panel.snapshot.ticks - 1), height);
  }

  climb(isUp) {
    const { panel } = this;
    if (!panel.cursor || !panel.life) return this.read(panel.moment, Infinity);
    const { tick } = panel.cursor;
    const { holder } = panel.life;
    const below = panel.life.below[panel.life.advance(0, tick)];
    const bottom = panel.stack.base(holder.category, tick) + below;
    this.read(tick, isUp ? bottom + holder.bytes : Math.max(bottom - 1, 0));
  }

  /** Moves the cursor without a pointer, and announces the holder there. */
  read(tick, height) {
    const { panel } = this;
    panel.reveal(tick);
    panel.point(tick, Math.max(Math.min(height, panel.stack.height[tick] - 1), 0));
    const { x } = panel.cursor;
    const y = Math.max(panel.toY(panel.cursor.height), TOP);
    const { lit, snapshot } = panel;
    panel.app.tooltip(lit && holderCard(snapshot, lit), panel.plot, x, y);
    const holder = lit
      ? `${nameOf(lit)}, ${bytesText(lit.bytes)}, ${CATEGORIES[lit.category].one}; `
      : "";
    const more = lit
      ? facts(snapshot, lit)
          .map((fact) => fact.join(" "))
          .join(", ")
      : "nothing held";
    const all = bytesText(panel.stack.height[tick]);
    panel.app.say(`${holder}${more}. At ${momentText(snapshot, tick)}, ${all} in all.`);
  }
}

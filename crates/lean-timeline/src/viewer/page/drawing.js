// Draws a panel's plot: the stack when the view changes, the overlay at every move of the pointer.

// The least height of a holder that is drawn by itself, in CSS pixels.
const SEAM = 3;

class Drawing {
  constructor(panel) {
    this.panel = panel;
    this.base = panel.root.querySelector("[data-role=base]");
    this.overlay = panel.root.querySelector("[data-role=overlay]");
  }

  soon() {
    this.isStale = true;
    this.overlaySoon();
  }

  overlaySoon() {
    this.frame ??= requestAnimationFrame(() => this.now());
  }

  now() {
    cancelAnimationFrame(this.frame);
    this.frame = null;
    const started = performance.now();
    if (this.isStale) this.drawBase();
    this.isStale = false;
    if (this.columns) this.drawOverlay();
    this.panel.took.draw = performance.now() - started;
  }

  /** The measures for drawing on the base, in pixels of the canvas, which may be finer than CSS's. */
  picture() {
    const { box, app, view, stack } = this.panel;
    const ratio = window.devicePixelRatio || 1;
    const [left, top, width, height] = [box.left, box.top, box.width, box.height].map((pixels) =>
      Math.round(pixels * ratio),
    );
    const bottom = top + height;
    const { low, high } = app.range;
    return {
      context: this.base.getContext("2d"),
      colours: app.colours,
      columns: new Columns(view, width, stack.summits),
      toPixel: (bytes) => {
        const y = bottom - ((bytes - low) / (high - low)) * height;
        return Math.round(Math.min(Math.max(y, top), bottom));
      },
      line: Math.max(Math.round(ratio), 1),
      ...{ ratio, left, top, width, height, bottom },
    };
  }

  drawBase() {
    const { panel } = this;
    const picture = this.picture();
    const { context, colours, ratio } = picture;
    for (const canvas of [this.base, this.overlay]) {
      canvas.width = Math.round(panel.plot.clientWidth * ratio);
      canvas.height = Math.round(panel.plot.clientHeight * ratio);
    }
    this.shown = picture;
    this.columns = picture.columns;
    context.textBaseline = "middle";
    context.font = `${12 * ratio}px ${colours.font}`;
    this.drawAxes(picture);
    if (panel.snapshot.ticks) {
      this.drawStack(picture);
      this.drawPhases(picture);
    }
  }

  drawAxes({ context, colours, ratio, line, left, top, width, height, bottom }) {
    const { view, app } = this.panel;
    const { low, high } = app.range;
    context.textAlign = "right";
    for (const { at, text } of byteMarks(low, high, height / ratio, 48)) {
      const y = Math.round(this.panel.toY(at) * ratio);
      context.fillStyle = at === 0 ? colours.line : colours.grid;
      context.fillRect(left, y, width, line);
      context.fillStyle = colours.quiet;
      // A label at the very top would overlap what is above the plot.
      if (y > top + 6 * ratio) context.fillText(text, left - 8 * ratio, y);
    }
    context.textAlign = "center";
    for (const { at, text } of axisMarks(view, width / ratio, 90)) {
      const x = Math.round(this.panel.toX(at) * ratio);
      context.fillStyle = colours.line;
      context.fillRect(x, bottom, line, 5 * ratio);
      context.fillStyle = colours.quiet;
      const half = context.measureText(text).width / 2;
      const middle = Math.min(Math.max(x, half), left + width + RIGHT * ratio - half);
      context.fillText(text, middle, bottom + 15 * ratio);
    }
  }

  drawStack({ context, colours, columns, toPixel, ratio, line, left, top, width, height }) {
    const { stack, app } = this.panel;
    const pixels = new Pixels(width, height);
    const toRow = (bytes) => toPixel(bytes) - top;
    paintStack(pixels, stack, columns, colours, toRow);
    const least = ((app.range.high - app.range.low) / height) * ratio * SEAM;
    paintHolders(pixels, stack, columns, colours, toRow, least, line);
    context.drawImage(pixels.canvas, left, top);
  }

  drawPhases(picture) {
    const { context, colours, ratio, line, left, top, width, height } = picture;
    const { panel } = this;
    const { view, snapshot } = panel;
    const { phases, steps } = snapshot;
    // A line at the beginning of a phase, if there is room for it.
    context.fillStyle = colours.seam;
    for (const { from, until } of phases) {
      const [start, end] = [from, until].map((tick) => panel.toX(view.axis.at(tick)) * ratio);
      if (end - start < 24 * ratio || start < left || start > left + width) continue;
      context.fillRect(Math.round(start), top, line, height);
    }
    context.textAlign = "center";
    paintSpans(picture, phases, view, {
      top: 0,
      height: PHASES * ratio,
      fillOf: ({ kind }) => colours.phases[kind],
      labels: ({ kind, iteration }) => [
        `${kind} of step ${iteration}`,
        `${kind} ${iteration}`,
        kind,
        kind[0].toUpperCase(),
      ],
      colour: colours["on-phase"],
    });
    context.font = `${11 * ratio}px ${colours.font}`;
    const row = PHASES + 2;
    paintSpans(picture, steps, view, {
      top: row * ratio,
      height: STEPS * ratio,
      fillOf: () => colours.phases.step,
      labels: ({ parameter }) => [pathOf(snapshot, parameter)],
      colour: colours["on-step"],
    });
    context.textAlign = "right";
    context.fillStyle = colours.quiet;
    const x = left - 8 * ratio;
    if (phases.length) context.fillText("phase", x, (PHASES / 2 + 1) * ratio);
    if (steps.length) context.fillText("steps of", x, (row + STEPS / 2) * ratio);
  }

  drawOverlay() {
    const { panel } = this;
    const { colours, range } = panel.app;
    const { left, top, width, height } = panel.box;
    const { ratio } = this.shown;
    const context = this.overlay.getContext("2d");
    context.clearRect(0, 0, this.overlay.width, this.overlay.height);
    if (panel.snapshot.ticks === 0) return;
    context.save();
    context.beginPath();
    context.rect(left * ratio, top * ratio, width * ratio, height * ratio);
    context.clip();
    if (panel.lit) paintLife({ ...this.shown, context }, panel.stack, panel.lit, range);
    context.restore();
    context.save();
    context.scale(ratio, ratio);
    if (panel.dragged) {
      const [start, end] = panel.dragged.map((x) => Math.min(Math.max(x, left), left + width));
      context.fillStyle = colours.select;
      context.fillRect(Math.min(start, end), top, Math.abs(end - start), height);
      context.fillStyle = colours.accent;
      for (const x of [start, end]) context.fillRect(x - 0.5, top, 1, height);
    }
    if (panel.chosen !== null) {
      const x = panel.middleOf(panel.chosen);
      this.drawMoment(context, x, colours.accent, []);
      this.drawFoot(context, x);
    }
    if (panel.cursor) this.drawMoment(context, panel.cursor.x, colours.ink, [3, 3]);
    this.drawPeak(context);
    context.restore();
  }

  isInside(x) {
    const { left, width } = this.panel.box;
    return x >= left - 0.5 && x <= left + width + 0.5;
  }

  drawMoment(context, x, colour, dash) {
    const { top, height } = this.panel.box;
    if (!this.isInside(x)) return;
    context.strokeStyle = colour;
    context.lineWidth = 1;
    context.setLineDash(dash);
    context.beginPath();
    context.moveTo(Math.round(x) + 0.5, top);
    context.lineTo(Math.round(x) + 0.5, top + height);
    context.stroke();
    context.setLineDash([]);
  }

  drawFoot(context, x) {
    const { top, height } = this.panel.box;
    if (!this.isInside(x)) return;
    context.fillStyle = this.panel.app.colours.accent;
    context.beginPath();
    context.arc(Math.round(x) + 0.5, top + height, 4, 0, 2 * Math.PI);
    context.fill();
  }

  drawPeak(context) {
    const { app, box, stack } = this.panel;
    const { tick, bytes } = stack.summit;
    const x = this.panel.middleOf(tick);
    const y = this.panel.toY(stack.height[tick]);
    if (!this.isInside(x) || y < box.top - 1) return;
    const isAll = stack.shown.length === CATEGORIES.length;
    const text = `${isAll ? "peak" : "most shown"} ${bytesText(bytes)}`;
    context.font = `600 12px ${app.colours.font}`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    const half = context.measureText(text).width / 2 + 7;
    const middle = Math.min(Math.max(x, box.left + half), box.left + box.width - half);
    const bottom = Math.max(y - 7, box.top + 20);
    context.fillStyle = app.colours.ink;
    context.beginPath();
    context.roundRect(middle - half, bottom - 20, 2 * half, 20, 5);
    context.moveTo(x - 5, bottom - 0.5);
    context.lineTo(x + 5, bottom - 0.5);
    context.lineTo(x, bottom + 6);
    context.fill();
    context.fillStyle = app.colours.card;
    context.fillText(text, middle, bottom - 9.5);
  }
}

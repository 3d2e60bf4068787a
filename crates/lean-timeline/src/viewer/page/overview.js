// A small plot of the whole recording. The part in view can be dragged, also by its ends.

class Overview {
  constructor(canvas, onView) {
    this.canvas = canvas;
    this.onView = onView;
    this.image = document.createElement("canvas");
    canvas.addEventListener("pointerdown", (event) => this.grab(event));
    canvas.addEventListener("pointermove", (event) => this.drag(event));
    canvas.addEventListener("pointerup", () => (this.held = null));
  }

  /** Draws the whole stack, which changes seldom; `frame` draws the part in view over it. */
  paint(stack, axis, colours, left, right, ratio) {
    const width = Math.round(this.canvas.clientWidth * ratio);
    const height = Math.round(this.canvas.clientHeight * ratio);
    this.image.width = this.canvas.width = width;
    this.image.height = this.canvas.height = height;
    Object.assign(this, {
      left: left * ratio,
      width: width - (left + right) * ratio,
      ratio,
      axis,
      colours,
    });
    if (this.width < 1) return;
    const columns = new Columns(new View(axis), Math.floor(this.width), stack.summits);
    const scale = (height - 2 * ratio) / Math.max(stack.summit.bytes, 1);
    const toRow = (bytes) => Math.max(Math.round(height - bytes * scale), 0);
    const pixels = new Pixels(columns.width, height);
    paintStack(pixels, stack, columns, colours, toRow);
    this.image.getContext("2d").drawImage(pixels.canvas, Math.round(this.left), 0);
  }

  toX(x) {
    return this.left + ((x - this.axis.start) / this.axis.width) * this.width;
  }

  frame(view) {
    if (!this.axis || this.width < 1) return;
    this.view = view;
    const context = this.canvas.getContext("2d");
    const { height } = this.canvas;
    const [start, end] = [this.toX(view.start), this.toX(view.end)];
    context.clearRect(0, 0, this.canvas.width, height);
    context.drawImage(this.image, 0, 0);
    context.globalAlpha = 0.72;
    context.fillStyle = this.colours.card;
    context.fillRect(this.left, 0, start - this.left, height);
    context.fillRect(end, 0, this.left + this.width - end, height);
    context.globalAlpha = 1;
    context.strokeStyle = this.colours.quiet;
    context.lineWidth = this.ratio;
    const seen = Math.max(end - start, 3 * this.ratio);
    context.strokeRect(start + 0.5, this.ratio / 2, seen - 1, height - this.ratio);
  }

  grab(event) {
    const x = this.at(event);
    const { start, end } = this.view;
    const reach = (6 * this.ratio * this.axis.width) / this.width;
    this.canvas.setPointerCapture(event.pointerId);
    if (Math.abs(x - start) < reach) this.held = { end, isEdge: true };
    else if (Math.abs(x - end) < reach) this.held = { end: start, isEdge: true };
    else {
      const offset = x > start && x < end ? x - start : (end - start) / 2;
      this.held = { offset, width: end - start };
      this.drag(event);
    }
  }

  drag(event) {
    if (!this.held) return;
    const x = this.at(event);
    const { isEdge, end, offset, width } = this.held;
    if (isEdge) this.onView(Math.min(x, end), Math.max(x, end));
    else {
      const start = Math.min(Math.max(x - offset, this.axis.start), this.axis.end - width);
      this.onView(start, start + width);
    }
  }

  at(event) {
    const x = event.offsetX * this.ratio - this.left;
    const share = Math.min(Math.max(x, 0), this.width) / this.width;
    return this.axis.start + share * this.axis.width;
  }
}

// Paints a stack: bands, the holders in them, the lifetime of one holder, phases.

// The shades of a category.
const SHADES = 4;

/** The colours and fonts of the page as it is now: light or dark. */
function theme() {
  const style = getComputedStyle(document.documentElement);
  const value = (name) => style.getPropertyValue(`--${name}`).trim();
  const names = [
    "card",
    "ink",
    "quiet",
    "line",
    "grid",
    "accent",
    "select",
    "on-phase",
    "on-step",
    "seam",
    "glow",
  ];
  const colours = Object.fromEntries(names.map((name) => [name, value(name)]));
  colours.categories = CATEGORIES.map(({ key }) => value(key));
  colours.phases = Object.fromEntries(
    ["forward", "backward", "optimizer", "step"].map((kind) => [kind, value(kind)]),
  );
  colours.bands = colours.categories.map((hex) => ({
    shades: Array.from({ length: SHADES }, (_, shade) => mixed(hex, "#ffffff", shade * 0.07)),
    seam: mixed(hex, colours.card, 0.5),
  }));
  colours.font = getComputedStyle(document.body).fontFamily;
  return colours;
}

/** Paints the stack of every column. `toRow` returns whole rows, so that bands have no gaps. */
function paintStack(pixels, stack, columns, colours, toRow) {
  const { width, tick } = columns;
  const base = new Float64Array(width);
  for (const c of stack.shown) {
    const total = stack.totals[c];
    const colour = colours.bands[c].shades[0];
    for (let column = 0; column < width;) {
      const start = column;
      const at = tick[start];
      while (column < width && tick[column] === at) column++;
      pixels.fill(colour, start, toRow(base[start] + total[at]), column, toRow(base[start]));
      base.fill(base[start] + total[at], start, column);
    }
  }
}

/**
 * Paints every holder of at least `least` bytes in a shade of its category's colour, with a hairline at
 * its lower edge.
 */
function paintHolders(pixels, stack, columns, colours, toRow, least, line) {
  const { bytes, category, from, until, count } = stack.snapshot.holders;
  const { width, tick } = columns;
  // The upper edge of the holders so far, of each category in each column.
  const edges = new Map(
    stack.shown.map((c) => [c, Float64Array.from(tick, (at) => stack.base(c, at))]),
  );
  const born = CATEGORIES.map(() => 0);
  let start = 0;
  for (let i = 0; i < count; i++) {
    const edge = edges.get(category[i]);
    if (!edge) continue;
    // Multiples of the golden ratio give neighbours shades that differ.
    const shade = Math.floor(((born[category[i]]++ * 0.618034) % 1) * SHADES);
    while (start < width && tick[start] < from[i]) start++;
    for (let column = start; column < width && tick[column] < until[i];) {
      if (bytes[i] < least) {
        edge[column++] += bytes[i];
        continue;
      }
      const run = column;
      const [top, bottom] = [toRow(edge[run] + bytes[i]), toRow(edge[run])];
      do edge[column++] += bytes[i];
      while (column < width && tick[column] < until[i] && toRow(edge[column]) === bottom);
      if (bottom <= top) continue;
      const { shades, seam } = colours.bands[category[i]];
      pixels.fill(shades[shade], run, top, column, bottom - line);
      pixels.fill(seam, run, bottom - line, column, bottom);
    }
  }
}

/** Paints a holder over all columns of its lifetime. */
function paintLife(picture, stack, holder, range) {
  const { context, columns, colours, left, toPixel: toY, line } = picture;
  if (!stack.shown.includes(holder.category)) return;
  const life = [];
  for (let column = 0; column < columns.width; column++) {
    const first = Math.max(columns.first[column], holder.from);
    const last = Math.min(columns.last[column], holder.until - 1);
    if (first > last) continue;
    // The column shows its fullest tick, or the fullest one in the lifetime of the holder.
    const drawn = columns.tick[column];
    const tick = drawn >= first && drawn <= last ? drawn : stack.summits.at(first, last);
    life.push({ column, tick });
  }
  const below = bytesBelow(
    stack,
    holder,
    life.map(({ tick }) => tick),
  );
  const boxes = [];
  for (const [i, { column, tick }] of life.entries()) {
    const base = stack.base(holder.category, tick) + below[i];
    if (base >= range.high || base + holder.bytes <= range.low) continue;
    const bottom = toY(base);
    const top = Math.min(toY(base + holder.bytes), bottom - line);
    const before = boxes[boxes.length - 1];
    if (before && before.right === column && before.top === top && before.bottom === bottom) {
      before.right++;
    } else {
      boxes.push({ left: column, right: column + 1, top, bottom });
    }
  }
  // An outline around all boxes: first each box a little larger in one colour, then in the other.
  const rim = 2 * line;
  context.fillStyle = colours.glow;
  for (const box of boxes) {
    context.fillRect(
      left + box.left - rim,
      box.top - rim,
      box.right - box.left + 2 * rim,
      box.bottom - box.top + 2 * rim,
    );
  }
  context.fillStyle = colours.categories[holder.category];
  for (const box of boxes) {
    context.fillRect(left + box.left, box.top, box.right - box.left, box.bottom - box.top);
  }
}

/** `text`, if it is no wider than `width`; a path may lose all parts but its last two. */
function fit(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  for (
    let cut = text.indexOf(".") + 1;
    cut > 0 && text.includes(".", cut);
    cut = text.indexOf(".", cut) + 1
  ) {
    const shorter = `…${text.slice(cut)}`;
    if (context.measureText(shorter).width <= width) return shorter;
  }
  return "";
}

/** Paints a row of phases or steps; `labels` are from the longest to the shortest. */
function paintSpans(picture, spans, view, { top, height, fillOf, labels, colour }) {
  const { context, line } = picture;
  const edges = [picture.left, picture.left + picture.width];
  const scale = picture.width / (view.end - view.start);
  const toX = (tick) => Math.round(edges[0] + (view.axis.at(tick) - view.start) * scale);
  let painted = -Infinity;
  for (const span of spans) {
    const left = Math.max(toX(span.from), edges[0]);
    const right = Math.min(toX(span.until), edges[1]);
    // The first of several in one pixel.
    if (right < edges[0] || left > edges[1] || right <= painted) continue;
    painted = Math.max(right, left + 1);
    const gap = right - left > 6 * line ? line : 0;
    context.fillStyle = fillOf(span);
    context.fillRect(left, top, painted - left - gap, height);
    const room = right - left - 10 * line;
    if (room < 8 * line) continue;
    const text = labels(span).reduce((found, label) => found || fit(context, label, room), "");
    if (!text) continue;
    context.fillStyle = colour;
    context.fillText(text, (left + right - gap) / 2, top + height / 2 + line);
  }
}

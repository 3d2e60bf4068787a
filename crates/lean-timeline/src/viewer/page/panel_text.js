// The texts of a panel: its legend, its tooltip, the rows of its list.

function element(name, properties = {}, ...children) {
  const { dataset, colour, ...others } = properties;
  const node = Object.assign(document.createElement(name), others);
  Object.assign(node.dataset, dataset);
  if (colour !== undefined) node.style.setProperty("--colour", `var(--${CATEGORIES[colour].key})`);
  node.append(...children);
  return node;
}

function momentText(snapshot, tick) {
  return `${timeText(snapshot.times[tick])}, event ${countText(tick)}`;
}

/** The name of a holder: its parameter, or else the operation that made it. */
function nameOf(holder) {
  if (holder.isWorkspace) {
    return `workspace of ${holder.operation}${holder.path ? `, for ${holder.path}` : ""}`;
  }
  return holder.path ?? holder.operation;
}

function heldText(snapshot, holder) {
  const { ticks, times } = snapshot;
  if (holder.isWorkspace) return `within event ${countText(holder.from)}`;
  const events = `events ${countText(holder.from)} to `;
  if (holder.until >= ticks) return `${events}the end`;
  const life = timeText(times[holder.until] - times[holder.from]);
  return `${events}${countText(holder.until)}, ${life}`;
}

function madeText(snapshot, holder) {
  return phaseText(snapshot, holder.from);
}

/** Whether the name of a holder leaves out the operation that made it. */
function hasMaker(holder) {
  return holder.path !== null && !holder.isWorkspace;
}

/** The facts about a holder as pairs. */
function facts(snapshot, holder) {
  const rows = [];
  if (hasMaker(holder)) rows.push(["made by", holder.operation]);
  rows.push(["made in", madeText(snapshot, holder)]);
  rows.push(["held", heldText(snapshot, holder)]);
  return rows;
}

function holderCard(snapshot, holder) {
  const list = facts(snapshot, holder).flatMap(([name, value]) => [
    element("dt", { textContent: name }),
    element("dd", { textContent: value, dataset: { fact: name.replace(" ", "-") } }),
  ]);
  return [
    element("b", { textContent: nameOf(holder), dataset: { fact: "name" } }),
    element(
      "div",
      { className: "what" },
      element("span", { className: "swatch", colour: holder.category }),
      element("strong", { textContent: bytesText(holder.bytes), dataset: { fact: "bytes" } }),
      element("span", {
        textContent: CATEGORIES[holder.category].one,
        dataset: { fact: "category" },
      }),
    ),
    element("dl", {}, ...list),
  ];
}

function spanCard(snapshot, span) {
  const name =
    span.kind === "step"
      ? `Optimizer's step of ${pathOf(snapshot, span.parameter)}`
      : `${span.kind[0].toUpperCase()}${span.kind.slice(1)} of step ${span.iteration}`;
  const until = Math.min(span.until, snapshot.ticks - 1);
  const time = timeText(snapshot.times[until] - snapshot.times[span.from]);
  return [
    element("b", { textContent: name, dataset: { fact: "name" } }),
    element("div", {
      textContent: `${time}, events ${countText(span.from)} to ${countText(span.until)}`,
    }),
  ];
}

function holderRow(snapshot, holder) {
  const cell = (className, ...children) => element("td", { className }, ...children);
  const name = cell(
    "for",
    element("span", { className: "swatch", colour: holder.category }),
    nameOf(holder),
  );
  name.append(element("small", { textContent: CATEGORIES[holder.category].one }));
  return element(
    "tr",
    {},
    cell("size", bytesText(holder.bytes)),
    name,
    cell("by", hasMaker(holder) ? holder.operation : ""),
    cell("in", madeText(snapshot, holder)),
    cell("held", heldText(snapshot, holder)),
  );
}

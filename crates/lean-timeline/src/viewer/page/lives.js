// Holders: those of a tick, the one under a point, and the lifetime of one. They are numbered as in
// the file. The workspace of an operation counts as a holder of one tick.

/** The description of holder `index`. */
function describe(stack, index) {
  const { snapshot } = stack;
  const { bytes, category, parameter, operation, from, until } = snapshot.holders;
  return {
    index,
    bytes: bytes[index],
    category: category[index],
    path: pathOf(snapshot, parameter[index]),
    operation: snapshot.operations[operation[index]],
    from: from[index],
    until: until[index],
    isWorkspace: false,
  };
}

/** The parameter of the output of a sample's operation. */
function purposeOf(snapshot, sample) {
  const { operation, parameter, from, count } = snapshot.holders;
  const since = sample > 0 ? snapshot.samples.tick[sample - 1] : 0;
  let low = 0;
  let high = count;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (from[middle] <= since) low = middle + 1;
    else high = middle;
  }
  for (let i = low; i < count && from[i] <= snapshot.samples.tick[sample]; i++) {
    if (operation[i] === snapshot.samples.operation[sample]) return parameter[i];
  }
  return NONE;
}

function describeWorkspace(stack, tick) {
  const { snapshot, workspaces } = stack;
  const sample = workspaces.sample[tick];
  const operation = snapshot.samples.operation[sample];
  return {
    index: NONE,
    bytes: workspaces.bytes[tick],
    category: TEMPORARIES,
    path: pathOf(snapshot, purposeOf(snapshot, sample)),
    operation: operation === NONE ? "operations" : snapshot.operations[operation],
    from: tick,
    until: tick + 1,
    isWorkspace: true,
  };
}

function isSame(one, other) {
  return one?.index === other?.index && one?.from === other?.from;
}

/** All holders at `tick`, largest first. */
function aliveAt(stack, tick) {
  const { bytes, category, from, until, count } = stack.snapshot.holders;
  const shown = new Set(stack.shown);
  const alive = [];
  for (let i = 0; i < count && from[i] <= tick; i++) {
    if (until[i] > tick && shown.has(category[i])) alive.push(i);
  }
  alive.sort((one, other) => bytes[other] - bytes[one] || one - other);
  const all = alive.map((index) => ({ index, bytes: bytes[index] }));
  if (stack.workspaces.bytes[tick] > 0 && shown.has(TEMPORARIES)) {
    const workspace = { index: NONE, bytes: stack.workspaces.bytes[tick] };
    const at = all.findIndex((entry) => entry.bytes < workspace.bytes);
    all.splice(at === -1 ? all.length : at, 0, workspace);
  }
  return all;
}

/** The holder drawn at `tick` at the height of `height` bytes, or null. */
function holderAt(stack, tick, height) {
  if (height < 0 || height >= stack.height[tick]) return null;
  const c = stack.shown.find((c) => height < stack.base(c, tick) + stack.totals[c][tick]);
  if (c === undefined) return null;
  const { bytes, category, from, until, count } = stack.snapshot.holders;
  let top = stack.base(c, tick);
  for (let i = 0; i < count && from[i] <= tick; i++) {
    if (category[i] !== c || until[i] <= tick) continue;
    top += bytes[i];
    if (height < top) return describe(stack, i);
  }
  return stack.workspaces.bytes[tick] > 0 ? describeWorkspace(stack, tick) : null;
}

/** The bytes below a holder in its own category, at ticks of its lifetime that do not fall. */
function bytesBelow(stack, holder, ticks) {
  if (holder.isWorkspace) {
    return ticks.map((tick) => stack.totals[TEMPORARIES][tick] - holder.bytes);
  }
  const { bytes, category, until } = stack.snapshot.holders;
  const below = ticks.map(() => 0);
  // Those that were allocated before it.
  for (let i = 0; i < holder.index; i++) {
    if (category[i] !== holder.category) continue;
    for (let k = 0; k < ticks.length && ticks[k] < until[i]; k++) below[k] += bytes[i];
  }
  return below;
}

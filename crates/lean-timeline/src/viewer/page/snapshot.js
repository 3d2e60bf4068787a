// The snapshot that this page carries, in typed arrays: a million objects would be too slow.

const CATEGORIES = [
  { key: "parameters", name: "Parameters", one: "parameter" },
  { key: "optimizer-state", name: "Optimizer state", one: "optimizer state" },
  { key: "other", name: "Other", one: "other" },
  { key: "activations", name: "Activations", one: "activation" },
  { key: "gradients", name: "Gradients", one: "gradient" },
  { key: "temporaries", name: "Temporaries", one: "temporary" },
];
const TEMPORARIES = 5;
const NONE = -1;

async function unpack(base64) {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

/** The running sums of `differences`. */
function running(differences, array) {
  let value = 0;
  for (let i = 0; i < differences.length; i++) array[i] = value += differences[i];
  return array;
}

/** `values`, with `NONE` for null. */
function optional(values) {
  return Int32Array.from(values, (value) => value ?? NONE);
}

function decode(file) {
  const category = file.categories.map((key) => CATEGORIES.findIndex((of) => of.key === key));
  const { holders, phases, samples } = file;
  const from = running(holders.from, new Uint32Array(holders.from.length));
  const phaseFrom = running(phases.from, new Uint32Array(phases.from.length));
  const inUse = running(samples.in_use, new Float64Array(samples.in_use.length));
  const times = running(file.times, new Float64Array(file.times.length));
  const spans = phases.kind.map((kind, i) => ({
    kind,
    parameter: phases.parameter[i] ?? NONE,
    // From 1, as in `burn-memory summary`.
    iteration: phases.iteration[i] + 1,
    from: phaseFrom[i],
    until: phaseFrom[i] + phases.ticks[i],
  }));
  return {
    title: file.title,
    backend: file.backend,
    warnings: file.warnings,
    parameters: file.parameters,
    operations: file.operations,
    times,
    ticks: times.length,
    holders: {
      count: from.length,
      bytes: Float64Array.from(holders.bytes),
      category: Uint8Array.from(holders.category, (index) => category[index]),
      parameter: optional(holders.parameter),
      operation: optional(holders.operation),
      from,
      until: Uint32Array.from(holders.ticks, (ticks, i) => from[i] + ticks),
    },
    phases: spans.filter((phase) => phase.kind !== "step"),
    steps: spans.filter((phase) => phase.kind === "step"),
    samples: {
      count: inUse.length,
      tick: running(samples.tick, new Uint32Array(samples.tick.length)),
      inUse,
      peak: Float64Array.from(samples.above, (above, i) => inUse[i] + above),
      operation: optional(samples.operation),
    },
  };
}

/** The last of `spans` that has begun at `tick`, if it has not ended. */
function spanAt(spans, tick) {
  let low = 0;
  let high = spans.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (spans[middle].from <= tick) low = middle + 1;
    else high = middle;
  }
  const span = spans[low - 1];
  return span && tick < span.until ? span : null;
}

function pathOf(snapshot, parameter) {
  return parameter === NONE ? null : snapshot.parameters[parameter].path;
}

/** The phase and the step at `tick`, as text. */
function phaseText(snapshot, tick) {
  const phase = spanAt(snapshot.phases, tick);
  const step = spanAt(snapshot.steps, tick);
  const main = phase && `${phase.kind} of step ${phase.iteration}`;
  const inner = step && `stepping ${pathOf(snapshot, step.parameter)}`;
  return [main, inner].filter(Boolean).join(", ") || "between steps";
}

// Bytes, times and counts as text.

const KIB = 1024;
const MIB = KIB * KIB;
const GIB = KIB * MIB;

/** The unit for up to `most` bytes. MiB go up to 100 GiB, so that two peaks have the same unit. */
function unitFor(most) {
  if (most >= 100 * GIB) return { bytes: GIB, name: "GiB" };
  if (most >= MIB) return { bytes: MIB, name: "MiB" };
  if (most >= KIB) return { bytes: KIB, name: "KiB" };
  return { bytes: 1, name: "B" };
}

function bytesText(bytes) {
  const unit = unitFor(bytes);
  const digits = unit.bytes === 1 ? 0 : 1;
  const number = (bytes / unit.bytes).toLocaleString("en-US", {
    minimumFractionDigits: digits,
    maximumFractionDigits: digits,
  });
  return `${number} ${unit.name}`;
}

function countText(count) {
  return count.toLocaleString("en-US");
}

/** Microseconds, exact to about `resolution` of them. */
function timeText(microseconds, resolution = microseconds / 10000) {
  const [scale, name] =
    microseconds >= 1e6 ? [1e6, "s"] : microseconds >= 1e3 ? [1e3, "ms"] : [1, "µs"];
  const wanted = Math.ceil(Math.log10(scale / Math.max(resolution, 1)));
  const digits = Math.min(Math.max(wanted, 0), Math.round(Math.log10(scale)));
  const number = (microseconds / scale).toLocaleString("en-US", {
    minimumFractionDigits: digits,
    maximumFractionDigits: digits,
  });
  return `${number} ${name}`;
}

/** The round number (1, 2 or 5 times a power of ten) at or above `least`. */
function roundStep(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= least * 0.999999);
}

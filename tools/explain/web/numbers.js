// Text of numbers, and what arithmetic on a sample needs.
"use strict";

// JSON has no infinities: the library writes them, and NaN, as text.
const kSpecial = { inf: Infinity, "-inf": -Infinity, nan: NaN };
const numberOf = (x) => (typeof x === "string" ? kSpecial[x] : x);
const vectorOf = (list) => Float64Array.from(list, numberOf);

// With a real minus sign, and infinities as people write them.
function text(x, digits = 2) {
  if (Number.isNaN(x)) return "NaN";
  if (!Number.isFinite(x)) return x > 0 ? "∞" : "−∞";
  const rounded = x.toFixed(digits);
  return Number(rounded) === 0 ? rounded.replace("-", "") : rounded.replace("-", "−");
}

function textOfBytes(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (bytes >= 1024 && unit + 1 < units.length) {
    bytes /= 1024;
    ++unit;
  }
  const digits = unit === 0 ? 0 : bytes < 10 ? 2 : bytes < 100 ? 1 : 0;
  return `${bytes.toFixed(digits)} ${units[unit]}`;
}

const textOfCount = (n) => n.toLocaleString("en-US");
const textOfRatio = (x) => (x < 10 ? x.toFixed(2) : x < 100 ? x.toFixed(1) : x.toFixed(0));

// [0, n) in parts of `size`; the last one may be smaller.
function blocksOf(n, size) {
  const blocks = [];
  for (let begin = 0; begin < n; begin += size) blocks.push([begin, Math.min(begin + size, n)]);
  return blocks;
}

// e^(before - after), the factor by which sums of a smaller maximum shrink. A row that has seen no
// key has maximum -infinity and nothing to shrink.
const shrink = (before, after) => (after === -Infinity ? 1 : Math.exp(before - after));

function largestDifference(a, b) {
  let largest = 0;
  for (let i = 0; i < a.length; ++i) {
    if (Object.is(a[i], b[i]) || a[i] === b[i]) continue;
    const difference = Math.abs(a[i] - b[i]) / Math.max(1, Math.abs(b[i]));
    largest = Math.max(largest, Number.isNaN(difference) ? Infinity : difference);
  }
  return largest;
}

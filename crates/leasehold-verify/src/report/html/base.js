// The page's data has arrays without field names. These constants are the positions of the fields.
const LIFE = { lane: 0, worker: 1, pid: 2, from: 3, to: 4, killed: 5 };
const PAUSE = { lane: 0, worker: 1, from: 2, to: 3, stalled: 4 };
const SPAN = {
  lane: 0, row: 1, lock: 2, worker: 3, requestedAt: 4, grantedAt: 5, reliedOnUntil: 6, heldUntil: 7, doneAt: 8, deadline: 9,
  token: 10, shared: 11, outcome: 12, reason: 13, details: 14, queued: 15, op: 16,
};
const MARK = { lane: 0, row: 1, worker: 2, from: 3, to: 4, style: 5, register: 6, token: 7, what: 8, outcome: 9 };
const BAND = { fault: 0, kind: 1, target: 2, from: 3, to: 4, note: 5, lanes: 6, style: 7, description: 8, label: 9 };
const FLAG = { from: 0, to: 1, lanes: 2, guarantee: 3, title: 4 };
const LANE = { name: 0, top: 1, height: 2, rows: 3 };
const OUTCOME = { open: 0, killed: 1, busy: 2, timedOut: 3, failed: 4, unknown: 5, released: 6, releaseFailed: 7, lost: 8, done: 9 };
const OUTCOME_TEXTS = [
  "no end", "its process was killed", "not granted: held by another", "not granted in time", "failed", "unknown whether it was granted",
  "released", "release failed", "lost", "done",
];
const MARK_STYLE = { accepted: 0, refused: 1, read: 2, unknown: 3 };
const COLOURS = 6;

const byId = (id) => document.getElementById(id);
const run = JSON.parse(byId("data").textContent);
const frame = run.frame;
const live = byId("live");
const overview = byId("overview");

// The visible time span, and its width.
const view = { from: 0, to: run.end, width: 900, lock: null, least: Math.max(1000, run.end / 1e7) };
const right = () => view.width - 12;
const x = (t) => frame.gutter + ((t - view.from) / (view.to - view.from)) * (right() - frame.gutter);
const timeAt = (px) => view.from + ((px - frame.gutter) / (right() - frame.gutter)) * (view.to - view.from);
const y = (lane, row) => run.lanes[lane][LANE.top] + frame.above + row * (frame.bar + frame.between);
// The x position of a time, clamped to just outside the picture: browsers overflow with large coordinates.
const edge = (t) => Math.min(Math.max(x(t), frame.gutter - 20), view.width + 20);
const px = (value) => Math.round(value * 10) / 10;

const entities = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" };
// Characters that are invisible or change the writing direction, which escaping replaces.
const unseen = /[\u0000-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;
const esc = (text) => String(text).replace(unseen, "\ufffd").replace(/[&<>"']/g, (c) => entities[c]);
const textWidth = (text) => { let sum = 0; for (const c of text) sum += c < "\x80" ? 6.1 : 11; return sum; };

function significantDigits(value) {
  const text = value.toFixed(value < 9.995 ? 2 : value < 99.95 ? 1 : 0);
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}
function formatDuration(nanos) {
  if (nanos <= 0) return "0 s";
  if (nanos < 1e3) return Math.round(nanos) + " ns";
  if (nanos < 999500) return significantDigits(nanos / 1e3) + " µs";
  if (nanos < 999500000) return significantDigits(nanos / 1e6) + " ms";
  if (nanos < 119.5e9) return significantDigits(nanos / 1e9) + " s";
  const seconds = Math.round(nanos / 1e9);
  return Math.floor(seconds / 60) + " min" + (seconds % 60 ? " " + (seconds % 60) + " s" : "");
}
// A time with as many decimals as neighbouring pixels need to differ, but at least three.
function formatTime(nanos) {
  const step = (view.to - view.from) / view.width;
  return (nanos / 1e9).toFixed(Math.min(9, Math.max(3, Math.ceil(9 - Math.log10(Math.max(step, 1)))))) + " s";
}
function formatInTtls(nanos) {
  return run.ttl > 0 ? formatDuration(nanos) + " (" + (nanos / run.ttl).toFixed(2) + " TTL)" : formatDuration(nanos);
}
function ticks() {
  const least = ((view.to - view.from) / Math.max(1, (right() - frame.gutter) / 90));
  let unit = Math.pow(10, Math.floor(Math.log10(least)));
  let step = 0;
  while (!step) {
    const times = [1, 2, 5].find((times) => times * unit >= least);
    if (times) step = Math.max(1, times * unit); else unit *= 10;
  }
  const places = Math.min(9, Math.max(0, 9 - Math.floor(Math.log10(step) + 1e-9)));
  const out = [];
  for (let at = Math.ceil(view.from / step); at * step <= view.to && out.length < 1000; at++) out.push(at * step);
  return { times: out, places };
}
// Merges neighbouring bars that are narrower than about a pixel into one.
function mergeNarrow(items) {
  const out = [];
  let last = null;
  for (const [from, to, at] of items) {
    if (last && to - from < 1.2 && (last.count > 1 || last.to - last.x < 1.2) && from - last.to < 0.8) {
      last.to = Math.max(last.to, to);
      last.count++;
    } else {
      last = { x: from, to, at, count: 1 };
      out.push(last);
    }
  }
  return out;
}
// The indices of the items on each row of each lane.
function rows(list, kind) {
  const out = new Map();
  list.forEach((item, at) => {
    const key = item[kind.lane] * 16 + item[kind.row];
    if (!out.has(key)) out.set(key, []);
    out.get(key).push(at);
  });
  return out;
}
const spanRows = rows(run.spans, SPAN);
const markRows = rows(run.marks, MARK);

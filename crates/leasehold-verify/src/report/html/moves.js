// Zooming and moving: wheel, pinch, drag, buttons, keys, the overview, the address, and the list of
// violations.
let pending = 0;
const redraw = () => { if (!pending) pending = requestAnimationFrame(() => { pending = 0; draw(); }); };

function show(from, to, quiet) {
  const width = Math.min(run.end, Math.max(view.least, to - from));
  const start = Math.min(Math.max(0, (from + to) / 2 - width / 2), run.end - width);
  [view.from, view.to] = [start, start + width];
  tip.hidden = true;
  if (!quiet) remember();
  redraw();
}
let remembering = 0;
function remember() {
  clearTimeout(remembering);
  remembering = setTimeout(() => {
    const whole = view.from <= 0 && view.to >= run.end;
    const seconds = (t) => (t / 1e9).toFixed(6).replace(/\.?0+$/, "") + "s";
    // A page in a frame or a data URL may not change its address.
    try { history.replaceState(null, "", whole ? "#" : `#from=${seconds(view.from)}&to=${seconds(view.to)}`); } catch { return; }
  }, 200);
}
function zoom(times, at) {
  const t = at === undefined ? (view.from + view.to) / 2 : Math.min(Math.max(timeAt(at), view.from), view.to);
  const width = Math.min(run.end, Math.max(view.least, (view.to - view.from) * times));
  const part = (t - view.from) / (view.to - view.from);
  show(t - part * width, t - part * width + width);
}
function move(parts) {
  const by = (view.to - view.from) * parts;
  const start = Math.min(Math.max(0, view.from + by), run.end - (view.to - view.from));
  show(start, start + view.to - view.from);
}
const whole = () => show(0, run.end);

function chooseViolation(number, quiet) {
  const flag = run.flags[number - 1];
  if (!flag) return;
  for (const item of document.querySelectorAll(".violations li")) item.classList.toggle("chosen", item.id === "violation-" + number);
  const room = Math.max((flag[FLAG.to] - flag[FLAG.from]) * 1.2, run.ttl * 0.6, run.end / 400);
  show(flag[FLAG.from] - room, flag[FLAG.to] + room, quiet);
}

// 1.2s, 300ms, 40us, 7ns; a bare number is seconds.
function readTime(text) {
  const match = /^([0-9.]+)\s*(ns|us|µs|ms|s|m)?$/.exec(text || "");
  if (!match || !isFinite(Number(match[1]))) return null;
  return Number(match[1]) * { ns: 1, us: 1e3, "µs": 1e3, ms: 1e6, s: 1e9, m: 6e10 }[match[2] || "s"];
}
function readHash() {
  const hash = new URLSearchParams(location.hash.slice(1));
  if (hash.has("violation")) return chooseViolation(Number(hash.get("violation")), true);
  const [from, to] = [readTime(hash.get("from")), readTime(hash.get("to"))];
  if (from !== null || to !== null) show(from ?? 0, to ?? run.end, true);
}

// Pointers: one drags, two pinch.
const pointers = new Map();
let grip = null;
const local = (event) => event.clientX - live.getBoundingClientRect().left;
const spread = () => { const [a, b] = [...pointers.values()]; return { mid: (a + b) / 2, apart: Math.max(20, Math.abs(a - b)) }; };
function take() {
  grip = pointers.size === 2 ? { ...spread(), from: view.from, to: view.to } : { mid: [...pointers.values()][0], from: view.from, to: view.to };
}
live.addEventListener("pointerdown", (event) => {
  if (event.button) return;
  pointers.set(event.pointerId, local(event));
  take();
  live.focus({ preventScroll: true });
});
function release(event) {
  if (!pointers.delete(event.pointerId)) return;
  live.classList.remove("moving");
  if (pointers.size) take();
}
window.addEventListener("pointermove", (event) => {
  if (!pointers.has(event.pointerId)) return;
  // The button was released outside of the window.
  if (event.pointerType === "mouse" && !event.buttons) return release(event);
  pointers.set(event.pointerId, local(event));
  const span = grip.to - grip.from;
  const perPixel = span / (right() - frame.gutter);
  if (pointers.size === 2 && grip.apart) {
    const now = spread();
    const width = span * (grip.apart / now.apart);
    const t = grip.from + (grip.mid - frame.gutter) * perPixel;
    const start = t - ((now.mid - frame.gutter) / (right() - frame.gutter)) * width;
    show(start, start + width);
  } else if (pointers.size === 1) {
    const by = (local(event) - grip.mid) * perPixel;
    if (Math.abs(local(event) - grip.mid) > 3) live.classList.add("moving");
    if (!live.classList.contains("moving")) return;
    const start = Math.min(Math.max(0, grip.from - by), run.end - span);
    show(start, start + span);
  }
});
for (const kind of ["pointerup", "pointercancel"]) window.addEventListener(kind, release);
live.addEventListener("pointermove", (event) => {
  if (pointers.size) return;
  const box = live.getBoundingClientRect();
  showTip(under(event.clientX - box.left, event.clientY - box.top), event.clientX, event.clientY);
});
live.addEventListener("pointerleave", () => { tip.hidden = true; });
live.addEventListener("dblclick", (event) => zoom(0.4, local(event)));
live.addEventListener("click", (event) => {
  if (event.detail !== 1 || event.pointerType !== "touch") return;
  const box = live.getBoundingClientRect();
  showTip(under(event.clientX - box.left, event.clientY - box.top), event.clientX, event.clientY);
});
live.addEventListener("focusin", (event) => {
  const at = event.target.dataset.span;
  if (at === undefined || !event.target.matches(":focus-visible")) return;
  const box = event.target.getBoundingClientRect();
  showTip(spanTip(run.spans[at]), Math.max(box.left, live.getBoundingClientRect().left + frame.gutter), box.bottom - 8);
});
live.addEventListener("focusout", () => { tip.hidden = true; });
// A page must scroll: the wheel alone zooms only once the timeline was clicked.
live.addEventListener("wheel", (event) => {
  const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey;
  if (sideways) {
    event.preventDefault();
    move((event.deltaX || event.deltaY) / (right() - frame.gutter));
  } else if (event.ctrlKey || event.metaKey || live.contains(document.activeElement)) {
    event.preventDefault();
    const lines = event.deltaMode === 1 ? 30 : 1;
    zoom(Math.exp(Math.min(Math.max(event.deltaY * lines, -240), 240) * (event.ctrlKey ? 0.006 : 0.0025)), local(event));
  }
}, { passive: false });

let sliding = false;
const slide = (event) => {
  const t = ((event.clientX - overview.getBoundingClientRect().left - frame.gutter) / (right() - frame.gutter)) * run.end;
  const width = view.to - view.from;
  const start = Math.min(Math.max(0, t - width / 2), run.end - width);
  show(start, start + width);
};
overview.addEventListener("pointerdown", (event) => { sliding = true; overview.setPointerCapture(event.pointerId); slide(event); });
overview.addEventListener("pointermove", (event) => { if (sliding) slide(event); });
for (const kind of ["pointerup", "pointercancel"]) overview.addEventListener(kind, () => { sliding = false; });

const does = { left: () => move(-0.25), right: () => move(0.25), in: () => zoom(0.5), out: () => zoom(2), all: whole };
for (const [id, act] of Object.entries(does)) byId(id).addEventListener("click", act);
const keys = { "+": does.in, "=": does.in, "-": does.out, "0": whole, ArrowLeft: does.left, ArrowRight: does.right, Escape: () => { tip.hidden = true; } };
window.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select, textarea")) return;
  const act = keys[event.key];
  if (!act) return;
  act();
  event.preventDefault();
});
for (const link of document.querySelectorAll("[data-violation]")) {
  link.addEventListener("click", (event) => {
    event.preventDefault();
    chooseViolation(Number(link.dataset.violation));
    live.scrollIntoView({ block: "nearest", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
  });
}
const selector = byId("lock");
if (selector) selector.addEventListener("change", () => { view.lock = selector.value === "" ? null : Number(selector.value); drawOverview(); redraw(); });

function fit() {
  const width = Math.max(320, Math.floor(live.clientWidth));
  if (width === view.width && live.firstChild) return;
  view.width = width;
  drawOverview();
  draw();
}
document.documentElement.classList.add("scripted");
live.tabIndex = 0;
live.hidden = false;
overview.hidden = false;
byId("static").hidden = true;
fit();
readHash();
window.addEventListener("hashchange", readHash);
window.addEventListener("resize", () => requestAnimationFrame(fit));

// Elements over all lanes, and the picture as a whole.
const bounds = (from, to, least) => {
  const [a, b] = [edge(from), edge(to)];
  const more = Math.max(0, (least - (b - a)) / 2);
  return [px(a - more), px(b - a + 2 * more)];
};

function drawGrid(out) {
  const { times, places } = ticks();
  for (const t of times) {
    const mid = px(x(t));
    out.push(`<path class="grid" d="M${mid} ${frame.top}V${frame.bottom}"/>`);
    const anchor = mid > view.width - 24 ? "end" : "mid";
    out.push(`<text class="soft ${anchor}" x="${anchor === "end" ? view.width - 1 : mid}" y="${frame.bottom + 17}">${(t / 1e9).toFixed(places)} s</text>`);
  }
  out.push(`<path class="axis" d="M${frame.gutter} ${frame.bottom}H${right()}"/>`);
}

function drawBands(out) {
  for (const band of run.bands) {
    if (!seen(band[BAND.from], band[BAND.to])) continue;
    const [from, width] = bounds(band[BAND.from], band[BAND.to], 2);
    const style = band[BAND.style];
    if (!band[BAND.lanes].length) {
      out.push(`<rect class="band ${style}" x="${from}" y="${frame.top}" width="${width}" height="${frame.bottom - frame.top}"/>`);
      out.push(`<rect class="edge ${style}" x="${from}" y="${frame.top - 2}" width="${width}" height="2"/>`);
    }
    for (const lane of band[BAND.lanes]) {
      out.push(`<rect class="band ${style}" x="${from}" y="${run.lanes[lane][LANE.top] + 1}" width="${width}" height="${run.lanes[lane][LANE.height] - 2}"/>`);
    }
  }
}

// Each label goes on the first line where it overlaps no other; otherwise it is shortened or
// omitted.
function drawBandLabels(out) {
  const free = new Array(frame.lines).fill(-1e9);
  for (const band of run.bands) {
    if (band[BAND.lanes].length || !seen(band[BAND.from], band[BAND.to])) continue;
    const start = Math.max(edge(band[BAND.from]), frame.gutter);
    for (const text of [band[BAND.label], band[BAND.kind]]) {
      const width = textWidth(text);
      const left = Math.max(frame.gutter, Math.min(start, right() - width - 6));
      const line = free.findIndex((end) => end <= left);
      if (line < 0) continue;
      free[line] = left + width + 16;
      const top = 4 + frame.line * line;
      if (band[BAND.from] >= view.from) out.push(`<path class="leader ${band[BAND.style]}" d="M${px(start)} ${top}V${frame.top}"/>`);
      out.push(`<text class="halo" x="${px(left + 5)}" y="${top + 9}">${esc(text)}</text>`);
      break;
    }
  }
}

function drawLaneLabels(out) {
  run.lanes.forEach((lane, at) => {
    const taken = [];
    const place = (start, text, style, either) => {
      const width = textWidth(text);
      const fits = (left) => left >= frame.gutter - 1 && left + width <= right() + 8 && taken.every(([a, b]) => left > b + 5 || left + width + 5 < a);
      const left = (either ? [start, start - width] : [start]).find(fits);
      if (left === undefined) return;
      taken.push([left, left + width]);
      out.push(`<text class="${style} halo" x="${px(left)}" y="${px(lane[LANE.top] + 10.5)}">${esc(text)}</text>`);
    };
    for (const life of run.lives) {
      if (life[LIFE.lane] === at && seen(life[LIFE.from], life[LIFE.to])) {
        place(Math.max(frame.gutter, x(life[LIFE.from])), "worker " + life[LIFE.worker], "faint", false);
      }
    }
    for (const band of run.bands) {
      if (band[BAND.lanes].includes(at) && seen(band[BAND.from], band[BAND.to])) place(Math.max(frame.gutter, x(band[BAND.from])), band[BAND.kind], "soft", true);
    }
  });
}

function drawViolations(out) {
  for (const flag of run.flags) {
    if (!seen(flag[FLAG.from], flag[FLAG.to])) continue;
    const [from, width] = bounds(flag[FLAG.from], flag[FLAG.to], 16);
    const boxes = flag[FLAG.lanes].length ? flag[FLAG.lanes].map((lane) => [run.lanes[lane][LANE.top], run.lanes[lane][LANE.height]]) : [[frame.top, frame.bottom - frame.top]];
    for (const [top, height] of boxes) out.push(`<rect class="flag" x="${from}" y="${top + 2}" width="${width}" height="${height - 3}" rx="3"/>`);
  }
}

// Overlapping numbers are merged into a range.
function drawBadges(out) {
  const badges = [];
  run.flags.forEach((flag, at) => {
    if (!seen(flag[FLAG.from], flag[FLAG.to])) return;
    const [from, width] = bounds(flag[FLAG.from], flag[FLAG.to], 16);
    const mid = Math.min(Math.max((Math.max(from, frame.gutter) + Math.min(from + width, right())) / 2, frame.gutter), right());
    const last = badges[badges.length - 1];
    if (last && Math.abs(mid - last.mid) < 34) last.last = at + 1;
    else badges.push({ mid, first: at + 1, last: at + 1 });
  });
  for (const { mid, first, last } of badges) {
    const text = first === last ? String(first) : first + "–" + last;
    const width = Math.max(17, textWidth(text) + 10);
    const top = frame.top - 21;
    out.push(`<path class="flagline" d="M${px(mid)} ${top + 17}V${frame.bottom}"/><rect class="badge" x="${px(mid - width / 2)}" y="${top}" width="${px(width)}" height="17" rx="8.5"/>`);
    out.push(`<text class="number" x="${px(mid)}" y="${top + 12.3}">${text}</text>`);
  }
}

function drawOverview() {
  const [height, whole] = [Math.max(30, run.lanes.length * 4 + 10), { from: view.from, to: view.to }];
  [view.from, view.to] = [0, run.end];
  const out = [`<svg class="lh" width="${view.width}" height="${height}" aria-hidden="true">`];
  for (const band of run.bands) {
    const [from, width] = bounds(band[BAND.from], band[BAND.to], 2);
    if (!band[BAND.lanes].length) out.push(`<rect class="band ${band[BAND.style]}" x="${from}" y="0" width="${width}" height="${height}"/>`);
  }
  const step = (height - 10) / Math.max(1, run.lanes.length);
  const bars = paths();
  for (const list of spanRows.values()) {
    const held = list.filter((at) => run.spans[at][SPAN.grantedAt] !== null);
    for (const one of mergeNarrow(held.map((at) => [x(run.spans[at][SPAN.grantedAt]), x(run.spans[at][SPAN.reliedOnUntil]), at]))) {
      const span = run.spans[one.at];
      bars.bar("hold " + colour(span), one.x, 5 + span[SPAN.lane] * step, Math.max(0.6, one.to - one.x), Math.min(6, Math.max(1, step - 1.5)));
    }
  }
  bars.into(out);
  for (const flag of run.flags) {
    const [from, width] = bounds(flag[FLAG.from], flag[FLAG.to], 3);
    out.push(`<rect class="badge" x="${from}" y="0" width="${width}" height="4"/>`);
  }
  const [end, base] = [right(), frame.gutter];
  out.push(`<rect class="frame" x="${base}" y="0.5" width="${end - base}" height="${height - 1}"/><g id="pane"></g></svg>`);
  [view.from, view.to] = [whole.from, whole.to];
  overview.innerHTML = out.join("");
  overview.dataset.height = height;
}

function drawPane() {
  const [base, end, height] = [frame.gutter, right(), Number(overview.dataset.height)];
  const place = (t) => base + (t / run.end) * (end - base);
  const [from, to] = [place(view.from), place(view.to)];
  byId("pane").innerHTML = view.from <= 0 && view.to >= run.end ? ""
    : `<rect class="veil" x="${base}" y="0" width="${px(from - base)}" height="${height}"/><rect class="veil" x="${px(to)}" y="0" width="${px(end - to)}" height="${height}"/>` +
      `<rect class="pane" x="${px(from)}" y="0.75" width="${px(Math.max(2, to - from))}" height="${height - 1.5}" rx="2"/>`;
}

function draw() {
  const focused = document.activeElement && document.activeElement.dataset ? document.activeElement.dataset.span : undefined;
  const out = [`<svg class="lh" width="${view.width}" height="${frame.height}" role="group" aria-label="timeline">`];
  // Elements at the very beginning or end may extend beyond it.
  const [from, to] = [view.from <= 0 ? frame.gutter - 8 : frame.gutter, view.to >= run.end ? view.width : right()];
  out.push(`<clipPath id="clip"><rect x="${from}" y="0" width="${to - from}" height="${frame.height}"/></clipPath>`);
  drawGrid(out);
  out.push('<g clip-path="url(#clip)">');
  drawBands(out);
  drawLanes(out);
  drawViolations(out);
  out.push("</g>");
  drawBadges(out);
  drawBandLabels(out);
  drawLaneLabels(out);
  for (const lane of run.lanes) {
    out.push(`<text class="soft" x="4" y="${px(lane[LANE.top] + frame.above + frame.bar / 2 + 4)}">${esc(lane[LANE.name])}</text>`);
  }
  out.push("</svg>");
  live.innerHTML = out.join("");
  drawPane();
  byId("window").textContent = view.from <= 0 && view.to >= run.end ? "the whole run, " + formatDuration(run.end) : `${formatTime(view.from)} to ${formatTime(view.to)} (${formatDuration(view.to - view.from)})`;
  if (focused !== undefined) {
    const again = live.querySelector(`[data-span="${focused}"]`);
    if (again) again.focus({ preventScroll: true });
  }
}

// Draws the visible part of the lanes.
const seen = (from, to) => to >= view.from && from <= view.to;
const colour = (span) => "l" + (span[SPAN.lock] % COLOURS) + (view.lock !== null && span[SPAN.lock] !== view.lock ? " dim" : "");

// Collects small shapes of the same style into one path, because a browser draws few elements faster.
function paths() {
  const all = new Map();
  return {
    bar: (look, left, top, width, height) => {
      if (!all.has(look)) all.set(look, []);
      all.get(look).push(`M${px(left)} ${px(top)}h${px(width)}v${px(height)}h${-px(width)}z`);
    },
    into: (out) => { for (const [look, parts] of all) out.push(`<path class="${look}" d="${parts.join("")}"/>`); },
  };
}

function drawLifetimes(out) {
  for (const life of run.lives) {
    if (!seen(life[LIFE.from], life[LIFE.to])) continue;
    const [from, to] = [px(edge(life[LIFE.from])), px(edge(life[LIFE.to]))];
    const top = y(life[LIFE.lane], 0);
    out.push(`<path class="life" d="M${from} ${px(top + frame.bar / 2)}H${to}"/>`);
    if (life[LIFE.from] >= view.from) out.push(`<path class="born" d="M${from} ${px(top - 2)}V${px(top + frame.bar + 2)}"/>`);
  }
}

// Draws a cross where a process was killed.
function drawKills(out) {
  for (const life of run.lives) {
    if (!life[LIFE.killed] || !seen(life[LIFE.to], life[LIFE.to])) continue;
    const cross = `M${px(x(life[LIFE.to]))} ${px(y(life[LIFE.lane], 0) + frame.bar / 2)}m-5 -5l10 10m-10 0l10 -10`;
    out.push(`<path class="under" d="${cross}"/><path class="dead" d="${cross}"/>`);
  }
}

function drawPauses(out) {
  for (const pause of run.pauses) {
    if (!seen(pause[PAUSE.from], pause[PAUSE.to])) continue;
    const lane = run.lanes[pause[PAUSE.lane]];
    const [from, to] = [edge(pause[PAUSE.from]), edge(pause[PAUSE.to])];
    const pattern = pause[PAUSE.stalled] ? "g-stall" : "g-stop";
    out.push(`<rect fill="url(#${pattern})" x="${px(from)}" y="${lane[LANE.top] + 1}" width="${px(Math.max(1, to - from))}" height="${lane[LANE.height] - 2}"/>`);
  }
}

function drawLines(out, list, style, from, to) {
  const high = style === "wait" ? 2 : 4;
  const bars = paths();
  const items = [];
  for (const at of list) {
    const span = run.spans[at];
    const [a, b] = [from(span), to(span)];
    if (b > a && seen(a, b)) items.push([edge(a), edge(b), at]);
  }
  for (const one of mergeNarrow(items)) {
    if (one.to - one.x < 0.5) continue;
    const span = run.spans[one.at];
    bars.bar(`${style} ${colour(span)}`, one.x, y(span[SPAN.lane], span[SPAN.row]) + (frame.bar - high) / 2, one.to - one.x, high);
  }
  bars.into(out);
}

function drawHolds(out, list) {
  const items = [];
  const bars = paths();
  for (const at of list) {
    const span = run.spans[at];
    if (span[SPAN.grantedAt] !== null && seen(span[SPAN.grantedAt], span[SPAN.reliedOnUntil])) items.push([edge(span[SPAN.grantedAt]), edge(span[SPAN.reliedOnUntil]), at]);
  }
  for (const one of mergeNarrow(items)) {
    const span = run.spans[one.at];
    const [top, width] = [px(y(span[SPAN.lane], span[SPAN.row])), Math.max(0.6, one.to - one.x)];
    const style = span[SPAN.shared] ? "shared" : "hold";
    if (one.count > 1 || width < 5) {
      bars.bar(`${style} ${colour(span)}`, one.x, top, width, frame.bar);
      continue;
    }
    const name = esc(spanTitle(span) + ", worker " + span[SPAN.worker]);
    out.push(`<rect class="item ${style} ${colour(span)}" tabindex="0" role="img" data-span="${one.at}" aria-label="${name}" x="${px(one.x)}" y="${top}" width="${px(width)}" height="${frame.bar}" rx="2"/>`);
    const token = span[SPAN.token];
    if (token && textWidth(token) + 4 <= width) {
      // In the middle of its visible part.
      const mid = (Math.max(one.x, frame.gutter) + Math.min(one.to, right())) / 2;
      const dim = view.lock !== null && span[SPAN.lock] !== view.lock ? " dim" : "";
      out.push(`<text class="token${dim}" x="${px(mid)}" y="${px(top + frame.bar / 2 + 3.6)}">${token}</text>`);
    }
  }
  bars.into(out);
}

function drawEnds(out, span) {
  const top = y(span[SPAN.lane], span[SPAN.row]);
  const outcome = span[SPAN.outcome];
  if (span[SPAN.grantedAt] === null) {
    if (outcome === OUTCOME.timedOut || outcome === OUTCOME.failed || outcome === OUTCOME.unknown) {
      out.push(`<path class="fail" d="M${px(edge(span[SPAN.doneAt]))} ${px(top + frame.bar / 2 - 4)}v8"/>`);
    }
    return;
  }
  const [sure, to] = [edge(span[SPAN.reliedOnUntil]), edge(span[SPAN.heldUntil])];
  if (to - sure >= 1.5) {
    out.push(`<rect class="past ${colour(span)}" x="${px(sure)}" y="${px(top + 2.5)}" width="${px(to - sure)}" height="${px(frame.bar - 5)}" rx="2"/>`);
  }
  if (outcome === OUTCOME.killed && span[SPAN.deadline] > span[SPAN.heldUntil]) {
    const low = px(top + frame.bar + 1.5);
    out.push(`<path class="tail ${colour(span)}" d="M${px(to)} ${low}H${px(Math.min(edge(span[SPAN.deadline]), right()))}"/>`);
  }
  if (outcome === OUTCOME.lost) out.push(`<path class="lost" d="M${px(to)} ${px(top - 5)}m-5 0h10l-5 8z"/>`);
}

function drawMarks(out) {
  for (const list of markRows.values()) {
    const last = [-99, -99, -99, -99];
    const here = list.map((at) => run.marks[at]).filter((mark) => seen(mark[MARK.to], mark[MARK.to]));
    // Many dots would be a thick line.
    const dot = here.length > view.width / 10 ? 1.6 : 4;
    const dots = [];
    for (const mark of here) {
      const [mid, look] = [x(mark[MARK.to]), mark[MARK.style]];
      if (mid - last[look] < 2.5) continue;
      last[look] = mid;
      // Just below the bar: on it they would cover the token.
      const low = y(mark[MARK.lane], mark[MARK.row]) + frame.bar + 4;
      if (look === MARK_STYLE.accepted) dots.push(`M${px(mid)} ${px(low)}h.01`);
      else if (look === MARK_STYLE.refused) out.push(`<circle class="refused" cx="${px(mid)}" cy="${px(low)}" r="3.75"/>`);
      else if (look === MARK_STYLE.read) out.push(`<path class="read" d="M${px(mid)} ${px(low - 2)}v4"/>`);
      else out.push(`<circle class="unsure" cx="${px(mid)}" cy="${px(low)}" r="2.5"/>`);
    }
    if (dots.length) out.push(`<path class="dots" stroke-width="${dot}" d="${dots.join("")}"/>`);
  }
}

function drawLanes(out) {
  drawLifetimes(out);
  drawPauses(out);
  for (const list of spanRows.values()) {
    drawLines(out, list, "wait", (span) => span[SPAN.requestedAt], (span) => span[SPAN.grantedAt] ?? span[SPAN.doneAt]);
    drawLines(out, list, "give", (span) => span[SPAN.heldUntil], (span) => (span[SPAN.grantedAt] === null ? 0 : span[SPAN.doneAt]));
    drawHolds(out, list);
  }
  for (const span of run.spans) {
    const last = Math.max(span[SPAN.doneAt], span[SPAN.outcome] === OUTCOME.killed ? span[SPAN.deadline] : 0);
    if (seen(span[SPAN.requestedAt], last)) drawEnds(out, span);
  }
  drawKills(out);
  drawMarks(out);
}

// Finds the elements under the pointer in the data, so that it also finds those too narrow to be
// drawn.
const tip = byId("tip");
const MOST = 4;

function spanTitle(span) {
  const lock = run.locks[span[SPAN.lock]];
  return span[SPAN.grantedAt] === null ? `requests ${lock}` : `holds ${lock}` + (span[SPAN.token] ? `, token ${span[SPAN.token]}` : "");
}
const part = (title, pairs) =>
  `<div><b>${esc(title)}</b><dl>` + pairs.filter(([, value]) => value).map(([name, value]) => `<dt>${esc(name)}</dt><dd>${esc(value)}</dd>`).join("") + "</dl></div>";

function spanTip(span) {
  const life = run.lives.find((life) => life[LIFE.worker] === span[SPAN.worker]);
  const granted = span[SPAN.grantedAt];
  const outcome = OUTCOME_TEXTS[span[SPAN.outcome]] + (span[SPAN.reason] ? ": " + span[SPAN.reason] : "");
  const late = granted !== null && span[SPAN.heldUntil] > span[SPAN.reliedOnUntil];
  return part(spanTitle(span), [
    ["worker", span[SPAN.worker] + (life && life[LIFE.pid] !== null ? `, process ${life[LIFE.pid]}` : "")],
    ["how", span[SPAN.details]],
    ["requested", formatTime(span[SPAN.requestedAt])],
    ["queued", span[SPAN.queued] === null ? "" : "by " + formatTime(span[SPAN.queued])],
    [granted === null ? "waited" : "granted", granted === null ? formatDuration(span[SPAN.doneAt] - span[SPAN.requestedAt]) : `${formatTime(granted)}, after ${formatDuration(granted - span[SPAN.requestedAt])}`],
    ["held", granted === null ? "" : `until ${formatTime(span[SPAN.reliedOnUntil])}, for ${formatInTtls(span[SPAN.reliedOnUntil] - granted)}`],
    ["then", late ? `past its deadline for ${formatDuration(span[SPAN.heldUntil] - span[SPAN.reliedOnUntil])}, until it was notified` : ""],
    ["deadline", granted !== null && span[SPAN.deadline] ? formatTime(span[SPAN.deadline]) : ""],
    ["end", outcome],
    ["call", span[SPAN.op]],
  ]);
}
function markTip(mark) {
  return part(mark[MARK.what], [
    ["register", mark[MARK.register]], ["token", mark[MARK.token]], ["worker", String(mark[MARK.worker])],
    ["from", formatTime(mark[MARK.from])], ["to", formatTime(mark[MARK.to])], ["outcome", mark[MARK.outcome]],
  ]);
}
function bandTip(band) {
  return part(`fault ${band[BAND.fault]}: ${band[BAND.kind]} ${band[BAND.target]}`, [
    ["what", band[BAND.description]], ["from", formatTime(band[BAND.from])],
    ["for", band[BAND.to] > band[BAND.from] ? formatDuration(band[BAND.to] - band[BAND.from]) : ""], ["note", band[BAND.note]],
  ]);
}
function flagTip(flag, at) {
  return part(`violation ${at + 1}: ${flag[FLAG.title]}`, [["guarantee", flag[FLAG.guarantee]], ["from", formatTime(flag[FLAG.from])],
    ["for", flag[FLAG.to] > flag[FLAG.from] ? formatDuration(flag[FLAG.to] - flag[FLAG.from]) : ""]]);
}

function under(left, top) {
  const found = [];
  let more = 0;
  const add = (tip) => { if (found.length < MOST) found.push(tip()); else more++; };
  const slack = (4 / (right() - frame.gutter)) * (view.to - view.from);
  const t = timeAt(left);
  const near = (from, to) => t >= from - slack && t <= to + slack;
  const lane = run.lanes.findIndex((lane) => top >= lane[LANE.top] && top < lane[LANE.top] + lane[LANE.height]);
  const inLanes = (lanes) => !lanes.length || lanes.includes(lane);
  run.flags.forEach((flag, at) => { if (near(flag[FLAG.from], flag[FLAG.to]) && (top < frame.top || inLanes(flag[FLAG.lanes]))) add(() => flagTip(flag, at)); });
  if (lane >= 0) {
    const inside = top - run.lanes[lane][LANE.top] - frame.above;
    const row = Math.max(0, Math.min(run.lanes[lane][LANE.rows] - 1, Math.floor(inside / (frame.bar + frame.between))));
    for (const at of markRows.get(lane * 16 + row) || []) if (near(run.marks[at][MARK.to], run.marks[at][MARK.to])) add(() => markTip(run.marks[at]));
    const spans = (spanRows.get(lane * 16 + row) || []).map((at) => run.spans[at]).filter((span) => near(span[SPAN.requestedAt], span[SPAN.doneAt]));
    // Elements under the pointer come before those near it.
    const on = (span) => (t >= span[SPAN.requestedAt] && t <= span[SPAN.doneAt] ? 0 : 1);
    spans.sort((a, b) => on(a) - on(b));
    const exact = spans.filter((span) => !on(span));
    for (const span of exact.length ? exact : spans) add(() => spanTip(span));
    for (const pause of run.pauses) {
      if (pause[PAUSE.lane] === lane && near(pause[PAUSE.from], pause[PAUSE.to])) {
        add(() => part(`worker ${pause[PAUSE.worker]} ${pause[PAUSE.stalled] ? "did not run: the machine was busy" : "was stopped"}`,
          [["from", formatTime(pause[PAUSE.from])], ["for", formatInTtls(pause[PAUSE.to] - pause[PAUSE.from])]]));
      }
    }
    for (const life of run.lives) {
      if (life[LIFE.lane] !== lane || !near(life[LIFE.from], life[LIFE.to])) continue;
      if (life[LIFE.killed] && near(life[LIFE.to], life[LIFE.to])) add(() => part(`worker ${life[LIFE.worker]} was killed`, [["at", formatTime(life[LIFE.to])]]));
      else if (!found.length) add(() => part(`worker ${life[LIFE.worker]}`, [["process", life[LIFE.pid] === null ? "" : String(life[LIFE.pid])], ["from", formatTime(life[LIFE.from])], ["to", formatTime(life[LIFE.to])]]));
    }
  }
  if (top < frame.bottom) for (const band of run.bands) if (near(band[BAND.from], band[BAND.to]) && (top < frame.top || inLanes(band[BAND.lanes]))) add(() => bandTip(band));
  return found.join("") + (more ? `<div>and ${more} more here: zoom in</div>` : "");
}

// Places the tip beside the pointer, and inside the page.
function showTip(html, left, top) {
  tip.hidden = !html;
  if (!html) return;
  tip.innerHTML = html;
  const stage = tip.parentElement.getBoundingClientRect();
  const box = tip.getBoundingClientRect();
  const over = left + 16 + box.width > document.documentElement.clientWidth - 8;
  const below = top + 18 + box.height <= window.innerHeight - 8;
  tip.style.left = Math.max(8 - stage.left, (over ? left - 16 - box.width : left + 16) - stage.left) + "px";
  tip.style.top = (below || top < box.height ? top + 18 : top - 14 - box.height) - stage.top + "px";
}

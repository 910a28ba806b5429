// The instruction that is selected, and the search.

function select(i) {
  state.selected = i;
  state.task = null;
  const panel = $("detail");
  panel.hidden = i < 0;
  panel.replaceChildren();
  $("said").textContent = i < 0 ? "" : `${label(i)} on ${D.streams[C.stream[i]]}, `
    + `ran ${ms(C.ended[i] - C.started[i])} ms, ${D.lines.at(C.line[i])}`;
  if (i >= 0) describeInto(panel, i);
  draw();
}

function describeInto(panel, i) {
  const line = D.lines.at(C.line[i]), module = D.modules[C.module[i]];
  const forward = C.forward[i] < 0 ? "" : D.lines[C.forward[i]];
  panel.append(el("div", {}, el("b", {}, label(i)), " on " + D.streams[C.stream[i]],
    button("×", () => select(-1), "close")));
  if (C.status[i]) {
    panel.append(el("div", { class: "critical" },
      C.status[i] === 1 << 20 ? "did not run for want of what failed" : "failed"));
  }
  panel.append(el("div", { class: "dim" }, line), el("pre", {}, D.sources[line] || ""));
  if (forward) {
    panel.append(el("div", { class: "dim" }, "forward " + forward),
      el("pre", {}, D.sources[forward] || ""));
  }
  if (module) panel.append(el("div", { class: "dim" }, "module " + module));
  panel.append(el("p", {}, button("where it began to wait", () => rewindTo(i, "received")), " ",
    button("where it started", () => rewindTo(i, "started"))));
  panel.append(table(["", "ms"], [["issued at", ms(C.issued[i])],
    ...(C.clock[i] ? [["handed over at", ms(C.opened[i])]] : []), ["started at", ms(C.started[i])],
    ["ran" + (C.clock[i] ? ", " + D.timed[C.clock[i]] : ""), ms(C.ended[i] - C.started[i])],
    ["waited: dep", ms(C.dep[i])], ["queue", ms(C.queue[i])], ["sched", ms(C.sched[i])]]));
  if (tieOf(i) >= 0) panel.append(...together(tieOf(i), i));
  const operands = [];
  for (let k = C.offsets[i]; k < C.offsets[i + 1]; k++) {
    const access = ACCESS[C.opaccess[k]];
    operands.push(el("span", { class: access }, ` ${access} t${C.tensor[k]}`));
  }
  panel.append(el("p", {}, "operands", ...operands));
  const link = (j, e, other) => el("div", {}, go(label(j), () => { select(j); reveal(j); }), " ",
    el("span", { class: ACCESS[C.access[e]] }, `${ACCESS[C.access[e]]} ${HAZARD[C.hazard[e]]}`), other);
  panel.append(el("h4", {},
    into[i] < into[i + 1] ? "waited for" : "waited for no instruction of this run"));
  for (let e = into[i]; e < into[i + 1]; e++) {
    panel.append(link(C.source[e], e, C.producer[i] === C.source[e] ? " · gating" : ""));
  }
  panel.append(el("h4", {}, outStart[i] < outStart[i + 1] ? "waits for it" : "nothing waits for it"));
  const last = Math.min(outStart[i + 1], outStart[i] + 30);
  for (let k = outStart[i]; k < last; k++) {
    panel.append(link(C.target[outEdges[k]], outEdges[k], ""));
  }
  if (last < outStart[i + 1]) {
    panel.append(el("div", { class: "dim" }, `and ${outStart[i + 1] - last} more`));
  }
}

// A rank's part of a collective: the others, and who was waited for.
function together(k, i) {
  const late = lateOf(k), last = C["tie.begin"][partTie(k, late)];
  return [el("h4", {}, `${D.ranks.names[k]} ${k} of all ranks`), ...D.parts.map((part, r) => {
    const j = C["tie.instruction"][partTie(k, r)], waited = last - C["tie.begin"][partTie(k, r)];
    return el("div", {}, j === i ? el("b", {}, label(j)) : go(label(j), () => { select(j); reveal(j); }), ` ${part.name} `,
      r === late ? el("span", { class: "critical" }, "came last") : el("span", { class: "dim" }, `waited ${ms(waited)} ms for it`));
  })];
}

function search(text) {
  if ($("search").value !== text) $("search").value = text;
  state.found = []; state.at = 0;
  const wanted = text.trim().toLowerCase();
  if (wanted) {
    const has = (name) => name.toLowerCase().includes(wanted);
    const ops = D.names.map(has), where = D.lines.map(has), inside = D.modules.map(has);
    for (let i = 0; i < N; i++) {
      if (("#" + C.seq[i]) === wanted || String(C.seq[i]) === wanted || ops[C.op[i]]
        || where[C.line[i]] || inside[C.module[i]]) state.found.push(i);
    }
  }
  state.marks = new Set(state.found);
  $("hits").textContent = wanted ? `${state.found.length} found`
    + (state.found.length ? ", Enter: next" : "") : "";
  draw();
}
$("search").addEventListener("input", (event) => search(event.target.value));
$("search").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || !state.found.length) return;
  if (state.tab !== "timeline" && state.tab !== "dag") show("dag");
  const i = state.found[state.at++ % state.found.length];
  select(i); reveal(i);
});

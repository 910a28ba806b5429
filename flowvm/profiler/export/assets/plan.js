// Graphs: what passes made of what was captured, side by side, and what replays took. A task that is
// selected is marked here, in the timeline and beside.

const actor = (n) => "a" + String(n).padStart(2, "0");
const planRows = new Map(); // "plan task" -> the rows that show it
let planned = false;

drawers.plan = () => {
  if (!planned) { planned = true; D.plans.forEach((plan) => $("plan").append(...planView(plan))); }
  markTask();
};
$("plan").append(D.plans.length ? el("p", { class: "dim" }, "what the graphs' launches ran, summed over all of them; a click on a node or a task shows it everywhere")
  : el("p", {}, "no graph was launched, or its tasks were not recorded (level 2)"));

function planView(plan) {
  const replays = `${plan.name}: ${plan.launches.toLocaleString("en")} ${plan.launches === 1 ? "launch" : "launches"}`;
  const made = [el("h3", {}, replays + (plan.registers ? `, ${plan.registers} registers, chunk ${bytes(plan.chunk)}` : "")),
    ...plan.notes.map((said) => el("p", {}, said))];
  if (plan.actors.length) {
    made.push(table(["actor", "", "stream", "tasks", "inputs", "credits", "acts", "ms each", "busy", "waited for"], plan.actors.map((a) => [actor(a.number),
      a.label, a.stream, a.tasks, a.inputs.map(actor).join(" "), a.credits.map(([n, back]) => `${actor(n)}-${back}`).join(" "), a.acts, ms(a.each), meter(a.busy, 120), a.state])));
  }
  const drawn = plan.drawing ? [el("h4", {}, plan.actors.length ? "actors: an edge for each regst, a dashed one back for each credit, with its number" : "tasks: an edge from who writes a register to who uses it"),
    el("div", { class: "wide" }, picture(plan.drawing, `${plan.actors.length ? "actors" : "tasks"} of ${plan.name}; the tables say the same`))] : [];
  if (plan.actors.length) made.push(...drawn);
  if (plan.passes) made.push(...passesView(plan)); else made.push(el("p", { class: "dim" }, "what its passes did is not known: the graph was gone when the run was collected, or has more than 3,000 nodes"));
  if (plan.stages.length > 1) made.push(...stagesView(plan.stages));
  if (!plan.actors.length) made.push(...drawn);
  made.push(el("h4", {}, "tasks"), sortable(["task", "op", "n", "ms", "", "module", "stream", "line"], plan.tasks.map((t) => [
    taskLink(plan, t.task, String(t.task)), t.op, t.count, t.time ? ms(t.time) : "", meter(t.time / (plan.time || 1), 120), t.module, t.stream, t.line]),
  plan.tasks.map((t) => [t.task, t.op, t.count, t.time, t.time, t.module, t.stream, t.line])));
  made.at(-1).querySelectorAll("tr").forEach((row, k) => { if (k) rowsOf(plan, plan.tasks[k - 1].task).push(row); });
  return made;
}
// The graph as captured and behind each pass that changed it, one at a time.
function stagesView(stages) {
  const at = el("select", { "aria-label": "pass", onchange: () => turn(Number(at.value)) }, ...stages.map(([title], k) => el("option", { value: k }, `${k} ${title.slice(0, 70)}`)));
  const said = el("p"), shown = el("div", { class: "wide" });
  const turn = (k) => {
    k = Math.max(0, Math.min(stages.length - 1, k));
    at.value = k; said.textContent = stages[k][0];
    shown.replaceChildren(picture(stages[k][1], `the graph, ${stages[k][0]}`));
  };
  turn(0);
  return [el("h4", {}, "pass by pass"), el("div", { class: "bar" }, button("◀", () => turn(Number(at.value) - 1), "the pass before"),
    button("▶", () => turn(Number(at.value) + 1), "the next pass"), at), said, shown];
}
function rowsOf(plan, number) {
  const key = plan.name + " " + number;
  if (!planRows.has(key)) planRows.set(key, []);
  return planRows.get(key);
}
const taskLink = (plan, number, text) => go(text, () => selectTask(plan, number));

// --- passes ----------------------------------------------------------------------------------
// Captured nodes at the left, what runs at the right; nodes that were merged stand together.
function passesView(plan) {
  const { captured, passes, idle, left_out, pairs } = plan.passes, moved = movedIn(pairs), kinds = { same: 0, merged: 0, removed: 0, added: 0, moved: 0 };
  const times = new Map(plan.tasks.map((t) => [t.task, t])), body = [];
  pairs.forEach(([before, after, task, why], k) => {
    const kind = !after ? "removed" : !before.length ? "added" : before.length > 1 || before[0][1] !== after[1] ? "merged" : moved.has(k) ? "moved" : "same";
    kinds[kind] += kind === "removed" || kind === "merged" ? before.length : 1;
    const glyph = { same: "→", merged: before.length > 1 ? "⇉" : "⇒", removed: "×", added: "+", moved: "↕" }[kind], took = times.get(task);
    const row = el("tr", { class: kind }, el("td", {}, ...before.map(nodeText)), el("td", { class: "glyph", title: kind }, glyph),
      el("td", {}, after ? el("div", {}, task >= 0 ? taskLink(plan, task, `${after[0]} ${after[1]}`) : `${after[0]} ${after[1]}`, el("span", { class: "dim" }, ` ${after[2]} ${after[4]}`))
        : el("span", { class: "critical" }, `removed by ${why}`)),
      el("td", { class: "n" }, took && took.time ? ms(took.time) : ""), el("td", {}, took ? meter(took.time / (plan.time || 1), 80) : ""));
    if (task >= 0) {
      rowsOf(plan, task).push(row);
      row.addEventListener("click", (event) => { if (!event.target.closest("button")) selectTask(plan, task); });
    }
    body.push(row);
  });
  const said = `${captured} nodes were captured, ${captured - kinds.removed} of them run as ${pairs.filter(([, after]) => after).length}: `
    + [[kinds.removed, "removed"], [kinds.merged, "merged"], [kinds.moved, "moved"], [kinds.added, "added"]].filter(([n]) => n).map(([n, what]) => `${n} ${what}`).join(", ");
  const sides = el("table", { class: "passes" }, el("tr", {}, ...["captured", "", "runs", "ms", ""].map((h) => el("th", { scope: "col" }, h))), ...body);
  const only = el("input", { type: "checkbox", onchange: () => sides.classList.toggle("changed", only.checked) });
  return [el("h4", {}, "passes"), el("p", {}, passes.length ? said : `${captured} nodes were captured, and no pass changed any`),
    ...(passes.length ? [table(["pass", "before", "after", "what it did"], passes.map(([name, before, after, did]) => [name, before, after, did]))] : []),
    ...[["nothing to do", idle], ["switched off", left_out]].filter(([, names]) => names.length).map(([what, names]) => el("p", { class: "dim" }, `${what}: ${names.join(", ")}`)),
    el("label", {}, only, " only what changed"), el("div", { class: "wide" }, sides)];
}
function nodeText([number, name, result, scope, line]) {
  return el("div", {}, `${number} ${name} `, el("span", { class: "const" }, result), el("span", { class: "dim" }, ` ${[scope, line].filter((text) => text).join(" ")}`));
}
// The fewest pairs that have to move so that the others run in the order in which they were captured.
function movedIn(pairs) {
  const own = pairs.map(([before, after], k) => [k, after && before.length ? before[before.length - 1][0] : -1]).filter(([, n]) => n >= 0);
  const tails = [], via = new Map(); // tails[j]: the last of the best rising chain of length j + 1
  for (const [k, n] of own) {
    let low = 0, high = tails.length;
    while (low < high) { const middle = (low + high) >> 1; if (tails[middle][1] < n) low = middle + 1; else high = middle; }
    via.set(k, low ? tails[low - 1][0] : -1);
    tails[low] = [k, n];
  }
  const moved = new Set(own.map(([k]) => k));
  for (let k = tails.length ? tails.at(-1)[0] : -1; k >= 0; k = via.get(k)) moved.delete(k);
  return moved;
}

// --- the task that is selected ---------------------------------------------------------------
function selectTask(plan, number, launch = -1) {
  select(-1);
  state.task = { plan: plan.name, number };
  const panel = $("detail"), task = plan.tasks.find((t) => t.task === number), pair = plan.passes && plan.passes.pairs.find((p) => p[2] === number);
  const launches = [];
  for (let i = 0; i < N; i++) if (op(i) === plan.name) launches.push(i);
  panel.hidden = false;
  panel.append(el("div", {}, el("b", {}, `task ${number} ${task ? task.op : pair[1][1]}`), ` of ${plan.name}`, button("×", () => select(-1), "close")));
  if (task) {
    panel.append(el("div", { class: "dim" }, task.line), el("pre", {}, D.sources[task.line] || ""),
      ...(task.module ? [el("div", { class: "dim" }, "module " + task.module)] : []),
      table(["", "ms"], [["ran " + task.count + " times", ms(task.time)], ["each", ms(task.time / Math.max(1, task.count))]]));
  }
  if (pair) panel.append(el("h4", {}, pair[0].length ? `does the work of ${counted(pair[0].length, "captured node")}` : "was added by a pass"), ...pair[0].map(nodeText));
  panel.append(el("h4", {}, "launches"), ...launches.slice(0, 12).map((i) => el("div", {}, i === launch ? "▸ " : "", go(label(i), () => { select(i); reveal(i); }), ` ${ms(C.ended[i] - C.started[i])} ms`)));
  if (launches.length > 12) panel.append(el("div", { class: "dim" }, `and ${launches.length - 12} more`));
  $("said").textContent = panel.firstChild.textContent;
  draw();
}
function markTask() {
  for (const rows of planRows.values()) for (const row of rows) row.removeAttribute("aria-current");
  const rows = state.task ? planRows.get(state.task.plan + " " + state.task.number) || [] : [];
  for (const row of rows) row.setAttribute("aria-current", "true");
  if (rows.length && !rows.some((row) => { const box = row.getBoundingClientRect(); return box.top > 60 && box.bottom < innerHeight - 60; })) rows[0].scrollIntoView({ block: "center" });
}

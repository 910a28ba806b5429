// Graphs with their tasks, and the source with what each line took.

const actor = (n) => "a" + String(n).padStart(2, "0");
$("plan").append(D.plans.length ? el("p", { class: "dim" }, "what the graphs' launches ran, summed over all of them") : el("p", {}, "no graph was launched, or its tasks were not recorded (level 2)"),
  ...D.plans.map((p) => el("div", {}, el("h3", {}, `${p.name}: ${p.launches} launches` + (p.registers ? `, ${p.registers} registers, chunk ${bytes(p.chunk)}` : "")),
    ...p.notes.map((said) => el("p", {}, said)),
    ...(p.actors.length ? [table(["actor", "", "stream", "tasks", "inputs", "credits", "acts", "ms each", "busy", "waited for"], p.actors.map((a) => [actor(a.number),
      a.label, a.stream, a.tasks, a.inputs.map(actor).join(" "), a.credits.map(([n, back]) => `${actor(n)}-${back}`).join(" "), a.acts, ms(a.each),
      el("span", { class: "meter", style: `width:${Math.round(120 * a.busy)}px` }), a.state]))] : []),
    table(["task", "op", "n", "ms", "", "module", "stream", "line"], p.tasks.map((t) => [t.task, t.op, t.count, t.time ? ms(t.time) : "",
      el("span", { class: "meter", style: `width:${Math.round(120 * t.time / (p.time || 1))}px` }), t.module, t.stream, t.line])))));
$("source").append(table(["line", "n", "ms", "", "code"], D.tables.line.slice().sort((a, b) => b.run - a.run).map((r) => [
  go(r.name || "(flowvm itself)", () => search(r.name)), r.count, ms(r.run),
  el("span", { class: "meter", style: `width:${Math.round(160 * r.run / Math.max(1, ...D.tables.line.map((l) => l.run)))}px` }), D.sources[r.name] || ""])));

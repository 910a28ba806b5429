// Memory over time, by what it was for; and who holds it at the slider's moment, by module and line.

const GRAPH = [70, 20]; // pixels in front of and behind the curve
drawers.memory = () => {
  const time = state.moment >= 0 ? state.time : -1;
  D.memories.forEach((memory, m) => {
    const [g, width, height] = fit(memoryViews[m].canvas);
    const parts = D.purposes.map(([name]) => C[`memory${m}.${name}`]), top = memory.peak || 1, count = parts[0].length;
    const x = (t) => GRAPH[0] + t / D.wall * (width - GRAPH[0] - GRAPH[1]), y = (n) => height - 20 - n / top * (height - 40);
    g.fillStyle = color("dim");
    for (const share of [0, 0.5, 1]) { g.fillText(bytes(Math.round(share * top)), 4, y(share * top)); g.fillRect(GRAPH[0], y(share * top), width - GRAPH[0] - GRAPH[1], 1); }
    const below = new Float64Array(count);
    parts.forEach((part, k) => { // each stands on those before it
      g.beginPath();
      for (let c = 0; c < count; c++) { g.lineTo(x(c * D.wall / count), y(below[c] + part[c])); g.lineTo(x((c + 1) * D.wall / count), y(below[c] + part[c])); }
      for (let c = count - 1; c >= 0; c--) { g.lineTo(x((c + 1) * D.wall / count), y(below[c])); g.lineTo(x(c * D.wall / count), y(below[c])); }
      for (let c = 0; c < count; c++) below[c] += part[c];
      g.fillStyle = color(D.purposes[k][1]); g.fill();
    });
    g.fillStyle = color("dim");
    for (const share of [0, 0.25, 0.5, 0.75]) g.fillText(ms(share * D.wall) + " ms", x(share * D.wall), height - 8);
    g.fillStyle = color("critical"); g.fillRect(x(memory.peak_time) - 1, y(top), 2, height - 20 - y(top));
    g.fillText("peak", Math.min(x(memory.peak_time) + 5, width - 40), y(top) - 8);
    if (time >= 0) { g.fillStyle = color("mark"); g.fillRect(x(Math.min(time, D.wall)) - 1, 0, 2, height - 20); }
    holdersInto(m, time);
  });
};

// The table of who holds what: at the slider's moment, or before that is set at the peak.
function holdersInto(m, time) {
  const memory = D.memories[m], view = memoryViews[m], at = time >= 0 ? time : memory.peak_time;
  if (view.shown === at) return;
  view.shown = at;
  const level = machine().live(m, at), found = holdersAt(D, C, m, at, level), most = found.length ? found[0].nbytes : 1;
  const kinds = D.purposes.map(([name, style]) => [name, style, found.reduce((sum, h) => sum + (h.kind === name ? h.nbytes : 0), 0)]).filter(([, , n]) => n);
  const style = new Map(D.purposes);
  view.holders.replaceChildren(
    el("h4", {}, time >= 0 ? `at ${ms(at)} ms: ${bytes(level)}` : `at the peak, ${ms(at)} ms: ${bytes(level)}`),
    el("p", { class: "legend" }, ...kinds.map(([name, paint, n]) => el("span", {}, el("i", { style: `background:var(--${paint})` }), `${name} ${bytes(n)}`))),
    table(["bytes", "", "n", "for", "module", "made by", "line", "kept alive by"], found.slice(0, 40).map((h) => [bytes(h.nbytes),
      el("span", { class: "meter", "aria-hidden": "true", style: `width:${Math.round(90 * h.nbytes / most)}px;background:var(--${style.get(h.kind)})` }),
      h.count || "", h.kind, h.module ? go(h.module, () => search(h.module)) : "", h.op, h.line ? go(h.line, () => search(h.line)) : "", h.keeper])),
    found.length > 40 ? el("p", { class: "dim" }, `and ${found.length - 40} more, ${bytes(found.slice(40).reduce((sum, h) => sum + h.nbytes, 0))}`) : "");
}

const memoryViews = D.memories.map((memory) => {
  const view = { canvas: el("canvas", { role: "img", "aria-label": `bytes of ${memory.space} over time, a click goes to a moment; the table below has who holds them` }),
    holders: el("div"), shown: NaN };
  const move = (event) => {
    const box = view.canvas.getBoundingClientRect(), t = (event.clientX - box.left - GRAPH[0]) / (box.width - GRAPH[0] - GRAPH[1]) * D.wall;
    const time = Math.round(Math.max(0, Math.min(D.machine.over, t)));
    play(false);
    rewind(machine().numberAt(time), time);
  };
  view.canvas.addEventListener("pointerdown", (event) => { view.canvas.setPointerCapture(event.pointerId); move(event); });
  view.canvas.addEventListener("pointermove", (event) => { if (event.buttons) move(event); });
  $("memory").append(el("h3", {}, memory.space), el("p", {}, memory.said || `peak ${bytes(memory.peak)}`),
    el("div", { class: "bar" }, button("to the peak", () => { const t = memory.peak_time; play(false); rewind(machine().numberAt(t), t); }, `go to the peak of ${memory.space}, ${bytes(memory.peak)} at ${ms(memory.peak_time)} milliseconds`)),
    view.canvas, ...memory.advice.map((said) => el("p", {}, said)), view.holders);
  return view;
});

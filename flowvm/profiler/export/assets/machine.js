// The time machine: a slider over the run, and the VM as it was at that moment.

let made = null;
const machine = () => (made ||= new Moments(D, C, E)); // when it is first asked for
const clock = { playing: false, speed: 1, last: 0 };
const slider = el("input", { type: "range", min: 0, max: D.machine.over, step: "any", value: 0,
  "aria-label": "moment of the run, in nanoseconds from its beginning" });
const said = el("span", { class: "when" });
const stepTo = el("select", { "aria-label": "what a step goes to" },
  el("option", { value: -1 }, "any event"),
  ...D.machine.times.map((name, k) => el("option", { value: k }, name)));
const player = button("▶", () => play(!clock.playing), "play");

// The views show the moment at which so many events have happened.
function rewind(number, time = machine().time(number)) {
  state.moment = Math.max(0, Math.min(number, machine().events));
  state.time = time;
  slider.value = time;
  slider.setAttribute("aria-valuetext", `${ms(time)} milliseconds`);
  said.textContent = `${ms(time)} of ${ms(D.machine.wall)} ms · event ${state.moment.toLocaleString("en")} of ${machine().events.toLocaleString("en")}`;
  $("clock").classList.add("set");
  draw();
}
function rewindTo(i, stage) {
  const number = machine().numberOf(i, D.machine.times.indexOf(stage));
  if (number < 0) return;
  play(false);
  rewind(number);
  if (state.tab === "verdict" || state.tab === "plan" || state.tab === "source") show("moment");
}
function step(by) {
  play(false);
  rewind(machine().next(Math.max(state.moment, 0), Number(stepTo.value), by));
}
function play(on) {
  clock.playing = on;
  player.textContent = on ? "⏸" : "▶";
  player.setAttribute("aria-label", on ? "pause" : "play");
  player.title = on ? "pause" : "play";
  if (!on) return;
  if (state.moment < 0 || state.moment >= machine().events) rewind(0);
  if (["verdict", "plan", "source", "beside"].includes(state.tab)) show("moment");
  clock.last = 0;
  requestAnimationFrame(tick);
}
function tick(now) { // the whole run takes twenty seconds
  if (!clock.playing) return;
  const passed = clock.last ? now - clock.last : 0;
  clock.last = now;
  const time = state.time + passed / 20000 * D.machine.over * clock.speed;
  if (time >= D.machine.over) { rewind(machine().events); play(false); return; }
  rewind(machine().numberAt(time), time);
  requestAnimationFrame(tick);
}
slider.addEventListener("input", () => {
  play(false);
  const time = Math.round(Number(slider.value));
  rewind(machine().numberAt(time), time);
});
const speed = el("select", { "aria-label": "speed", onchange: () => { clock.speed = Number(speed.value); } },
  ...[0.1, 0.25, 1, 4].map((n) => el("option", { value: n, ...(n === 1 ? { selected: "" } : {}) }, n + "×")));
$("clock").append(button("|◀", () => { play(false); rewind(0); }, "to the beginning"),
  button("◀", () => step(-1), "one step back"), player, button("▶|", () => step(1), "one step on"),
  slider, stepTo, speed, said,
  button("waits", () => { if (state.selected >= 0) rewindTo(state.selected, "received"); },
    "to where the instruction that is selected began to wait"),
  button("×", () => { play(false); state.moment = -1; $("clock").classList.remove("set"); said.textContent = "time machine"; draw(); }, "out of the time machine"));
said.textContent = "time machine";
if (!N) $("clock").hidden = true;

addEventListener("keydown", (event) => { // from everywhere but where keys mean something else
  if (event.target.closest("input, select, button, canvas") && event.key !== "." && event.key !== ",") return;
  if (event.target.closest("input[type=search]") || event.ctrlKey || event.metaKey || event.altKey) return;
  const act = { ".": () => step(1), ",": () => step(-1), " ": () => play(!clock.playing) }[event.key];
  if (act) { act(); event.preventDefault(); }
});

// --- the moment in words ---------------------------------------------------------------------
const MOST = 12;
const place = new Map();
for (let i = 0; i < N; i++) place.set(C.seq[i], i);
function who(named) { return go(`#${named.seq} ${named.op}`, () => { const i = place.get(named.seq); select(i); reveal(i); }); }
function some(list, each, most = MOST) {
  const made = list.slice(0, most).map(each).flatMap((one, k) => (k ? [", ", ...[one].flat()] : [one].flat()));
  return list.length > most ? [...made, ` and ${(list.length - most).toLocaleString("en")} more`] : made;
}
drawers.moment = () => {
  if (state.moment < 0) { // where one begins to look
    rewind(machine().numberAt(Math.round(D.machine.over / 2)), Math.round(D.machine.over / 2));
    return;
  }
  const m = machine().moment(state.moment, state.time), row = (name, ...what) =>
    el("tr", {}, el("th", { scope: "row" }, name), el("td", {}, ...what));
  const rows = m.meetings.map((met) => row(`${met.name} ${met.number}`, ...met.ranks.flatMap(([at, ns], r) => [
    el("span", { class: r === met.awaited ? "critical" : at === "waits" ? "stage dep" : at === "exchanges" ? "stage run" : "dim" },
      `${D.parts[r].name} ${at} ${at === "to come" ? "in " : ""}${ms(ns)} ms${r === met.awaited ? ", for whom others wait" : ""}`), "   "])));
  rows.push(...m.python.map(([who, doing]) => row(who, doing)));
  for (const s of m.streams) {
    rows.push(row(s.name, ...(s.running.length ? s.running.flatMap((named, k) =>
      [el("span", { class: "stage run" }, "█ "), who(named), ` for ${ms(s.ran[k])} ms  `]) : [el("span", { class: "dim" }, "idle  ")]),
    ...(s.queued.length ? [el("span", { class: "stage queue" }, " ▫ queue "), ...some(s.queued, who)] : [])));
  }
  m.holders.forEach((some, k) => rows.push(row(m.holders.length > 1 ? "memory " + m.live[k][0] : "memory", ...some.slice(0, 3).flatMap((h, n) =>
    [n ? ", " : "", el("span", { class: "const" }, bytes(h.nbytes)), ` ${[h.kind, h.module, h.op, h.line].filter((text) => text).join(" ")}`]),
  ...(some.length > 3 ? [" ", go(`and ${some.length - 3} more`, () => show("memory"))] : []))));
  if (m.ready.length) rows.push(row("ready", ...some(m.ready, who)));
  m.waiting.slice(0, MOST).forEach((w, k) => rows.push(row(k ? "" : "pending", el("span", { class: "stage dep" }, "░ "),
    who(w.what), w.front.length ? "  waits for " : "", ...some(w.front, ([named, hazard, tensor]) => [who(named), ` (${hazard} of t${tensor})`], 5))));
  if (m.waiting.length > MOST) rows.push(row("", `and ${(m.waiting.length - MOST).toLocaleString("en")} more`));
  const lists = m.storages.slice(0, MOST).map((l) => [`t${l.tensor}`, bytes(l.nbytes),
    el("span", {}, ...l.accesses.slice(0, 8).flatMap(([named, access, at]) =>
      [" ◄ ", el("span", { class: ACCESS[access] }, ACCESS[access] + " "), who(named), el("span", { class: "dim" }, ` ${at} `)]),
    l.accesses.length > 8 ? ` and ${l.accesses.length - 8} more` : "")]);
  const count = el("p", { class: "counts" }, ...m.counts.filter(([, n]) => n).map(([name, n], k) =>
    el("span", {}, k ? " · " : "", `${AT[STAGES.indexOf(name)][0]} ${n.toLocaleString("en")} ${name}`)), `   ${m.live.map(([space, n]) => `${bytes(n)} alive` + (m.live.length > 1 ? ` in ${space}` : "")).join(", ")}`);
  const name = (j) => "a" + String(j).padStart(2, "0"), numbers = (some) => some.map(([j, n]) => `${name(j)}: ${n}`).join(", ") || "–";
  const doing = (a) => {
    if (a.task >= 0) return el("span", { class: "stage run" }, `█ task ${a.task}`);
    if (a.launch < 0) return el("span", { class: "dim" }, "idle");
    const long = [` for `, who({ seq: a.launch, op: a.plan }), ` since ${ms(a.since)}, ${ms(m.time - a.since)} ms`];
    return a.waits.length ? el("span", {}, el("span", { class: "stage dep" }, "░ waits for " + a.waits.map(([what, j]) => `${what} of ${name(j)}`).join(", ")), ...long)
      : el("span", {}, "▷ ready", ...long);
  };
  const actors = m.actors.map((a) => [`${name(a.number)} ${a.label}`, a.acts, doing(a), numbers(a.mailbox), numbers(a.credits)]);
  $("moment").replaceChildren(el("h2", { class: "verdict" }, m.event, " ", el("span", { class: "dim" }, m.line)), count,
    el("div", { class: "wide" }, el("table", { class: "rows" }, ...rows)),
    ...(lists.length ? [el("h3", {}, "access lists in which something waits"), table(["storage", "bytes", "oldest first"], lists),
      ...(m.storages.length > MOST ? [el("p", { class: "dim" }, `and ${m.storages.length - MOST} more`)] : [])] : []),
    ...(actors.length ? [el("h3", {}, "actors"), table(["actor", "acts", "", "mailbox", "credits"], actors)] : []));
};

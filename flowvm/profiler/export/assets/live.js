// The live page: what streams do now, twice a second, and below the run's page of the last
// instructions, made when it is asked for. The process that is watched is asked by a process that
// makes both; nothing here can change anything in it.

const $ = (id) => document.getElementById(id);
const percent = (share) => (share >= 0.0995 ? (100 * share).toFixed(0) : (100 * share).toFixed(1)) + " %";
const bytes = (n) => {
  for (const [unit, size] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 1024]]) {
    if (n >= size) return (n / size).toFixed(1) + " " + unit;
  }
  return n + " B";
};
function cell(kind, content, options = {}) { // names enter as text, so none can be markup
  const made = document.createElement(kind);
  Object.assign(made, options);
  made.append(content);
  return made;
}
function row(kind, contents) {
  const made = document.createElement("tr");
  contents.forEach((content, k) =>
    made.append(cell(kind, content, { className: k === 1 || k >= 4 ? "n" : "" })));
  return made;
}

function shown(view) {
  const streams = document.createElement("table");
  streams.append(row("th", ["stream", `busy, ${view.window.toFixed(0)} s`, "running", "idle because",
    "queue", "waiting", "instr/s"]));
  for (const s of [view.sched, ...view.streams]) {
    if (!s) continue;
    streams.append(row("td", [s.name, percent(s.util), s.running
      ? `${s.running}  ${s.seconds >= 0.05 ? s.seconds.toFixed(1) + " s  " : ""}${s.line}` : "–",
      s.causes.slice(0, 3).map(([cause, share]) => `${cause} ${percent(share)}`).join("  "),
      String(s.queue), String(s.waiting), s.rate.toFixed(0)]));
  }
  const said = [`in flight ${view.in_flight} of ${view.room}`, `sync ${view.syncs.toFixed(1)}/s`,
    `compiled ${view.compiled.toFixed(1)}/s`, `errors pending ${view.errors}`,
    ...view.memory.map(([name, live, , reserved]) => `${name} ${bytes(live)} of ${bytes(reserved)} reserved`)];
  const lines = view.lines.slice(0, 4).map(([line, share]) => `${line} ${percent(share)}`);
  const wide = cell("div", streams, { className: "wide" });
  $("now").replaceChildren(wide, cell("div", said.join(" · ")));
  if (lines.length) $("now").append(cell("div", "hot lines  " + lines.join("   ")));
  if (view.idle >= 2) {
    $("now").append(cell("div", `nothing done for ${view.idle.toFixed(0)} s`, { className: "critical" }));
  }
  const [step, often] = view.step;
  $("title").textContent = `${view.program}  pid ${view.pid}` + (step ? `  ${step} ${often.toFixed(1)}/s` : "");
}

// --- asking ----------------------------------------------------------------------------------
let over = false;
async function ask() {
  if (!document.hidden && !over) {
    try {
      const answer = await fetch("live.json"), found = await answer.json();
      if (answer.ok) shown(found); else ended(found.error);
    } catch (error) { ended("whoever served this page has ended"); }
  }
  if (!over) setTimeout(ask, 500);
}
function ended(why) {
  over = true;
  $("hits").textContent = why;
  $("look").disabled = $("follow").disabled = true;
}

function tabOf(frame) { // a page that did not load has none, and may not be asked
  try { return frame.contentWindow.flowvm?.state.tab || ""; } catch { return ""; }
}

// The page of the run stands until the next one is there, and goes on with the tab that was open.
function look() {
  const before = document.querySelector("iframe:not(.next)");
  for (const late of document.querySelectorAll("iframe.next")) late.remove();
  const next = document.createElement("iframe");
  next.title = "the last instructions";
  if (before) next.className = "next";
  const tab = before ? tabOf(before) : "";
  next.src = `run.html?most=${$("most").value}#${tab}`;
  const begun = () => { // its program has unpacked the columns, or there is none
    try { if (next.contentDocument?.getElementById("data") && !next.contentWindow.flowvm) return void setTimeout(begun, 10); } catch { /* it may not be asked */ }
    if (!next.isConnected) return; // another is asked for already
    if (before) before.remove();
    next.className = "";
    const title = next.contentDocument?.getElementById("title");
    $("hits").textContent = title ? title.textContent : "";
  };
  next.addEventListener("load", begun);
  document.querySelector("main").append(next);
}
$("look").addEventListener("click", look);
$("most").addEventListener("change", look);
setInterval(() => { if ($("follow").checked && !document.hidden && !over) look(); }, 10000);
look();
ask();

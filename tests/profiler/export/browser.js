// Runs inside the report, in place of a person; what it finds is left in the page as JSON.
const said = [];
addEventListener("error", (e) => said.push(String(e.message)));
addEventListener("load", async () => {
  while (!window.flowvm) await new Promise((done) => setTimeout(done, 5)); // columns are unpacked first
  const F = window.flowvm, out = {}, pause = () => new Promise((done) => setTimeout(done, 30));
  const drawn = (id) => { const c = document.querySelector(id === "dag" ? "#graph" : "#" + id + " canvas");
    return c.getContext("2d").getImageData(0, 0, c.width, c.height).data.filter((v, k) => k % 4 === 3 && v).length; };
  try {
    for (const tab of ["timeline", "dag", "flame", "memory"]) { F.show(tab); await pause(); out[tab] = drawn(tab); }
    F.show("timeline"); F.search("matmul"); out.found = F.state.found.length; out.hits = document.getElementById("hits").textContent;
    F.select(F.state.found[F.state.found.length - 1]); await pause();
    out.detail = document.getElementById("detail").textContent; out.hidden = document.getElementById("detail").hidden;
    const links = document.querySelectorAll("#detail .link"); out.links = links.length;
    if (links.length) links[0].click();
    await pause(); out.moved = F.state.selected;
    const canvas = document.querySelector("#timeline canvas"), before = F.state.to - F.state.from;
    canvas.dispatchEvent(new WheelEvent("wheel", { deltaY: -100, bubbles: true, cancelable: true }));
    out.zoomed = (F.state.to - F.state.from) < before;
    canvas.dispatchEvent(new KeyboardEvent("keydown", { key: "0" })); await pause();
    out.whole = F.state.to - F.state.from;
    const lane = F.lanes.findIndex((l) => l.kind === "stream"), box = canvas.getBoundingClientRect();
    const runs = F.lanes[lane], RUN = F.states.indexOf("run"), lasts = (n) => runs.what[n] === RUN ? runs.end[n] - runs.begin[n] : -1;
    const click = (n) => { // in its middle, even if it is narrower than a pixel
      const at = { clientX: box.left + 150 + (runs.begin[n] + runs.end[n]) / 2 / out.whole * (box.width - 160), clientY: box.top + F.laneMiddle(lane), bubbles: true, pointerId: 1 };
      canvas.dispatchEvent(new PointerEvent("pointerdown", at)); canvas.dispatchEvent(new PointerEvent("pointerup", at));
      return F.state.selected;
    };
    HTMLCanvasElement.prototype.setPointerCapture = () => {};
    const ran = [...runs.ins.keys()].filter((n) => lasts(n) >= 0).slice(0, 200);
    out.clicked = ran.map(click); out.meant = ran.map((n) => runs.ins[n]);
    await flamed(F, out, pause); await graph(F, out, pause); await rewound(F, out, pause);
    out.unnamed = [...document.querySelectorAll("button, canvas, input, select, [role]")]
      .filter((e) => !(e.getAttribute("aria-label") || e.textContent.trim() || e.getAttribute("aria-hidden") || e.id === "said" || e.id === "hits")).map((e) => e.outerHTML.slice(0, 80));
    out.tabs = [...document.querySelectorAll("#tabs button")].map((b) => b.textContent);
  } catch (error) { said.push(String(error.stack)); }
  out.errors = said;
  const pre = document.createElement("pre"); pre.id = "result"; pre.textContent = JSON.stringify(out); document.body.append(pre);
});

const key = (target, name) => target.dispatchEvent(new KeyboardEvent("keydown", { key: name, bubbles: true, cancelable: true }));

// The layered graph: boxes open and close where they are clicked, keys walk along edges.
async function graph(F, out, pause) {
  F.select(-1); F.show("dag"); await pause();
  const canvas = document.querySelector("#graph"), buttons = [...document.querySelectorAll("#dag .bar button")];
  const named = (text) => buttons.find((b) => b.textContent === text), drawn = () => F.scene().nodes;
  named("close").click(); await pause(); out.closed = drawn();
  named("open").click(); await pause(); out.open = drawn();
  named("releases").click(); await pause(); named("open").click(); await pause(); out.releases = drawn();
  named("releases").click(); await pause(); named("open").click(); await pause();
  const scene = F.scene(); // every node below all that it waits for, none on top of another
  out.upwards = scene.from.filter((a, k) => scene.layer[a] >= scene.layer[scene.to[k]]).length;
  const places = scene.item.map((_, k) => [scene.low[k], scene.column[k], scene.layer[k]].join());
  out.doubled = places.length - new Set(places).size;
  const lines = scene.from.map((_, k) => F.routeOf(k)), ports = lines.map((line, k) => [scene.to[k], line.at(-1)[0].toFixed(2)].join());
  out.shared = ports.length - new Set(ports).size; // two lines that arrive at one place of a node
  out.through = throughCards(F, lines);
  named("close").click(); await pause();
  F.search("tanh"); document.getElementById("search").dispatchEvent(new KeyboardEvent("keydown", { key: "Enter" })); await pause();
  out.went = F.state.selected; out.seen = F.scene().item.includes(F.state.selected);
  out.above = F.scene().tops[F.scene().layer[F.scene().nodeOf[F.state.selected]]] * F.dag.row - F.dag.y;
  out.height = canvas.clientHeight;
  key(canvas, "ArrowUp"); await pause(); out.up = F.state.selected;
  key(canvas, "ArrowDown"); await pause(); out.down = F.state.selected;
  const before = F.scene().nodes; key(canvas, "Enter"); await pause(); out.shut = F.scene().nodes < before;
  const row = F.dag.row; key(canvas, "-"); out.smaller = F.dag.row < row; key(canvas, "0"); await pause();
  named("open").click(); await pause();
  const box = canvas.getBoundingClientRect(), frame = F.scene().frames[0];
  if (frame) { // its header
    F.dag.row = 40; F.dag.y = 0; F.show("dag"); await pause(); const count = F.scene().nodes;
    const at = { clientX: box.left + 30, clientY: box.top + 24 + F.scene().tops[frame.from] * 40 + 12, bubbles: true, pointerId: 1 };
    canvas.dispatchEvent(new PointerEvent("pointerdown", at)); canvas.dispatchEvent(new PointerEvent("pointerup", at)); await pause();
    out.clickedFrame = F.scene().nodes !== count;
  }
}

// How many straight parts of lines go through a card: their own two, which they touch, aside.
function throughCards(F, lines) {
  const scene = F.scene(), cards = scene.item.map((_, node) => F.placeOf(node));
  let through = 0;
  lines.forEach((line, k) => {
    for (let n = 0; n + 1 < line.length; n++) {
      const [x0, x1] = [line[n][0], line[n + 1][0]].sort((a, b) => a - b), [y0, y1] = [line[n][1], line[n + 1][1]].sort((a, b) => a - b);
      through += cards.filter(([x, y, w, h], node) => node !== scene.from[k] && node !== scene.to[k]
        && x1 > x + 1 && x0 < x + w - 1 && y1 > y + 1 && y0 < y + h - 1).length;
    }
  });
  return through;
}

// The time machine: steps, the slider, and where an instruction began to wait.
async function rewound(F, out, pause) {
  F.show("moment"); await pause();
  const buttons = [...document.querySelectorAll("#clock button")], named = (text) => buttons.find((b) => b.getAttribute("aria-label") === text);
  named("to the beginning").click(); out.moments = [F.state.moment];
  named("one step on").click(); named("one step on").click(); named("one step back").click(); out.moments.push(F.state.moment);
  const slider = document.querySelector("#clock input"); slider.value = slider.max; slider.dispatchEvent(new Event("input")); await pause();
  out.moments.push(F.state.moment, F.machine.events); out.end = document.getElementById("moment").textContent;
  if (!F.state.found.length) return; // the last search is that of the graph
  F.select(F.state.found[0]); [...document.querySelectorAll("#detail button")].find((b) => b.textContent.startsWith("where it began")).click(); await pause();
  out.waits = document.querySelector("#moment h2").textContent;
  named("play").click(); await pause(); out.playing = named("pause") !== undefined || F.state.moment > 0; if (named("pause")) named("pause").click();
}

// The flame graph: what is inside sums to the whole; a part that is asked for becomes the whole.
async function flamed(F, out, pause) {
  F.show("flame"); await pause();
  const own = (part) => part.own + [...part.parts.values()].reduce((sum, inner) => sum + own(inner), 0);
  out.whole_flame = F.flame.root.value; out.flame_sum = own(F.flame.root);
  const link = [...document.querySelectorAll("#hot .link")].find((b) => b.textContent === "matmul");
  if (link) link.click();
  await pause(); out.flame_inner = F.flame.at.name;
  const buttons = [...document.querySelectorAll("#flame .bar button")];
  buttons[1].click(); await pause();
  out.pressed = buttons.map((b) => b.getAttribute("aria-pressed")); out.flame_bytes = document.getElementById("hot").textContent;
}

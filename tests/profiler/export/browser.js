// Runs inside the report, in place of a person; what it finds is left in the page as JSON.
const said = [];
addEventListener("error", (e) => said.push(String(e.message)));
addEventListener("load", async () => {
  const F = window.flowvm, out = {}, pause = () => new Promise((done) => setTimeout(done, 30));
  const drawn = (id) => { const c = document.querySelector("#" + id + " canvas");
    return c.getContext("2d").getImageData(0, 0, c.width, c.height).data.filter((v, k) => k % 4 === 3 && v).length; };
  try {
    for (const tab of ["timeline", "dag", "memory"]) { F.show(tab); await pause(); out[tab] = drawn(tab); }
    F.show("timeline"); F.search("matmul"); out.found = F.state.found.length; out.hits = document.getElementById("hits").textContent;
    F.select(F.state.found[F.state.found.length - 1]); await pause();
    out.detail = document.getElementById("detail").textContent; out.hidden = document.getElementById("detail").hidden;
    const links = document.querySelectorAll("#detail a"); out.links = links.length;
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
      const at = { clientX: box.left + 150 + (runs.begin[n] + runs.end[n]) / 2 / out.whole * (box.width - 160), clientY: box.top + 30 + 26 * lane + 13, bubbles: true, pointerId: 1 };
      canvas.dispatchEvent(new PointerEvent("pointerdown", at)); canvas.dispatchEvent(new PointerEvent("pointerup", at));
      return F.state.selected;
    };
    canvas.setPointerCapture = () => {};
    const ran = [...runs.ins.keys()].filter((n) => lasts(n) >= 0);
    out.clicked = ran.map(click); out.meant = ran.map((n) => runs.ins[n]);
    out.rows = F.nodes().length;
    out.tabs = [...document.querySelectorAll("#tabs button")].map((b) => b.textContent);
  } catch (error) { said.push(String(error.stack)); }
  out.errors = said;
  const pre = document.createElement("pre"); pre.id = "result"; pre.textContent = JSON.stringify(out); document.body.append(pre);
});

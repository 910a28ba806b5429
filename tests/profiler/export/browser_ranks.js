// Ranks: groups of lanes, parts of a collective, the time machine over all of them.
addEventListener("load", async () => {
  while (!window.flowvm) await new Promise((done) => setTimeout(done, 5)); // columns are unpacked first
  const F = window.flowvm, out = {}, pause = () => new Promise((done) => setTimeout(done, 30));
  out.errors = []; addEventListener("error", (e) => out.errors.push(String(e.message)));
  F.show("dag"); await pause();
  const boxes = F.scene().frames.length; out.lanes = F.scene().columns.length;
  F.search("all_reduce"); F.select(F.state.found[0]); F.reveal(F.state.found[0]); await pause();
  out.together = document.getElementById("detail").textContent;
  const links = [...document.querySelectorAll("#detail .link")];
  links[1].click(); await pause(); out.other = F.state.selected;
  F.show("timeline"); await pause(); out.row = F.lanes.filter((l) => l.part === 2).length;
  F.rewind(F.machine.numberAt(F.ties[0] - 1), F.ties[0] - 1); F.show("moment"); await pause();
  out.moment = document.getElementById("moment").textContent;
  out.verdict = document.getElementById("verdict").textContent;
  const pre = document.createElement("pre"); pre.id = "result";
  pre.textContent = JSON.stringify(out); document.body.append(pre);
});

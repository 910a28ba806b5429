// The plan's page: nodes before and after, and the task that is selected.
addEventListener("load", async () => {
  while (!window.flowvm) await new Promise((done) => setTimeout(done, 5)); // columns are unpacked first
  const F = window.flowvm, out = { errors: [] }, pause = () => new Promise((done) => setTimeout(done, 30));
  addEventListener("error", (e) => out.errors.push(String(e.message)));
  F.show("plan"); await pause();
  out.rows = document.querySelectorAll("table.passes tr").length - 1;
  out.kinds = ["same", "merged", "removed", "added", "moved"].map((kind) => document.querySelectorAll("table.passes tr." + kind).length);
  document.querySelector("#plan input[type=checkbox]").click(); await pause();
  out.left = [...document.querySelectorAll("table.passes tr")].filter((row) => row.offsetParent).length - 1;
  const merged = document.querySelector("table.passes tr.merged"); merged.querySelector("button").click(); await pause();
  out.marked = [...document.querySelectorAll("#plan tr[aria-current]")].map((row) => row.closest("table").className);
  out.detail = document.getElementById("detail").textContent; out.task = F.state.task;
  document.querySelector("#detail .link").click(); await pause(); out.selected = F.state.selected; out.after = F.state.task;
  out.moved = [[[0, 1, 2, 3], []], [[1, 2, 0, 3], [2]], [[3, 0, 1, 2], [0]]].every(([order, moved]) =>
    [...F.movedIn(order.map((n) => [[[n]], [0], 0, ""]))].join() === moved.join());
  const next = document.querySelector("#plan button[aria-label='the next pass']"), drawn = () => document.querySelector("#plan .bar ~ .wide img").src.length;
  const first = drawn(); next.click(); out.turned = document.querySelector("#plan select").value; out.drawn = [first, drawn()];
  F.show("verdict"); await pause();
  const times = () => [...document.querySelector("#verdict table").querySelectorAll("tr")].slice(1).map((row) => Number(row.children[2].textContent));
  const sort = document.querySelector("#verdict th button[aria-label='sort by run ms']");
  sort.click(); out.falling = times(); sort.click(); out.rising = times(); out.sorted = sort.parentNode.getAttribute("aria-sort");
  out.roofline = document.querySelectorAll("#verdict img").length;
  const pre = document.createElement("pre"); pre.id = "result";
  pre.textContent = JSON.stringify(out); document.body.append(pre);
});

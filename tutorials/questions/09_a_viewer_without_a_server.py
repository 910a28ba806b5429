"""Question 9: is there a viewer without a server, an account, or the Internet?"""

# %% One file, all in it. `flowvm view run.flowtrace` and `flowvm export run.flowtrace run.html`
# make the same of a saved run.
import tempfile
from pathlib import Path

import flowvm as flow

x = flow.randn(128, 128)
with flow.profiler.profile() as p:
    for _ in range(5):
        x = (x @ x).tanh()
    x.sum().item()

page = Path(tempfile.mkdtemp()) / "run.html"
p.export(str(page))
text = page.read_text()
fetched = [tag for tag in ("src=", "href=") if f'{tag}"http' in text]
print(f"{len(text) / 1e3:.0f} kB, fetches {fetched or 'nothing'}")

# %% A run is a value: saved, loaded by another process, compared with another run.
saved = page.with_suffix(".flowtrace")
p.save(str(saved))
again = flow.profiler.load(str(saved))
print(again.summary().instructions, "instructions, from a file")
print(p.diff(again))

"""Mamba, a selective state space model, on characters.

It is trained on the LICENSE, 20 steps, as eager code, as a graph and with PyTorch where that is
installed: the losses agree.  Then it writes: a state of fixed size stands for all that was read, so
a character costs the same wherever it stands.

Gu and Dao, "Mamba: linear-time sequence modeling with selective state spaces", 2023.
"""

from __future__ import annotations

from typing import Any

from curves import CHARACTERS, batches, compare, decoded, eager, encoded, next_character, trained

import flowvm as flow

WIDTH, STATE, BLOCKS, LENGTH, TAPS, RANK = 32, 8, 2, 32, 4, 2


# %% The model, for flowvm or PyTorch: only the library differs.
def make(lib: Any) -> Any:
    """The model of a library."""
    nn, functional = lib.nn, lib.nn.functional
    inner = 2 * WIDTH

    class RMSNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(lib.ones(WIDTH))

        def forward(self, x: Any) -> Any:
            return x * lib.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight

    class Mixer(nn.Module):
        """Let each character say how much of the state stays, and what is added."""

        def __init__(self) -> None:
            super().__init__()
            self.in_proj = nn.Linear(WIDTH, 2 * inner, bias=False)
            self.conv1d = nn.Conv1d(inner, inner, TAPS, groups=inner, padding=TAPS - 1)
            self.x_proj = nn.Linear(inner, RANK + 2 * STATE, bias=False)
            self.dt_proj = nn.Linear(RANK, inner)
            decay = lib.arange(1, STATE + 1, dtype=lib.float32).repeat(inner, 1)
            self.A_log = nn.Parameter(lib.log(decay))
            self.D = nn.Parameter(lib.ones(inner))
            self.out_proj = nn.Linear(inner, WIDTH, bias=False)

        def forward(self, x: Any, memory: Any) -> Any:
            length = x.shape[1]
            x, gate = self.in_proj(x).chunk(2, dim=-1)
            x = x.transpose(1, 2)
            taps, state = (None, None) if memory is None else memory.get(self, (None, None))
            if taps is not None:  # the characters before are known: no padding
                x = lib.cat([taps, x], dim=2)
            taps = x[:, :, -(TAPS - 1) :]
            conv = self.conv1d(x)[:, :, x.shape[2] - length : x.shape[2]]
            x = functional.silu(conv).transpose(1, 2)
            y, state = self.scan(x, state)
            if memory is not None:
                memory[self] = taps, state
            return self.out_proj(y * functional.silu(gate))

        def scan(self, x: Any, state: Any) -> Any:
            dt, b, c = self.x_proj(x).split([RANK, STATE, STATE], dim=-1)
            dt = functional.softplus(self.dt_proj(dt))
            decay = lib.exp(dt.unsqueeze(-1) * -lib.exp(self.A_log))
            added = (dt * x).unsqueeze(-1) * b.unsqueeze(2)
            if state is None:
                state = lib.zeros_like(decay[:, 0])
            rows = []
            for i in range(x.shape[1]):
                state = decay[:, i] * state + added[:, i]
                rows.append((state * c[:, i].unsqueeze(1)).sum(-1))
            return lib.stack(rows, dim=1) + x * self.D, state

    class Mamba(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(len(CHARACTERS), WIDTH)
            nn.init.normal_(self.embed.weight, std=0.02)
            self.norms = nn.ModuleList(RMSNorm() for _ in range(BLOCKS))
            self.mixers = nn.ModuleList(Mixer() for _ in range(BLOCKS))
            self.norm = RMSNorm()

        def forward(self, x: Any, memory: Any = None) -> Any:
            x = self.embed(x)
            for norm, mixer in zip(self.norms, self.mixers, strict=True):
                x = x + mixer(norm(x), memory)
            return self.norm(x) @ self.embed.weight.t()

    return Mamba()


# %% The same 20 steps, each way.
model, _ = compare(make, next_character, batches(20, samples=8, length=LENGTH))

# %% More of them, as a graph.
step = next_character(flow, model, flow.compile)
losses = trained(flow, step, batches(100, samples=8, length=LENGTH))
print(f"loss after {len(losses)} more: {losses[-1]:.2f}")
if losses[-1] > 2.6:
    raise SystemExit("it has not learned to spell")


# %% Writing: with the state of what was read, and from the beginning each time.
def written(start: str, count: int) -> str:
    """`start` and `count` more characters, each the most likely one."""
    numbers, memory = list(encoded(start)), {}
    prompt = numbers
    for _ in range(count):
        scores = model(flow.tensor(prompt).unsqueeze(0), memory)
        numbers.append(scores[0, -1].argmax().item())
        prompt = numbers[-1:]
    return decoded(numbers)


with flow.no_grad():
    text = written("Licensed", 30)
    print(repr(text))
    again = eager(model)(flow.tensor(encoded(text)[:-1]).unsqueeze(0))[0].argmax(1).tolist()
if decoded(again)[len("Licensed") - 1 :] != text[len("Licensed") :]:
    raise SystemExit("without the state it writes something else")
print("the same without the state")

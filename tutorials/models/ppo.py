"""Proximal policy optimization: a paddle learns to catch balls.

Steps are taken on games that chance played, 20 of them, as eager code, as a graph and with PyTorch
where that is installed: the losses agree.  Then the network plays 32 games at a time and learns
from them, until it catches most balls.

Schulman and others, "Proximal policy optimization algorithms", 2017.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from curves import Batch, compare

import flowvm as flow

GAMMA, LAMBDA, CLIP = 0.97, 0.95, 0.2
GAMES, STEPS, EPOCHS, PARTS = 32, 32, 4, 4
ROWS = COLUMNS = 7


# %% The environment: balls fall a row a move, drift, and are caught by a paddle of one column.
class Catch:
    """Many games at once: places in rows and columns, a reward where a ball comes down."""

    def __init__(self, games: int, seed: int) -> None:
        self.rng, self.games = np.random.default_rng(seed), games
        self.row = self.rng.integers(0, ROWS - 1, games)
        self.column, self.drift = np.zeros((2, games), np.int64)
        self._throw(np.ones(games, bool))
        self.paddle = np.full(games, COLUMNS // 2)

    def _throw(self, which: np.ndarray) -> None:
        self.row[which] = 0
        self.column[which] = self.rng.integers(0, COLUMNS, which.sum())
        self.drift[which] = self.rng.integers(-1, 2, which.sum())

    def frames(self) -> np.ndarray:
        """Return the view of a player: where ball and paddle are, and the drift."""
        columns = self.row / ROWS, self.column / COLUMNS, self.drift, self.paddle / COLUMNS
        return np.stack(columns, 1).astype(np.float32)

    def step(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Move the paddles by -1, 0 or 1: rewards, and which balls came down."""
        self.paddle = np.clip(self.paddle + action - 1, 0, COLUMNS - 1)
        self.row += 1
        self.column = np.clip(self.column + self.drift, 0, COLUMNS - 1)
        down = self.row == ROWS - 1
        caught = self.paddle == self.column
        reward = np.where(down, np.where(caught, 1.0, -1.0), 0.0).astype(np.float32)
        self._throw(down)
        return reward, down


# %% The model and its training, for flowvm or PyTorch: only the library differs.
def make(lib: Any) -> Any:
    """The network: what to do, and what that will bring."""
    nn = lib.nn

    class ActorCritic(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
            self.actor, self.critic = nn.Linear(64, 3), nn.Linear(64, 1)

        def forward(self, x: Any) -> Any:
            h = self.body(x)
            return self.actor(h), self.critic(h).squeeze(1)

    return ActorCritic()


def training(lib: Any, model: Any, compiled: Callable[..., Any]) -> Any:
    """A function that takes one step."""
    optimizer = lib.optim.Adam(model.parameters(), lr=3e-3, eps=1e-5)

    @compiled
    def step(frames: Any, action: Any, before: Any, advantage: Any, worth: Any) -> Any:
        scores, value = model(frames)
        chances = lib.distributions.Categorical(logits=scores)
        ratio = (chances.log_prob(action) - before).exp()
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        clipped = ratio.clamp(1 - CLIP, 1 + CLIP) * advantage
        gain = lib.minimum(ratio * advantage, clipped).mean() + 0.01 * chances.entropy().mean()
        loss = 0.5 * (value - worth).pow(2).mean() - gain
        optimizer.zero_grad()
        loss.backward()
        lib.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        return loss

    return step


# %% Playing, and what to learn from it.
Policy = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


def rollout(games: Catch, policy: Policy, rng: np.random.Generator) -> tuple[list[Batch], float]:
    """Parts of what happened in STEPS moves of all games, each move once; the mean of a reward."""
    rows: list[list[np.ndarray]] = [[], [], [], [], [], []]
    for _ in range(STEPS):
        frames = games.frames()
        scores, value = policy(frames)
        noise = rng.gumbel(size=scores.shape)
        action = (scores + noise).argmax(1)
        chance = scores - np.logaddexp.reduce(scores, 1, keepdims=True)
        reward, down = games.step(action)
        chosen = np.take_along_axis(chance, action[:, None], 1)[:, 0]
        for column, item in zip(rows, (frames, action, chosen, value, reward, down), strict=True):
            column.append(item)
    frames, action, chosen, value, reward, down = (np.stack(column) for column in rows)
    following = np.concatenate([value[1:], policy(games.frames())[1][None]])
    surprise = reward + GAMMA * np.where(down, 0, following) - value
    advantage, later = np.zeros_like(surprise), np.zeros(games.games)
    for t in range(STEPS - 1, -1, -1):
        later = surprise[t] + GAMMA * LAMBDA * np.where(down[t], 0, later)
        advantage[t] = later
    worth = (advantage + value).astype(np.float32)
    columns = frames, action, chosen.astype(np.float32), advantage.astype(np.float32), worth
    flat = [c.reshape(-1, *c.shape[2:]) for c in columns]
    parts = np.split(rng.permutation(GAMES * STEPS), PARTS)
    return [tuple(c[part] for c in flat) for part in parts], float(reward[down].mean())


# %% The same 20 steps, each way, of games that chance played.
def by_chance(frames: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Any move alike, and nothing expected."""
    return np.zeros((len(frames), 3)), np.zeros(len(frames))


rng, games = np.random.default_rng(0), Catch(GAMES, seed=0)
batches: list[Batch] = []
while len(batches) < 20:
    more, chance = rollout(games, by_chance, rng)
    batches += more
model, _ = compare(make, training, batches)

# %% Playing and learning, both as graphs.
step = training(flow, model, flow.compile)
ask = flow.compile(lambda frames: model(frames))


def by_model(frames: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the action of the network, and the reward that it expects."""
    with flow.no_grad():
        scores, value = ask(flow.tensor(frames))
    return scores.numpy(), value.numpy()


for _ in range(40):
    parts, reward = rollout(games, by_model, rng)
    for _ in range(EPOCHS):
        for part in parts:
            step(*map(flow.tensor, part))
print(f"a ball brings {reward:.2f}, by chance {chance:.2f}")
if reward < 0.6:
    raise SystemExit("it has not learned to catch")

"""Deep Q-learning: a pole on a cart learns to stand.

Steps are taken on moves that chance made, 20 of them, as eager code, as a graph and with PyTorch
where that is installed: the losses agree.  Then the network plays itself, learns from what it
remembers, and stands longer than chance.

Mnih and others, "Human-level control through deep reinforcement learning", 2015; the cart: Barto,
Sutton and Anderson, "Neuronlike adaptive elements that can solve difficult learning control
problems", 1983.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from curves import Batch, compare

import flowvm as flow

GAMMA, TAU, SAMPLES, LONGEST = 0.95, 0.02, 64, 200


# %% The environment: a push to the left or the right; at 12 degrees the pole falls, and at 2.4 the
# track ends.
class CartPole:
    """A pole on a cart."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def reset(self) -> np.ndarray:
        """Begin; (place, speed, angle, angular speed)."""
        self.state, self.steps = self.rng.uniform(-0.05, 0.05, 4), 0
        return self.state.astype(np.float32)

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool]:
        """Push: the next state, the reward, whether it fell, whether it stood long enough."""
        _, v, angle, turning = self.state
        force, sine, cosine = (10.0 if action else -10.0), math.sin(angle), math.cos(angle)
        push = (force + 0.05 * turning**2 * sine) / 1.1
        bend = (9.8 * sine - cosine * push) / (0.5 * (4 / 3 - 0.1 * cosine**2 / 1.1))
        along = push - 0.05 * bend * cosine / 1.1
        self.state = self.state + 0.02 * np.array([v, along, turning, bend])
        self.steps += 1
        fell = abs(self.state[0]) > 2.4 or abs(self.state[2]) > math.radians(12)
        return self.state.astype(np.float32), 1.0, fell, self.steps >= LONGEST


Move = tuple[np.ndarray, int, float, np.ndarray, bool]


# %% The model and its training, for flowvm or PyTorch: only the library differs.
def make(lib: Any) -> Any:
    """The network that learns and the one that it learns from."""
    nn = lib.nn

    def network() -> Any:
        return nn.Sequential(
            nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)
        )

    nets = nn.ModuleDict({"policy": network(), "target": network()})
    nets["target"].load_state_dict(nets["policy"].state_dict())
    return nets


def training(lib: Any, nets: Any, compiled: Callable[..., Any]) -> Any:
    """A function that takes one step."""
    policy, target = nets["policy"], nets["target"]
    optimizer = lib.optim.AdamW(policy.parameters(), lr=2e-3, amsgrad=True)
    criterion = lib.nn.SmoothL1Loss()

    @compiled
    def step(state: Any, action: Any, reward: Any, following: Any, fell: Any) -> Any:
        values = policy(state).gather(1, action.unsqueeze(1))
        with lib.no_grad():
            best = target(following).max(1).values.masked_fill(fell, 0)
        loss = criterion(values, (reward + GAMMA * best).unsqueeze(1))
        optimizer.zero_grad()
        loss.backward()
        lib.nn.utils.clip_grad_value_(policy.parameters(), 100)
        optimizer.step()
        with lib.no_grad():
            for slow, fast in zip(target.parameters(), policy.parameters(), strict=True):
                slow.lerp_(fast, TAU)
        return loss

    return step


# %% Playing.
def play(cart: CartPole, choose: Callable[[np.ndarray], int], memory: deque[Move]) -> int:
    """One episode, remembered; how many steps the pole stood."""
    state, steps = cart.reset(), 0
    while True:
        action = choose(state)
        following, reward, fell, over = cart.step(action)
        memory.append((state, action, reward, following, fell))
        state, steps = following, steps + 1
        if fell or over:
            return steps


def remembered(memory: deque[Move], rng: np.random.Generator) -> Batch:
    """Moves by chance: (states, actions, rewards, following states, falls)."""
    chosen = [memory[i] for i in rng.integers(0, len(memory), SAMPLES)]
    states, actions, rewards, following, fell = zip(*chosen, strict=True)
    kinds = np.float32, np.int64, np.float32, np.float32, np.bool_
    columns = states, actions, rewards, following, fell
    return tuple(np.array(c, kind) for c, kind in zip(columns, kinds, strict=True))


rng, cart = np.random.default_rng(0), CartPole(seed=0)
memory: deque[Move] = deque(maxlen=10_000)
chance = float(np.mean([play(cart, lambda _: int(rng.integers(2)), memory) for _ in range(20)]))

# %% The same 20 steps, each way.
nets, _ = compare(make, training, [remembered(memory, rng) for _ in range(20)])

# %% Playing and learning: the graph takes a step after each move, chance less and less.
step = training(flow, nets, flow.compile)
greedy = flow.compile(lambda state: nets["policy"](state).argmax())
explore = 1.0


def choose(state: np.ndarray) -> int:
    """The best move that is known, or one by chance; and learn."""
    step(*map(flow.tensor, remembered(memory, rng)))
    return int(rng.integers(2)) if rng.random() < explore else best(state)


def best(state: np.ndarray) -> int:
    """The best move that is known."""
    with flow.no_grad():
        return int(greedy(flow.tensor(state)).item())


for episode in range(60):
    explore = 0.05 + 0.85 * math.exp(-episode / 15)
    play(cart, choose, memory)
stood = float(np.mean([play(cart, best, deque()) for _ in range(10)]))
print(f"it stands {stood:.0f} steps, by chance {chance:.0f}")
if stood < 2 * chance:
    raise SystemExit("it has not learned to stand")

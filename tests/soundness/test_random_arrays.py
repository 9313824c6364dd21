"""Random programs over arrays of numpy and tensors: traced or not, all that can be seen is the same."""

from __future__ import annotations

import random
import types

import numpy as np
import pytest
import torch

from tests.soundness.runner import agree, call

SEEDS = 120
MADE = [
    "np.zeros(3)",
    "np.arange(3)",
    "np.ones((2, 3), dtype=np.float32)",
    "np.random.rand(3)",
    "np.random.permutation(3)",
    "np.random.randint(0, 5, size=(2, 3))",
    "x.numpy()",
    "np.exp(x.numpy() / 9)",
    "np.full(3, 2, dtype=np.int32)",
    "np.arange(6.0).reshape(2, 3)",
    "np.array([1, 2, 3], dtype=np.uint8)",
    "generator.normal(size=3)",
    "np.zeros((2, 3), dtype=bool)",
    "(x * 2).numpy()",
    "np.random.normal(size=(2, 3)).astype(np.float16)",
    "state.kept",
    "state.kept",
    "state.other",
    "state.other",
    "state.ints",
]
COMPUTED = [
    "{a} + {b}",
    "{a} * {b}",
    "{a} / {b}",
    "{a} > {b}",
    "{a} - {n}",
    "{n} * {a}",
    "np.sqrt({a})",
    "np.sort({a})",
    "np.argsort({a})",
    "np.cumsum({a})",
    "np.copy({a})",
    "np.unique({a})",
    "{a}.sum(-1)",
    "{a}.mean(0)",
    "{a}.astype(np.float32)",
    "{a}.astype(int)",
    "{a}.reshape(-1)",
    "{a}.T",
    "{a}.clip(0, 1)",
    "{a}[{i}]",
    "{a}[{i}]",
    "np.where({a} > 0, {a}, {b})",
    "np.concatenate([{a}, {b}])",
    "np.stack([{a}, {a}])",
    "{a} @ {b}",
    "np.random.permutation({a})",
    "np.random.choice({a}, 2)",
    "-{a}",
]
CHANGED = [
    "{a}[{i}] = {n}",
    "{a}[{i}] += {n}",
    "{a}[{i}] = {b}",
    "{a} += {b}",
    "{a} *= {n}",
    "np.random.shuffle({a})",
    "held.append({a})",
    "state.array = {a}",
    "state.other = {a}",
    "state.n += 1",
    "{a}.fill({n})",
    "{a}.sort()",
]
ITEMS = [
    "0",
    "-1",
    "1:",
    "...",
    "None",
    "[0, 1]",
    "::2",
    ":, 1",
    "0:1",
    "..., 0",
    "{a} > 1",
    "state.n % 3",
    ": state.n % 3",
]
NUMBERS = ["2", "1.5", "True", "np.float32(3)", "x.shape[0]", "x.sum().item()", "np.random.rand()"]
ASKED = [
    "float({a}.sum())",
    "{a}.max()",
    "int({a}.sum())",
    "len({a})",
    "{a}.tolist()",
    "{a}.shape",
    "{a}.mean()",
]
BRANCHES = ["x.sum() > 4", "np.random.rand() > 0.5", "float({a}.mean()) > 0.5", "{a}.any()"]
TAKEN = [
    "torch.from_numpy({a})",
    "torch.as_tensor({a})",
    "torch.tensor({a})",
    "torch.from_numpy({a}).mul_(2)",
]


class Program:
    """The text of one function."""

    def __init__(self, seed: int) -> None:
        self.choose = random.Random(seed).choice
        self.lines: list[str] = []
        self.arrays: list[str] = []
        self.results: list[str] = []
        self.depth = 1
        for _ in range(self.choose(range(4, 12))):
            self.statement()
        self.depth = 1
        self.emit("return " + ", ".join([*self.arrays, *self.results][:7]) + ",")

    def emit(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    def fill(self, text: str) -> str:
        number, item, array = self.choose(NUMBERS), self.choose(ITEMS), self.choose(self.arrays)
        return text.format(a=array, b=self.choose(self.arrays), n=number, i=item.format(a=array))

    def name(self, names: list[str], text: str) -> None:
        made = f"{text[:1] if text[:1].isalpha() else 'v'}{len(self.lines)}"
        self.emit(f"{made} = {text}")
        if self.depth == 1:
            names.append(made)

    def statement(self) -> None:
        kind = self.choose("mmcccccwwwatib") if self.arrays else "m"
        if kind == "m":
            self.name(self.arrays, self.choose(MADE))
        elif kind == "c":
            self.name(self.arrays, self.fill(self.choose(COMPUTED)))
        elif kind == "w":
            self.emit(self.fill(self.choose(CHANGED)))
        elif kind == "b" and self.depth == 1:
            self.emit(f"if {self.fill(self.choose(BRANCHES))}:")
            self.depth = 2
            self.emit(self.fill(self.choose(CHANGED)))
        elif kind == "i":
            self.depth = 1
        else:
            self.name(self.results, self.fill(self.choose(ASKED if kind == "a" else TAKEN)))

    def text(self) -> str:
        return "def body(x):\n" + "\n".join(self.lines) + "\n"


def case(text):
    def make(trace):
        np.random.seed(0)
        state, held = types.SimpleNamespace(array=None, kept=np.arange(3.0), n=0), []
        state.other, state.ints = np.ones((2, 3), dtype=np.float32), np.arange(3)
        names = {"np": np, "torch": torch, "held": held, "state": state}
        names["generator"] = np.random.default_rng(1)
        exec(compile(text, "<arrays>", "exec"), names)

        def change(k):
            state.kept[k % 3] += k
            state.n += k % 2
            if k % 3 == 0:
                state.ints = state.ints + 1

        steps = []
        for k in range(7):
            steps += [lambda k=k: change(k), call(torch.tensor([-1.0, 0.5, 2.0]) * (k % 4 + 1))]

        def watch():
            streams = bytes(np.random.get_state()[1]), str(names["generator"].bit_generator.state)
            return held[-3:], vars(state), streams

        return trace(names["body"]), steps, watch

    return make


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_random_program(seed):
    text = Program(seed).text()
    try:
        agree(case(text))
    except AssertionError as error:
        raise AssertionError(f"{error}\n{text}") from None


def test_some_are_replayed():
    found = [agree(case(Program(seed).text())).count("hits") for seed in range(40)]
    assert sum(hits > 0 for hits in found) >= 10

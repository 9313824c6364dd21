"""The training loops of scripts as a net: `python benchmarks/training_loops.py SCRIPT [ARGUMENTS]`.

The statements around `.backward()` in the innermost loop become a function, as somebody would write who wants
to decorate the step: it takes the loop's variables and what it goes on with from the step before, and returns
what is used elsewhere. The script runs in two processes with the same seeds, with the function as it is and
traced. After each step the results, the random streams, and all parameters, buffers, gradients and states of
optimizers that the step can reach must be the same in every bit. Notebooks are their cells of code.

    python benchmarks/training_loops.py ../cleanrl/cleanrl/ppo.py --total-timesteps 20000
    STEPS=40 python benchmarks/training_loops.py ../nlp-tutorial/5-1.Transformer/Transformer.py

A script whose loop ends the step midway (`continue`, `break`, `return`) gives a function of the statements
around that. What cannot be a function of its own is left as it is, and said.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import traceback
import types
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import lazytrace

STEPS = int(os.environ.get("STEPS", "20"))
DEEPEST = 5
_LEAVES = (ast.Return, ast.Yield, ast.YieldFrom, ast.Await, ast.Global, ast.Nonlocal)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


# ---------------------------------------------------------------- the script
def source_of(path: str) -> str:
    """The code of a script or a notebook."""
    text = Path(path).read_text(encoding="utf-8")
    if not path.endswith(".ipynb"):
        return text
    cells = ["".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    lines = "\n\n".join(cells).splitlines()
    return "\n".join(f"pass  # {line}" if line.lstrip().startswith(("%", "!")) else line for line in lines)


def calls(node: ast.AST, *names: str) -> bool:
    """Whether a method of one of these names is called there."""
    found = (n.func for n in ast.walk(node) if isinstance(n, ast.Call))
    return any(isinstance(function, ast.Attribute) and function.attr in names for function in found)


def leaves_by_itself(node: ast.AST, inside: bool = False) -> bool:
    """Whether the statement ends more than itself: the loop, its turn or the function around it."""
    if isinstance(node, _SCOPES):
        return False
    if isinstance(node, (ast.Break, ast.Continue)):
        return not inside
    inside = inside or isinstance(node, (ast.For, ast.While))
    return isinstance(node, _LEAVES) or any(leaves_by_itself(n, inside) for n in ast.iter_child_nodes(node))


def names(nodes: Iterable[ast.AST], kind: type[ast.expr_context] | tuple[Any, ...]) -> set[str]:
    """The names that are loaded, or stored."""
    found = (n for node in nodes for n in ast.walk(node) if isinstance(n, ast.Name))
    return {n.id for n in found if isinstance(n.ctx, kind)}


def loaded(nodes: list[ast.AST]) -> set[str]:
    """Names that are read; what `+=` writes to is read, too."""
    added = [n.target for node in nodes for n in ast.walk(node) if isinstance(n, ast.AugAssign)]
    return names(nodes, ast.Load) | {n.id for n in added if isinstance(n, ast.Name)}


def stored(nodes: list[ast.AST]) -> set[str]:
    """Names that are set, but for those of comprehensions."""
    made = [
        n.name for node in nodes for n in ast.walk(node) if isinstance(n, (ast.FunctionDef, ast.ClassDef))
    ]
    inner = [n.target for node in nodes for n in ast.walk(node) if isinstance(n, ast.comprehension)]
    return (names(nodes, (ast.Store, ast.Del)) | {*made}) - names(inner, ast.Store)


def read_before_set(statements: list[ast.stmt], own: set[str], have: set[str]) -> set[str]:
    """Which of their own names they may read as they were before; `have` gets those that are set for sure."""
    found: set[str] = set()
    for one in statements:
        if isinstance(one, ast.If):
            found |= (loaded([one.test]) & own) - have
            first, second = {*have}, {*have}
            found |= read_before_set(one.body, own, first) | read_before_set(one.orelse, own, second)
            have |= first & second
        elif isinstance(one, (ast.For, ast.While)):
            head = one.iter if isinstance(one, ast.For) else one.test
            found |= (loaded([head]) & own) - have
            targets = stored([one.target]) if isinstance(one, ast.For) else set()
            found |= read_before_set(one.body, own, have | targets)
            found |= read_before_set(one.orelse, own, {*have})
        elif isinstance(one, ast.With):
            found |= (loaded([item.context_expr for item in one.items]) & own) - have
            have |= stored([item.optional_vars for item in one.items if item.optional_vars])
            found |= read_before_set(one.body, own, have)
        else:
            found |= (loaded([one]) & own) - have
            have |= set() if isinstance(one, ast.Try) else stored([one])
    return found


class Steps(ast.NodeTransformer):
    """Makes functions of the bodies of loops, and puts each before the statement that leads to its loop."""

    def __init__(self) -> None:
        self.made: list[ast.FunctionDef] = []
        self._scopes: list[ast.AST] = []
        self._targets: list[set[str]] = []

    def _block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        all_of_them: list[ast.stmt] = []
        for one in statements:
            before = len(self.made)
            visited = self.visit(one)
            here = self.made[before:] if not isinstance(one, _SCOPES) else []
            all_of_them += [*here, visited]
        return all_of_them

    def _scope(self, node: Any) -> Any:
        targets, self._targets = self._targets, []
        self._scopes.append(node)
        node.body = self._block(node.body)
        self._scopes.pop()
        self._targets = targets
        return node

    visit_Module = visit_FunctionDef = _scope

    def _loop(self, node: Any) -> Any:
        self._targets.append(stored([node.target]) if isinstance(node, ast.For) else set())
        loops = [n for one in node.body for n in ast.walk(one) if isinstance(n, (ast.For, ast.While))]
        if any(calls(loop, "backward") for loop in loops) or not any(calls(n, "backward") for n in node.body):
            self.generic_visit(node)
        else:
            node.body = self._with_step(node.body)
        self._targets.pop()
        return node

    visit_For = visit_While = _loop

    def _with_step(self, body: list[ast.stmt]) -> list[ast.stmt]:
        whole = [not leaves_by_itself(one) for one in body]
        first = end = next(i for i, one in enumerate(body) if calls(one, "backward"))
        last = max(i for i, one in enumerate(body) if calls(one, "backward", "step"))
        while first > 0 and whole[first - 1]:
            first -= 1
        while end < last and whole[end + 1]:
            end += 1
        run = body[first : end + 1]
        own = stored([*run])
        scope = self._scopes[-1]
        shared = {
            name for n in ast.walk(scope) if isinstance(n, (ast.Global, ast.Nonlocal)) for name in n.names
        }
        if not whole[first] or (shared & own and not isinstance(scope, ast.Module)):
            return body
        have: set[str] = set()
        goes_on = read_before_set(run, own, have)
        targets = set().union(*self._targets)
        inside = {id(n) for one in run for n in ast.walk(one)}
        elsewhere = loaded([n for n in ast.walk(scope) if id(n) not in inside and isinstance(n, ast.Name)])
        given = sorted(goes_on | (targets & loaded([*run])))
        results = sorted(name for name in own if name in elsewhere or name in goes_on)
        name = f"step_{len(self.made)}"
        text = f"@__step__\ndef {name}({', '.join(given)}):\n    pass"
        function = ast.parse(text).body[0]
        assert isinstance(function, ast.FunctionDef)
        unset = [
            ast.parse(f"{one} = None").body[0] for one in results if one not in have | goes_on | {*given}
        ]
        function.body = [
            *unset,
            *run,
            ast.parse(f"return ({''.join(f'{one}, ' for one in results)})").body[0],
        ]
        self.made.append(function)
        call = f"({''.join(f'{one}, ' for one in results)}) = {name}({', '.join(given)})"
        if not results:
            call = f"{name}({', '.join(given)})"
        return [*body[:first], ast.parse(call).body[0], *body[end + 1 :]]


# ---------------------------------------------------------------- one run
def tensors(value: Any, met: dict[int, Any], depth: int = 0) -> Iterator[torch.Tensor]:
    """Tensors that a value leads to, in an order that hangs on the program alone."""
    if isinstance(value, torch.Tensor):
        yield value
        return
    plain = isinstance(value, (int, float, complex, str, bytes, type(None), type, types.ModuleType))
    if plain or id(value) in met or depth > DEEPEST:
        return
    met[id(value)] = value  # kept, so that its address stays its own
    inside: Any = ()
    if isinstance(value, torch.optim.Optimizer):
        inside = [group["params"] for group in value.param_groups] + list(value.state.values())
    elif isinstance(value, torch.nn.Module):
        inside = [one for p in [*value.parameters(), *value.buffers()] for one in (p, p.grad)]
    elif isinstance(value, dict):
        inside = value.values()
    elif isinstance(value, (list, tuple)):
        inside = value
    elif hasattr(value, "__dict__") and not isinstance(value, types.FunctionType):
        inside = vars(value).values()
    for one in list(inside):
        yield from tensors(one, met, depth + 1)


def _cells(function: types.FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not set yet
            continue


def digest(function: types.FunctionType, given: tuple[Any, ...], result: Any) -> str:
    """Of all that can be seen of a step."""
    seen = hashlib.sha1()
    known = [
        function.__globals__[name] for name in function.__code__.co_names if name in function.__globals__
    ]
    for tensor in tensors([given, result, *_cells(function), *known], {}):
        tensor = tensor.detach()
        tensor = tensor.to_dense() if tensor.layout is not torch.strided else tensor.resolve_conj()
        seen.update(repr((tensor.dtype, tuple(tensor.shape))).encode())
        data = tensor.contiguous().reshape(-1)
        seen.update(data.view(torch.uint8).numpy().tobytes() if data.numel() else b"")
    plain = [one for one in result or () if isinstance(one, (int, float, str, bool))]
    streams = torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]
    seen.update(repr((plain, streams)).encode())
    return seen.hexdigest()[:16]


def run(how: str, path: str, out: str) -> int:
    """Run the script, and write a line for each step."""
    tree = ast.parse(source_of(path))
    steps = Steps()
    tree = ast.fix_missing_locations(steps.visit(tree))
    rows: list[dict[str, Any]] = []
    wrapped: list[Any] = []

    def finish() -> None:
        for function in wrapped if how == "traced" else ():
            stats = lazytrace.handle(function).stats()
            told = {str(reason): count for reason, count in stats.eager.items()}
            rows.append({"hits": stats.hits, "eager": told})
        Path(out).write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
        sys.stdout.flush()
        os._exit(0)

    def step(function: types.FunctionType) -> Callable[..., Any]:
        called = lazytrace.traced(function) if how == "traced" else function
        wrapped.append(called)

        def one(*given: Any) -> Any:
            start = time.perf_counter()
            result = called(*given)
            seconds = time.perf_counter() - start
            rows.append({"digest": digest(function, given, result), "seconds": seconds})
            one.count += 1  # type: ignore[attr-defined]
            if one.count >= STEPS:  # type: ignore[attr-defined]
                finish()
            return result

        one.count = 0  # type: ignore[attr-defined]
        return one

    main = types.ModuleType("__main__")
    main.__dict__.update(__file__=path, __step__=step)
    sys.modules["__main__"] = main
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    for seed in (torch.manual_seed, random.seed, np.random.seed):
        seed(1)
    try:
        exec(compile(tree, path, "exec"), main.__dict__)
    except BaseException as error:
        traceback.print_exc()
        rows.append({"raised": f"{type(error).__name__}: {error}"[:300]})
    finish()
    return 0


# ---------------------------------------------------------------- both runs
def compare(path: str, given: list[str]) -> int:
    """Both runs; what they gave is printed. 1 where it differs, 2 where there is nothing to compare."""
    rows = {}
    for how in ("plain", "traced"):
        with tempfile.NamedTemporaryFile("r", suffix=".jsonl") as out:
            command = [sys.executable, "-W", "ignore", __file__, f"--{how}", path, out.name, *given]
            told = {**os.environ, "MPLBACKEND": "Agg", "PYTHONHASHSEED": "0", "LAZYTRACE_REPORT": "0"}
            done = subprocess.run(command, env=told, capture_output=True, text=True, check=False)
            rows[how] = [json.loads(line) for line in out.read().splitlines()]
        if not any("digest" in row for row in rows[how]):
            print(f"{path}: no step was run. {done.stderr.strip()[-300:]}")
            return 2
    plain, traced = ([row for row in rows[how] if "digest" in row] for how in ("plain", "traced"))
    ends = [[row["raised"] for row in rows[how] if "raised" in row] for how in ("plain", "traced")]
    pairs = list(zip(plain, traced, strict=False))
    wrong = [i for i, (a, b) in enumerate(pairs) if a["digest"] != b["digest"]]
    half = len(pairs) // 2
    ratio = sum(b["seconds"] for _, b in pairs[half:]) / sum(a["seconds"] for a, _ in pairs[half:])
    counted = [row for row in rows["traced"] if "hits" in row]
    hits = sum(row["hits"] for row in counted)
    reasons = "; ".join(f"{n} x {reason}" for row in counted for reason, n in row["eager"].items())
    verdict = (
        f"WRONG at step {wrong[0]}" if wrong else "equal" if ends[0] == ends[1] else f"ends in {ends[1]}"
    )
    print(f"{path}: {verdict}, {len(pairs)} steps, {hits} hits, {ratio:.2f} of its time. {reasons}")
    return int(verdict != "equal")


if __name__ == "__main__":
    if sys.argv[1:2] in (["--plain"], ["--traced"]):
        how, path, out = sys.argv[1:4]
        sys.argv = [path, *sys.argv[4:]]
        torch.set_num_threads(1)
        sys.exit(run(how[2:], path, out))
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(compare(sys.argv[1], sys.argv[2:]))

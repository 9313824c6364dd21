"""Programs that were saved, in a process that need not know the function: `load`."""

from __future__ import annotations

import collections
import inspect
import operator
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from lazytrace._native import available, core, problem
from lazytrace.errors import ReplayError, loaded_diverged, no_saved_program
from lazytrace.originals import BUILTINS
from lazytrace.programs.program import Tree
from lazytrace.programs.saved import (
    FileError,
    Reader,
    decode_meta,
    decode_modes,
    decode_parameters,
    decode_signature,
    decode_steps,
    decode_value,
    describe_arguments,
    differences_of,
    leaves_of,
)
from lazytrace.signature import Parameters

__builtins__ = BUILTINS

_DEEPEST = 64
_CALLS_KEPT = 256
_named_tuple: Any = collections.namedtuple
# What a description of another form than it should have makes the code below raise.
_WRONG = (KeyError, TypeError, ValueError, IndexError, AttributeError, RuntimeError, OverflowError)


class Record(collections.OrderedDict[str, Any]):
    """Stands for an object of a class that need not be known here: its values by key, and its attributes.

    >>> record = Record()
    >>> record.loss = 2
    >>> record.loss
    2
    """


class _Stored:
    """One program of a file."""

    def __init__(self, row: dict[str, Any], reader: Reader, schemas: dict[str, str]) -> None:
        self.signature = decode_signature(row["signature"])
        self.ambient = {str(name): str(value) for name, value in self.signature["ambient"].items()}
        self.captures = [str(name) for _, name, _ in row["captures"]]
        self._leaves = [int(one) for one in self.signature["inputs"]]
        self.tree = _decode_tree(row["result"], 0)
        self._outputs = list(self.tree.registers())
        data = {
            "registers": row["registers"],
            "inputs": row["inputs"],
            "captures": [(register, decode_meta(meta)) for register, _, meta in row["captures"]],
            "modes": decode_modes(row["modes"]),
            "steps": decode_steps(row["steps"], reader, schemas),
        }
        self._native = core.StoredProgram(data, [register.number for register in self._outputs])
        self.tree.build(lambda _: None, outer=1)  # it can be put together
        # Where the captured tensors are: (the dict of a module, the name).
        self.slots: list[tuple[dict[str, Any], str]] = []
        self._build = _builder(self.tree, {one: i for i, one in enumerate(self._outputs)})
        if len(self._leaves) != row["inputs"] or min(self._leaves, default=0) < 0:
            raise FileError("it takes other inputs than it has")
        if max(self._leaves, default=-1) >= len(self.signature["leaves"]):
            raise FileError("it takes other inputs than it has")

    def run(self, inputs: list[torch.Tensor], state: list[torch.Tensor]) -> Any:
        """(whether it went through, the result); otherwise what it gave instead, and whether anything
        changed."""
        found = self._native.run(inputs, state)
        if isinstance(found, tuple):
            return False, found
        if self._build is not None:
            return True, self._build(found)
        tensors = dict(zip(self._outputs, found, strict=True))
        return True, self.tree.build(tensors.__getitem__, outer=1)

    def inputs(self, leaves: list[Any]) -> list[Any]:
        """Those of all leaves that the program takes."""
        return [leaves[i] for i in self._leaves]

    def picks(self, leaves: list[Any], tensors: list[torch.Tensor]) -> list[int] | None:
        """Which of the tensors of a call it takes; None if these are not those among its leaves, in order."""
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        known = len(places) == len(tensors) and all(
            leaves[i] is t for i, t in zip(places, tensors, strict=True)
        )
        return [places.index(i) for i in self._leaves] if known and {*self._leaves} <= {*places} else None


_Built = Callable[[list[torch.Tensor]], Any]


def _builder(tree: Tree, places: dict[Any, int]) -> _Built | None:
    """What puts a result together that is made of tuples, lists, dicts and records; None of other ones.

    The tree itself does so too, and takes several times as long.
    """
    if tree.kind == "register":
        return operator.itemgetter(places[next(tree.registers())])
    if tree.kind == "constant":
        return lambda found, value=tree.value: value  # type: ignore[misc]
    parts = [_builder(item, places) for item in tree.items]
    if None in parts:
        return None
    made: list[Any] = parts
    if tree.kind == "tuple":
        return lambda found: tuple([part(found) for part in made])
    if tree.kind == "list":
        return lambda found: [part(found) for part in made]
    if tree.kind == "dict":
        pairs = list(zip(made[::2], made[1::2], strict=True))
        return lambda found: {key(found): part(found) for key, part in pairs}
    if tree.kind == "object" and tree.value is Record and len(made) == 2 and tree.items[1].kind == "dict":
        return lambda found: _record(made[0](found), made[1](found))
    return None


def _record(attributes: dict[str, Any], items: dict[str, Any]) -> Record:
    made = Record(items)
    vars(made).update(attributes)
    return made


def _decode_tree(row: Any, depth: int) -> Tree:
    if depth > _DEEPEST:
        raise FileError("its result is nested too deeply")
    kind, index, value, items = row
    if kind not in ("register", "constant", "tuple", "list", "dict", "set", "named", "object", "same"):
        raise FileError(f"its result holds something of kind {kind!r:.80}")
    decoded: Any = None
    if kind == "constant":
        decoded = decode_value(value)
    elif kind == "named":
        name = str(value[0]).rpartition(".")[2]
        fields = [str(one) for one in value[1]]
        # Sizes have no names, and a named tuple without any has no items.
        decoded = torch.Size if items and not fields and name == "Size" else _named_tuple(name, fields)
    elif kind == "object":
        decoded = Record
    return Tree(str(kind), int(index), decoded, tuple(_decode_tree(item, depth + 1) for item in items))


def _declared(signature: inspect.Signature) -> Callable[..., Any]:
    """Something that takes arguments as the saved function did."""

    def call(*args: Any, **kwargs: Any) -> None:
        raise NotImplementedError

    setattr(call, "__signature__", signature)  # noqa: B010 (mypy: functions have none)
    return call


def _owner(owners: dict[str, torch.nn.Module], path: str) -> torch.nn.Module:
    """The module at a path, which is made if there is none."""
    owner = owners.get(path)
    if owner is None:
        outer, _, name = path.rpartition(".")
        owner = owners[path] = torch.nn.Module()
        _owner(owners, outer).add_module(name, owner)
    return owner


class Loaded(torch.nn.Module):
    """Saved programs of one function: call it as the function. Its parameters and buffers are the state.

    Made by `lazytrace.load`. A call that no program fits raises `LookupError`, which names all differences to
    the nearest one. State beside tensors, and what the function read otherwise, is as it was when the
    function was saved. Objects of classes come back as `Record`, named tuples as such of the same fields.

    >>> import lazytrace, tempfile
    >>> path = tempfile.mkdtemp() + "/net.zip"
    >>> lazytrace.save(lazytrace.traced(torch.nn.Linear(2, 1)), path, torch.ones(3, 2))
    >>> loaded = lazytrace.load(path)
    >>> isinstance(loaded, Loaded), [name for name, _ in loaded.named_parameters()]
    (True, ['weight', 'bias'])
    """

    def __init__(
        self, description: dict[str, Any], reader: Reader, state_dict: Mapping[str, Any] | None
    ) -> None:
        super().__init__()
        self._name = str(description["function"])
        self._signature, self._unread = decode_parameters(description["parameters"], reader)
        self._binding = Parameters(_declared(self._signature), whole=False)
        # What calls that were looked at had in common, and the programs that they look like.
        self._fitting: dict[bytes, list[tuple[_Stored, list[int] | None]]] = {}
        self._bind, self._defaults = self._binding.native.bind, self._binding.source()
        schemas: dict[str, str] = {}
        self._programs = [_Stored(row, reader, schemas) for row in description["programs"]]
        self._state: dict[str, tuple[torch.nn.Module, str, dict[str, Any]]] = {}
        owners: dict[str, torch.nn.Module] = {"": self}
        for row in description["state"]:
            name, kind, persistent, look = row
            path, _, last = str(name).rpartition(".")
            owner = _owner(owners, path)
            self._add_state(name, owner, last, kind, persistent, look, reader, state_dict)
        taken = {name for one in self._programs for name in one.captures}
        missing = taken - set(self._state)
        if missing:
            raise FileError(f"the tensor {min(missing)} is missing")
        for program in self._programs:
            program.slots = [(self._state[name][2], self._state[name][1]) for name in program.captures]
        # (name, name of the tensor that it was when the program was saved) of what is one tensor.
        tied = [(str(row[0]), str(row[3]["tied"])) for row in description["state"] if row[3].get("same")]
        known = {other for pair in tied if taken & {*pair} for other in pair}
        self._tied = [pair for pair in tied if pair[1] in known]
        self.eval() if not description["training"] else self.train()

    def _add_state(
        self,
        name: str,
        owner: torch.nn.Module,
        last: str,
        kind: str,
        persistent: bool,
        row: dict[str, Any],
        reader: Reader,
        state_dict: Mapping[str, Any] | None,
    ) -> None:
        if "tied" in row:
            return self._tie(name, kind, persistent, row, owner)
        if state_dict is not None and name in state_dict:
            tensor = state_dict[name].detach().clone()
        elif "bytes" in row:
            tensor = reader.tensor(row)
        else:
            raise FileError(f"it has no values of {name:.80}: pass a state_dict that has them")
        requires_grad = bool(row["requires_grad"])
        if kind == "parameter":
            owner.register_parameter(last, torch.nn.Parameter(tensor, requires_grad))
        else:
            buffer = tensor.requires_grad_(requires_grad)
            owner.register_buffer(last, buffer, persistent=kind == "buffer" and bool(persistent))
        group: dict[str, Any] = owner._parameters if kind == "parameter" else owner._buffers
        self._state[name] = owner, last, group

    def _tie(
        self, name: str, kind: str, persistent: bool, row: dict[str, Any], owner: torch.nn.Module
    ) -> None:
        """State that shares all of its memory with other state, or is the same."""
        if row["tied"] not in self._state:
            raise FileError(f"it ties {name:.80} to what it does not have")
        first_owner, first, group = self._state[row["tied"]]
        found: torch.Tensor = getattr(first_owner, first)
        if group is not (first_owner._parameters if kind == "parameter" else first_owner._buffers):
            raise FileError(f"it ties {name:.80} to state of another kind")
        last, requires_grad = name.rpartition(".")[2], bool(row["requires_grad"])
        if kind == "parameter":
            tied = found if row["same"] else torch.nn.Parameter(found.detach(), requires_grad)
            owner.register_parameter(last, tied)  # type: ignore[arg-type]
            self._state[name] = owner, last, owner._parameters
        else:
            tied = found if row["same"] else found.detach().requires_grad_(requires_grad)
            owner.register_buffer(last, tied, persistent=kind == "buffer" and bool(persistent))
            self._state[name] = owner, last, owner._buffers

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function: a replay of the program that fits; inside a recording, one step of it."""
        if available() and core.is_recording():
            step = self.__lazytrace_step__
            return core.opaque_call(self, "__lazytrace_step__", step, args, kwargs, True, False)
        return self.__lazytrace_step__(*args, **kwargs)

    def __lazytrace_step__(self, *args: Any, **kwargs: Any) -> Any:
        for name, other in self._tied:
            self._check_tied(name, other)
        call = self._bind(self, args, kwargs, self._defaults)
        if call is not None and call.unsupported:
            call = None
        for program, picks in self._fitting.get(call.key, ()) if call is not None else ():
            if picks is None or call is None:
                inputs = program.inputs(leaves_of(self._named(args, kwargs)))
            else:
                tensors = call.tensors
                inputs = [tensors[i] for i in picks]
            went_through, result = program.run(inputs, self._captured(program))
            if went_through:
                return result
            self._refuse_changed(result)
        return self._look_for(call, args, kwargs)

    def _captured(self, program: _Stored) -> list[torch.Tensor]:
        try:
            found = [group[name] for group, name in program.slots]
        except KeyError:
            return [self._tensor(name) for name in program.captures]
        return found

    def _look_for(self, call: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The same, with the differences to each program in words."""
        named = list(self._named(args, kwargs))
        leaves, found = leaves_of(named), describe_arguments(named)
        ambient = {name: str(value) for name, value in core.describe_ambient().items()}
        told: list[list[str]] = []
        fitting: list[_Stored] = []
        for program in self._programs:
            differences = differences_of(program.signature, found) + [
                f"{name} {old} -> {ambient.get(name)}"
                for name, old in program.ambient.items()
                if ambient.get(name) != old
            ]
            if differences:
                told.append(differences)
                continue
            fitting.append(program)
            went_through, result = program.run(program.inputs(leaves), self._captured(program))
            if went_through:
                if call is not None:
                    self._remember(call.key, [(one, one.picks(leaves, call.tensors)) for one in fitting])
                return result
            step, gave = self._refuse_changed(result)
            where = f"step {step} gave" if step >= 0 else f"{program.captures[-1 - step]}"
            told.append([f"{where} {gave}"])
        raise LookupError(no_saved_program(self._name, sorted(told, key=len)[0], len(self._programs)))

    def _remember(self, key: bytes, fitting: list[tuple[_Stored, list[int] | None]]) -> None:
        if len(self._fitting) >= _CALLS_KEPT:
            self._fitting = {}
        self._fitting[key] = fitting

    def _refuse_changed(self, outcome: tuple[int, str, bool]) -> tuple[int, str]:
        """The step that differed and what it gave, if nothing was changed by then."""
        step, gave, changed = outcome
        if changed:
            raise ReplayError(loaded_diverged(self._name, step, gave))
        return step, gave

    def _tensor(self, name: str) -> torch.Tensor:
        owner, last, group = self._state[name]
        found = group.get(last)
        # Whoever has put it elsewhere, or has deleted it, is told as of any module.
        tensor: torch.Tensor = found if found is not None else getattr(owner, last)
        return tensor

    def _check_tied(self, name: str, other: str) -> None:
        """The programs take one of the two, wherever they took either when they were recorded."""
        if self._tensor(name) is not self._tensor(other):
            why = f"{name} is no longer {other}"
            raise LookupError(no_saved_program(self._name, [why], len(self._programs)))

    def _named(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        last: list[tuple[str, Any]] = []
        for name, parameter in self._signature.parameters.items():
            value = bound.arguments[name]
            if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
                last[:0] = [(f"args[{i}]", one) for i, one in enumerate(value)]
            elif parameter.kind is inspect.Parameter.VAR_KEYWORD:
                last += value.items()
            elif name not in self._unread:
                yield name, value
        yield from last

    def __reduce__(self) -> Any:
        """Refused: the file is what can be handed on."""
        raise TypeError(
            f"{self._name} was loaded and is not pickled. Hand on the file that it was loaded from."
        )

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.__reduce__()


def load(path: str | os.PathLike[str], *, state_dict: Mapping[str, Any] | None = None) -> Loaded:
    """The function that `lazytrace.save` wrote, as a module that replays it; its source is not needed.

    `state_dict`: values for parameters and buffers; required for a file without. Loading checks all that can
    be
    checked and executes nothing. What a call executes are torch's operators as the file lists them: treat the
    file of a stranger as you treat any model of a stranger.

    Raises `FileError` (a `ValueError`) when the file is truncated, damaged or of another format, was saved
    with another minor version of torch, or takes an operator that this torch does not have or that has
    changed; the message names it. Raises `FileNotFoundError` when there is none.

    >>> import lazytrace, tempfile
    >>> step = lazytrace.traced(lambda x, k: x * k)
    >>> path = tempfile.mkdtemp() + "/step.zip"
    >>> lazytrace.save(step, path, (torch.ones(2), 3))
    >>> loaded = lazytrace.load(path)
    >>> loaded(torch.full((2,), 5.0), 3)
    tensor([15., 15.])
    >>> loaded(torch.ones(3), 3)
    Traceback (most recent call last):
        ...
    LookupError: <lambda> has no saved program for this call: x.shape [2] -> [3]. It has 1.
    """
    if not available():
        raise RuntimeError(problem)
    with Reader(path) as reader:
        try:
            return Loaded(reader.description(), reader, state_dict)
        except FileError as error:
            raise reader.refuse(error) from error
        except RecursionError as error:
            raise reader.refuse("it is nested too deeply") from error
        except _WRONG as error:
            raise reader.refuse(f"{type(error).__name__}: {error}") from error


def describe_file(path: str | os.PathLike[str]) -> str:
    """What is in a file, as text: programs with their signatures and steps, and the state. Runs nothing.

    Raises what `load` raises of a file that cannot be read.
    """
    with Reader(path) as reader:
        try:
            return "\n".join(_lines(reader.description()))
        except FileError as error:
            raise reader.refuse(error) from error
        except _WRONG as error:
            raise reader.refuse(f"{type(error).__name__}: {error}") from error


def _lines(description: dict[str, Any]) -> Iterator[str]:
    programs, state = description["programs"], description["state"]
    yield (
        f"{description['function']}: {len(programs)} programs, {len(state)} tensors of state, "
        f"format {description['format']}, torch {description['torch']}"
    )
    for i, program in enumerate(programs):
        yield f"program {i}"
        for path, leaf in program["signature"]["leaves"]:
            look = leaf.get("tensor")
            yield f"  {path}: " + (f"{look['dtype']}{look['shape']}" if look else repr(leaf["value"]))
        for number, step in enumerate(program["steps"]):
            file, line, _ = step["place"]
            where = f"  # {file}:{line}" if file else ""
            name = step["operator"] + (f".{step['overload']}" if step["overload"] else "")
            yield f"  {number:4d}  {name if step['kind'] == 'operator' else step['kind']}{where}"
    for name, kind, _, row in state:
        yield f"{kind} {name}: {row['dtype']}{row['shape']}"


__all__ = ["FileError", "Loaded", "Record", "describe_file", "load"]

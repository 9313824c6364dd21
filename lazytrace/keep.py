"""Handing on what was recorded: to torch.export, to ONNX, to files."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from typing import Any

import torch

from lazytrace._torch import tree_flatten, tree_unflatten
from lazytrace.ahead import call_of, record_ahead
from lazytrace.api import traced
from lazytrace.checks import clone_tensor
from lazytrace.errors import missing_package, nothing_held
from lazytrace.function import Handle, handle
from lazytrace.originals import BUILTINS
from lazytrace.programs import Program, exported_program, warn_of_onnx
from lazytrace.saving import Saving
from lazytrace.signature import memory_of

__builtins__ = BUILTINS


def export(
    function: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
) -> torch.export.ExportedProgram:
    """The program of a traced function for some arguments, as `torch.export.export` gives one.

    Parameters, buffers and constants have the names that they have in the module, inputs those of the
    parameters, containers are kept, and `torch.export.unflatten` finds the submodules. In-place writes
    stay as they are, as in programs for training. The tensors of the state are those of the function, not
    copies. It serves the sizes of these arguments only. A value that Python looked at is an assertion.
    Arguments that share memory are inputs of their own, and the program must be the same where they do
    not.

    `args` is a tuple, or one argument. A call that was not recorded is recorded on copies of the arguments;
    state and random stream are put back.

    Raises `NotImplementedError` with each obstacle and its line; `exportable` of the traced function asks
    without raising. Raises `UntraceableError` when the call cannot be recorded.

    >>> from lazytrace import traced
    >>> net = traced(torch.nn.Linear(2, 2))
    >>> program = export(net, torch.ones(1, 2))
    >>> list(program.state_dict), program.graph_signature.user_inputs
    (['weight', 'bias'], ('input_1',))
    >>> torch.equal(program.module()(torch.ones(1, 2)), net(torch.ones(1, 2)))
    True
    """
    return exported_program(*_to_export(function, args, kwargs))


def _to_export(function: Any, args: Any, kwargs: Mapping[str, Any] | None) -> tuple[Program, Program | None]:
    """The program where no arguments share memory, and that where they do as these, if they do."""
    given, named = args if isinstance(args, tuple) else (args,), dict(kwargs or {})
    program = exact(function, given, named).program(*given, **named)
    apart = _apart(given, named)
    if apart is None:
        return program, None
    return exact(function, *apart).program(*apart[0], **apart[1]), program


def _apart(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """The same, with copies of tensors that share memory; None if none do. A graph has an input for each.

    >>> x = torch.ones(2)
    >>> (a, b), _ = _apart((x, x), {})
    >>> a is b, a is x, _apart((x, 2), {})
    (False, False, None)
    """
    leaves, spec = tree_flatten((args, kwargs))
    owners = [memory_of(one) if isinstance(one, torch.Tensor) else 0 for one in leaves]
    if len({*owners} - {0}) == len([one for one in owners if one]):
        return None
    alone = [
        clone_tensor(one, {}) if owner and owners.count(owner) > 1 else one
        for one, owner in zip(leaves, owners, strict=True)
    ]
    apart: tuple[tuple[Any, ...], dict[str, Any]] = tree_unflatten(alone, spec)
    return apart


def exact(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Handle:
    """The function with a recording for these very sizes, or a twin of it that has one.

    >>> from lazytrace import traced
    >>> step = traced(lambda x: x * 2, dynamic=True)
    >>> exact(step, (torch.ones(2),), {}).program(torch.ones(2)).native.dynamic
    False
    """
    record_ahead(function, args, kwargs)
    found = handle(function)
    # What grows elsewhere is data here: the entries of a list in a graph, of a dict in a file.
    if not found.program(*args, **kwargs).native.follows_numbers and not found.grown():
        return found
    twin = traced(found.original, dynamic=False, name=found.stats().name)
    record_ahead(twin, args, kwargs)
    return handle(twin)


def onnx(
    function: Any,
    args: Any,
    path: str | os.PathLike[str],
    *,
    kwargs: Mapping[str, Any] | None = None,
    **options: Any,
) -> Any:
    """Write the program of a traced function for some arguments as an ONNX model; see `export`.

    `options` are those of `torch.onnx.export`, whose result is returned. A `TracerWarning` says what the
    model does not do: a value that Python looked at is frozen, arguments and state are not written to,
    random numbers are others. Raises `ImportError` when a package that it needs is missing, and what
    `export` raises.

    >>> import tempfile
    >>> from lazytrace import traced
    >>> path = tempfile.mkdtemp() + "/net.onnx"
    >>> try:
    ...     made = onnx(traced(torch.nn.Linear(2, 2)), torch.ones(1, 2), path, verbose=False)
    ...     assert len(made.model.graph.inputs) == 1
    ... except ImportError as error:
    ...     assert "pip install onnx" in str(error)
    """
    missing = [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]
    if missing:
        raise ImportError(missing_package("lazytrace.onnx", missing))
    program, shared = _to_export(function, args, kwargs)
    exported = exported_program(program, shared)
    warn_of_onnx(program)
    return torch.onnx.export(exported, f=os.fspath(path), dynamo=True, **options)


def save(
    function: Any,
    path: str | os.PathLike[str],
    example_inputs: Any = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    include_state: bool = True,
) -> None:
    """Write the programs of a traced function for some calls into a file that `lazytrace.load` reads.

    `example_inputs` and `kwargs` are those of `trace`: one call, or a list of calls, each of which is
    recorded on copies if it was not before. Without them the file holds all recordings that there are and
    that the state of the function still fits; one that follows sizes is taken for those that it was
    recorded with, which runs the function on zeros. The file holds programs, literals, what the arguments
    must look like, and the tensors of the state by their names in a state_dict; with
    `include_state=False` their values are left out. What the function read of other state is in the
    programs as it is now. The file is one zip of JSON and raw bytes, without pickle; an existing file is
    replaced when all is written.

    Raises `NotImplementedError` with each thing that a file cannot hold (opaque steps, writes to Python
    state, autograd inside) or what no call can be made up for, `LookupError` when there is no recording, and
    what `trace` raises.

    >>> import tempfile
    >>> from lazytrace import load, traced
    >>> net = traced(torch.nn.Linear(2, 2))
    >>> path = tempfile.mkdtemp() + "/net.zip"
    >>> save(net, path, [torch.ones(1, 2), torch.ones(3, 2)])
    >>> loaded = load(path)
    >>> torch.equal(loaded(torch.ones(3, 2)), net(torch.ones(3, 2))), list(loaded.state_dict())
    (True, ['weight', 'bias'])
    >>> save(net, path)  # what was recorded
    >>> [load(path)(torch.ones(rows, 2)).shape[0] for rows in (1, 3)]
    [1, 3]
    """
    examples = example_inputs if isinstance(example_inputs, list) else [example_inputs]
    saving = Saving(include_state)
    if example_inputs is None and not kwargs:
        _add_held(saving, function)
        examples = []
    for example in examples:
        args, named = call_of(example, kwargs)
        saving.add(exact(function, args, named), args, named)
    saving.write(path)


def _add_held(saving: Saving, function: Any) -> None:
    asked, count = handle(function), 0
    for count, held in enumerate(asked.held(), 1):  # noqa: B007 (the number of the last is asked)
        with held.modes():
            if held.program is None:
                saving.add(exact(function, held.args, held.kwargs), held.args, held.kwargs)
            else:
                named = asked.arguments(*held.args, **held.kwargs)
                saving.add_program(held.program, named, asked.parameters(), asked.unread())
    if not count:
        raise LookupError(nothing_held(asked.stats().name))

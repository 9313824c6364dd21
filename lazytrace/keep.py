"""Handing on what was recorded: to torch.export, to ONNX."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from typing import Any

import torch

from lazytrace.ahead import record_ahead
from lazytrace.errors import missing_package
from lazytrace.function import handle
from lazytrace.programs import exported_program


def export(
    function: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
) -> torch.export.ExportedProgram:
    """The program of a traced function for some arguments, as `torch.export.export` gives one.

    Parameters, buffers and constants have the names that they have in the module, inputs those of the
    parameters, containers are kept, and `torch.export.unflatten` finds the submodules. In-place writes stay
    as
    they are, as in programs for training. The tensors of the state are those of the function, not copies. It
    serves the sizes of these arguments only. A value that Python looked at is an assertion.

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
    given = args if isinstance(args, tuple) else (args,)
    named = dict(kwargs or {})
    record_ahead(function, given, named)
    return exported_program(handle(function).program(*given, **named))


def onnx(
    function: Any,
    args: Any,
    path: str | os.PathLike[str],
    *,
    kwargs: Mapping[str, Any] | None = None,
    **options: Any,
) -> Any:
    """Write the program of a traced function for some arguments as an ONNX model; see `export`.

    `options` are those of `torch.onnx.export`, whose result is returned. Raises `ImportError` when a package
    that it needs is missing, and what `export` raises.
    """
    missing = [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]
    if missing:
        raise ImportError(missing_package("lazytrace.onnx", missing))
    program = export(function, args, kwargs)
    return torch.onnx.export(program, f=os.fspath(path), dynamo=True, **options)

"""Programs in files: one zip of a description in JSON and of the bytes of tensors. Nothing in it is code.

`docs/export.md` describes the format.
"""

from __future__ import annotations

import ctypes
import inspect
import json
import math
import os
import struct
import zipfile
import zlib
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from lazytrace._torch import is_zero_tensor, tree_leaves_with_path, tree_spec_text
from lazytrace.checks import is_leaf, sharing
from lazytrace.errors import file_refused, save_refused
from lazytrace.programs.opaque import stays_python
from lazytrace.programs.program import (
    Argument,
    Capture,
    Meta,
    Operation,
    Program,
    Register,
    Result,
    Tree,
    obstacles_of_objects,
)

FORMAT = 2
NOWHERE = Register(-1)
"""Of a tensor of the state that no program takes."""
DESCRIPTION = "lazytrace.json"
_LONGEST_DESCRIPTION = 1 << 28  # bytes
_DEEPEST = 64
_PLAIN = (type(None), bool, int, str)


class FileError(ValueError):
    """A file is no saved program, or one that this torch cannot run.

    >>> issubclass(FileError, ValueError)
    True
    """


# ---------------------------------------------------------------- values
def encode_value(value: Any) -> Any:
    """A plain value as JSON has it.

    >>> encode_value([1, float("inf"), torch.float32])
    [1, {'float': 'inf'}, {'dtype': 'float32'}]
    """
    if type(value) in _PLAIN:
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    if type(value) is complex:
        return {"complex": [encode_value(value.real), encode_value(value.imag)]}
    for name in ("dtype", "layout", "memory_format"):
        kind = getattr(torch, name)
        if type(value) is kind:
            return {name: str(value).removeprefix("torch.")}
    if type(value) is torch.device:
        return {"device": str(value)}
    if type(value) is list:
        return [encode_value(one) for one in value]
    for name, kind in _TUPLES.items():
        if type(value) is kind:
            return {name: [encode_value(one) for one in value]}
    raise TypeError(f"a value of type {type(value).__qualname__}")


def decode_value(value: Any) -> Any:
    """What `encode_value` wrote. Raises `FileError` when that is nothing of the kind.

    >>> decode_value([1, {"float": "inf"}, {"dtype": "float32"}])
    [1, inf, torch.float32]
    """
    if type(value) in _PLAIN or type(value) is float:
        return value
    if type(value) is list:
        return [decode_value(one) for one in value]
    if type(value) is dict and len(value) == 1:
        ((kind, inner),) = value.items()
        decode = _DECODERS.get(kind)
        if decode is not None:
            return decode(inner)
    raise FileError(f"{value!r:.80} is no value")


def _special_float(text: Any) -> float:
    if text not in ("inf", "-inf", "nan"):
        raise FileError(f"{text!r:.80} is no float")
    return float(text)


def _complex(parts: Any) -> complex:
    if type(parts) is not list or len(parts) != 2:
        raise FileError("a complex number has two parts")
    real, imaginary = (decode_value(one) for one in parts)
    return complex(_number(real), _number(imaginary))


def _number(value: Any) -> float:
    if type(value) not in (int, float):
        raise FileError(f"{value!r:.80} is no number")
    return float(value)


def _named(kind: type) -> Any:
    def decode(name: Any) -> Any:
        found = getattr(torch, name, None) if type(name) is str else None
        if type(found) is not kind:
            raise FileError(f"torch has no {kind.__name__} {name!r:.80}")
        return found

    return decode


def _device(text: Any) -> torch.device:
    try:
        return torch.device(text if type(text) is str else "")
    except RuntimeError as error:
        raise FileError(f"{text!r:.80} is no device") from error


def _tuple(items: Any) -> tuple[Any, ...]:
    if type(items) is not list:
        raise FileError(f"{items!r:.80} is no list")
    return tuple(map(decode_value, items))


_TUPLES: dict[str, Any] = {"tuple": tuple, "size": torch.Size}
_DECODERS: dict[str, Any] = {
    "tuple": _tuple,
    "size": lambda items: torch.Size(_sizes(items)),
    "float": _special_float,
    "complex": _complex,
    "dtype": _named(torch.dtype),
    "layout": _named(torch.layout),
    "memory_format": _named(torch.memory_format),
    "device": _device,
}


# ---------------------------------------------------------------- what cannot be saved
def obstacles_to_save(program: Program) -> Iterator[tuple[str, str]]:
    """(why, advice) of each thing that a file cannot hold."""
    if program.native.follows_numbers:
        yield "works out numbers while it runs", "Trace the function with dynamic=False."
    yield from obstacles_of_objects(program)
    for write in program.writes:
        yield f"writes {write.path}, which a loaded program does not have", "Return the value instead."
    for capture in program.captures:
        if capture.argument:
            yield f"takes {capture.path} out of an argument that is no container", "Pass the tensor itself."
    for step in program.steps:
        yield from _obstacles_of_step(step)
    yield from _shared_memory(program)
    for tree in program.result.walk():
        if tree.kind == "state":
            yield "returns a part of the state", "Return tensors and plain values only."
        elif tree.kind == "constant" and not _can_encode(tree.value):
            yield f"returns a value of type {type(tree.value).__qualname__}", "Return plain values only."


def _obstacles_of_step(step: Operation) -> Iterator[tuple[str, str]]:
    if step.kind == "opaque":
        yield stays_python(step)
    elif step.kind not in ("operator", "literal", "fill", "data"):
        yield f"reads or sets autograd's state of a tensor ({step.place})", "Do that outside."
    for argument in step.arguments:
        if not _can_encode_argument(argument.value):
            what = type(argument.value).__qualname__
            yield f"passes a {what} to {step.operator} ({step.place})", "Use tensors and plain values."


def _shared_memory(program: Program) -> Iterator[tuple[str, str]]:
    """State that shares memory would be apart after loading: that shows if the program writes."""
    if not any(step.effect for step in program.steps):
        return
    known: dict[int, str] = {}
    for capture in program.captures:
        if capture.tensor.layout is torch.strided and capture.tensor.numel():
            other = known.setdefault(capture.tensor.untyped_storage().data_ptr(), capture.path)
            if other != capture.path:
                yield f"writes to tensors while {other} and {capture.path} share memory", "Keep one of them."


def _can_encode(value: Any) -> bool:
    try:
        encode_value(value)
    except TypeError:
        return False
    return True


def _can_encode_argument(value: Any) -> bool:
    if isinstance(value, Register):
        return True
    if isinstance(value, list) and any(isinstance(one, Register) for one in value):
        return True
    return _can_encode(value.item() if isinstance(value, torch.Tensor) else value)


# ---------------------------------------------------------------- writing
@dataclass
class Blobs:
    """The tensors of a file, each once, by number."""

    tensors: list[torch.Tensor]

    def add(self, tensor: torch.Tensor, *, stored: bool = True) -> dict[str, Any]:
        """What the description says of a tensor; `stored`: its bytes are in the file."""
        tensor = tensor.detach()
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
            raise TypeError("a tensor that is not dense")
        row: dict[str, Any] = {
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "shape": list(tensor.shape),
            "stride": list(tensor.stride()),
            "device": str(tensor.device),
        }
        if stored:
            row["bytes"] = len(self.tensors)
            self.tensors.append(tensor)
        return row


def bytes_of(tensor: torch.Tensor) -> bytes:
    """The bytes that a tensor spans, from its first element to its last, gaps between them included.

    >>> bytes_of(torch.tensor([[1, 2], [3, 4]], dtype=torch.uint8)[:, 0])
    b'\\x01\\x02\\x03'
    """
    count = extent(tensor.shape, tensor.stride())
    flat = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    flat.set_(tensor.untyped_storage(), tensor.storage_offset(), (count,), (1,))
    return bytes(flat.cpu().view(torch.uint8).numpy()) if count else b""


def extent(shape: Sequence[int], stride: Sequence[int]) -> int:
    """How many elements a tensor spans.

    >>> extent((2, 2), (2, 1)), extent((0, 3), (3, 1))
    (4, 0)
    """
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))


def encode_program(
    program: Program, blobs: Blobs, state: dict[str, Capture], signature: dict[str, Any]
) -> Any:
    """One program as JSON has it. Raises `NotImplementedError` with all that a file cannot hold."""
    found = [f"{why}. {advice}" for why, advice in obstacles_to_save(program)]
    if found:
        raise NotImplementedError(save_refused(program.name, list(dict.fromkeys(found))))
    data = program.native.data(program.trace.names)
    modes = [_encode_modes(one) for one in data["modes"]]
    rows = {register: meta for _, register, _, _, meta in data["captures"]}
    return {
        "signature": signature,
        "registers": data["registers"],
        "inputs": len(program.inputs),
        "captures": [
            [one.register.number, _remember(one, state), _encode_meta(_meta(rows[one.register.number]))]
            for one in program.captures
        ],
        "modes": modes,
        "steps": [
            _encode_step(step, row, blobs) for step, row in zip(program.steps, data["steps"], strict=True)
        ],
        "result": _encode_tree(program.result),
    }


def _remember(capture: Capture, state: dict[str, Capture]) -> str:
    """The name of a tensor of the state, which other programs of the file may take too."""
    name, number = capture.name, 1
    while name in state and state[name].tensor is not capture.tensor:
        name, number = f"{capture.name}_{number}", number + 1
    state[name] = capture
    return name


def _encode_modes(row: dict[str, Any]) -> Any:
    autocast = [[device, encode_value(dtype)] for device, dtype in row["autocast"]]
    return {**row, "autocast": autocast}


def _encode_step(step: Operation, row: dict[str, Any], blobs: Blobs) -> Any:
    schema = str(step.handle()._schema) if step.kind == "operator" else ""
    return {
        "kind": step.kind,
        "operator": step.operator,
        "overload": step.overload,
        "schema": schema,
        "arguments": [_encode_argument(one) for one in step.arguments],
        "results": [_encode_result(one) for one in step.results],
        "modes": row["modes"],
        "place": [os.path.basename(step.place.file), step.place.line, step.place.function],
        "module": step.module,
        "literal": blobs.add(step.literal) if step.literal is not None else None,
        **{name: row[name] for name in ("random", "effect", "exit", "below", "filled", "python")},
    }


def _encode_argument(argument: Argument) -> Any:
    value = argument.value
    if isinstance(value, Register):
        return ["register", value.number]
    if isinstance(value, list) and any(isinstance(one, Register) for one in value):
        return ["registers", [None if one is None else one.number for one in value]]
    if isinstance(value, torch.Tensor):
        return ["number", encode_value(value.item())]
    return ["constant", encode_value(value)]


def _encode_result(result: Result) -> Any:
    return {
        "kind": result.kind,
        "register": result.register.number if result.register is not None else -1,
        "known": result.known,
        "base": result.base.number if result.base is not None else -1,
        "distance": result.distance,
        "meta": _encode_meta(result.meta),
        "value": encode_value(result.value),
        "list": [_encode_result(one) for one in result.items],
    }


def _meta(row: dict[str, Any]) -> Meta:
    return Meta(**row)


def _encode_meta(meta: Meta | None) -> Any:
    if meta is None:
        return None
    return {
        "shape": list(meta.shape),
        "stride": None if meta.stride is None else list(meta.stride),
        "dtype": encode_value(meta.dtype),
        "device": encode_value(meta.device),
        "requires_grad": meta.requires_grad,
        "keys": meta.keys,
    }


def _encode_tree(tree: Tree) -> Any:
    value: Any = None
    if tree.kind == "constant":
        value = encode_value(tree.value)
    elif tree.kind in ("named", "object"):
        # The named tuples that torch's operators return have their fields here.
        fields: Any = getattr(tree.value, "_fields", None) or getattr(tree.value, "__match_args__", ())
        value = [tree.value.__qualname__, list(fields)]
    return [tree.kind, tree.index, value, [_encode_tree(item) for item in tree.items]]


def write(path: str | os.PathLike[str], description: Mapping[str, Any], blobs: Blobs) -> None:
    """Write a file; one that is there is replaced when all is written."""
    unfinished = f"{os.fspath(path)}.unfinished-{os.getpid()}"
    try:
        with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_STORED) as file:
            file.writestr(DESCRIPTION, json.dumps(description, allow_nan=False, separators=(",", ":")))
            for i, tensor in enumerate(blobs.tensors):
                file.writestr(f"tensors/{i}", bytes_of(tensor))
        os.replace(unfinished, path)
    finally:
        if os.path.exists(unfinished):
            os.remove(unfinished)


# ---------------------------------------------------------------- reading
# Signature, length of the name, length of the extra field.
_LOCAL_HEADER: Final = struct.Struct("<4s22xHH")


class Reader:
    """An open file, asked for its description and its tensors. Raises `FileError` for all that is wrong."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        try:
            self._raw = open(path, "rb")  # noqa: SIM115 (closed with the reader)
            self._size = os.fstat(self._raw.fileno()).st_size
            self._file = zipfile.ZipFile(self._raw)
        except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
            if isinstance(error, FileNotFoundError):
                raise
            self._raw.close()
            raise FileError(file_refused(self._path, f"it is no zip file: {error}")) from error

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *rest: object) -> None:
        self._file.close()
        self._raw.close()

    def refuse(self, why: object) -> FileError:
        """What is raised: it names the file."""
        return FileError(file_refused(self._path, str(why)))

    def description(self) -> dict[str, Any]:
        """What the file says, as JSON has it; its format and the version of torch are checked."""
        text = self._text()
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise FileError(f"its description is no JSON: {error}") from error
        if type(found) is not dict:
            raise FileError("its description is no object")
        if found.get("format") != FORMAT:
            raise FileError(
                f"its format is {found.get('format')!r:.80}, and this version of lazytrace reads {FORMAT}"
            )
        version = str(found.get("torch"))
        if version.partition("+")[0].split(".")[:2] != torch.__version__.partition("+")[0].split(".")[:2]:
            raise FileError(f"it was saved with torch {version:.80}, and this is torch {torch.__version__}")
        return found

    def _text(self) -> bytes:
        info = self._info(DESCRIPTION)
        if info.file_size > _LONGEST_DESCRIPTION:
            raise FileError(f"{DESCRIPTION} is too large")
        data = bytearray(info.file_size)
        self._read(info, data)
        return bytes(data)

    def _info(self, name: str) -> zipfile.ZipInfo:
        try:
            info = self._file.getinfo(name)
        except KeyError as error:
            raise FileError(f"{name} is missing") from error
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
            raise FileError(f"{name} is compressed or encrypted")
        # Before memory is taken for it.
        if info.file_size > self._size:
            raise FileError(f"{name} cannot be read: it is cut off")
        return info

    def _read(self, info: zipfile.ZipInfo, data: Any) -> None:
        """Read what is stored straight into `data`, of as many bytes: zipfile would copy it several times."""
        try:
            self._raw.seek(info.header_offset)
            signature, names, extra = _LOCAL_HEADER.unpack(self._raw.read(_LOCAL_HEADER.size))
            self._raw.seek(names + extra, os.SEEK_CUR)
            if signature != b"PK\x03\x04" or self._raw.readinto(data) != info.file_size:
                raise EOFError("it is cut off")
            if zlib.crc32(data) != info.CRC:
                raise EOFError("its checksum is another")
        except (EOFError, OSError, ValueError, struct.error) as error:
            raise FileError(f"{info.filename} cannot be read: {error}") from error

    def tensor(self, row: Any) -> torch.Tensor:
        """One tensor; its memory is its own."""
        try:
            shape, stride = _sizes(row["shape"]), _sizes(row["stride"])
            dtype, device = _DECODERS["dtype"](row["dtype"]), _device(row["device"])
            number = row["bytes"]
        except (KeyError, TypeError) as error:
            raise FileError("a tensor is described in another way than it should be") from error
        if type(number) is not int or len(shape) != len(stride):
            raise FileError("a tensor is described in another way than it should be")
        count = extent(shape, stride)
        info = self._info(f"tensors/{number}")
        if info.file_size != count * dtype.itemsize:
            wanted = count * dtype.itemsize
            raise FileError(f"tensors/{number} has {info.file_size} bytes, and {wanted} belong there")
        flat = torch.empty(count, dtype=dtype)
        if count:
            self._read(info, (ctypes.c_char * info.file_size).from_address(flat.data_ptr()))
        return _moved(flat.as_strided(shape, stride).detach(), device)  # no view of another tensor


def _moved(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    try:
        return tensor.to(device)
    except (AssertionError, ImportError, RuntimeError) as error:  # the backend says so in its own way
        why = str(error).splitlines()[0]
        raise FileError(f"it has a tensor on {device}, which torch cannot reach here: {why:.200}") from error


def _sizes(value: Any) -> tuple[int, ...]:
    if type(value) is not list or len(value) > _DEEPEST:
        raise FileError("sizes are a list of numbers")
    for one in value:  # a file has thousands: no generator
        if type(one) is not int or not 0 <= one < 1 << 48:
            raise FileError("sizes are a list of numbers")
    return tuple(value)


def decode_steps(rows: Any, reader: Reader, schemas: dict[str, str]) -> list[dict[str, Any]]:
    """The steps as the core takes them; `schemas` are those of torch's operators that were compared."""
    return [_decode_step(row, reader, schemas) for row in rows]


def _decode_step(row: dict[str, Any], reader: Reader, schemas: dict[str, str]) -> dict[str, Any]:
    if row["kind"] == "operator":
        _check_operator(row, schemas)
    return {
        **{name: row[name] for name in ("kind", "operator", "overload", "modes")},
        **{name: bool(row[name]) for name in ("random", "effect", "exit", "below", "filled", "python")},
        "arguments": [_decode_argument(*one) for one in row["arguments"]],
        "results": [_decode_result(one) for one in row["results"]],
        "literal": None if row["literal"] is None else reader.tensor(row["literal"]),
    }


# Operators that reach beyond the tensors that they are given.
_REFUSED = frozenset({"aten::from_file"})


def _check_operator(row: dict[str, Any], schemas: dict[str, str]) -> None:
    name, overload = str(row["operator"]), str(row["overload"])
    full = f"{name}.{overload}" if overload else name
    if name in _REFUSED:
        raise FileError(f"it calls {full:.80}, which loaded programs may not")
    if full not in schemas:
        schemas[full] = schema_of(name, overload)
    if not schemas[full]:
        raise FileError(f"torch does not know the operator {full:.80}: import the library that registers it")
    if schemas[full] != row["schema"]:
        raise FileError(
            f"the operator {full:.80} has changed: it was {row['schema']!s:.200}, and is {schemas[full]}"
        )


def schema_of(name: str, overload: str) -> str:
    """The schema of an operator; "" of one that torch does not know.

    >>> schema_of("aten::relu", "")
    'aten::relu(Tensor self) -> Tensor'
    """
    namespace, _, short = name.partition("::")
    try:
        found = getattr(getattr(getattr(torch.ops, namespace), short), overload or "default")
        return str(found._schema)
    except (AttributeError, RuntimeError):
        return ""


def _decode_argument(kind: Any, value: Any) -> tuple[str, Any]:
    return kind, decode_value(value)


def _decode_result(row: dict[str, Any]) -> dict[str, Any]:
    return {
        **{name: row[name] for name in ("kind", "register", "known", "base", "distance")},
        "meta": decode_meta(row["meta"]),
        "value": decode_value(row["value"]),
        "list": [_decode_result(one) for one in row["list"]],
    }


def decode_meta(meta: Any) -> dict[str, Any] | None:
    """What a tensor looks like, as the core takes it."""
    if meta is None:
        return None
    return {
        "shape": _sizes(meta["shape"]),
        "stride": None if meta["stride"] is None else _sizes(meta["stride"]),
        "dtype": decode_value(meta["dtype"]),
        "device": decode_value(meta["device"]),
        "requires_grad": bool(meta["requires_grad"]),
        "keys": meta["keys"],
    }


def decode_modes(rows: Any) -> list[dict[str, Any]]:
    """The modes as the core takes them."""

    def is_own(row: Any) -> bool:
        return bool(row["autocast"]) and not rows[0]["autocast"]

    return [
        {
            **{name: bool(row[name]) for name in ("grad", "inference", "autocast_cache")},
            "autocast": tuple((str(device), decode_value(dtype)) for device, dtype in row["autocast"]),
            # What was saved before there were any has none.
            "switches": {str(name): int(value) for name, value in row.get("switches", {}).items()},
            # And no region has ended there while autocast stayed on.
            "autocast_region": int(row.get("autocast_region", is_own(row))),
        }
        for row in rows
    ]


# ---------------------------------------------------------------- signatures
def describe_arguments(named: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """What a call must look like: its containers, and each leaf. Raises `TypeError` for a leaf of another
    kind."""
    named = list(named)
    leaves = [leaf for name, value in named for leaf in _leaves(name, value)]
    return {
        "names": [name for name, _ in named],
        "containers": {name: tree_spec_text(value) for name, value in named},
        "leaves": [[path, _describe_leaf(path, leaf)] for path, leaf in leaves],
        "shared": sharing([leaf for _, leaf in leaves]),
    }


def decode_signature(row: Any) -> dict[str, Any]:
    """What `describe_arguments` gave, as a file has it. Raises `FileError` where it is something else."""
    texts, leaves = row["containers"], row["leaves"]
    if type(texts) is not dict or any(type(text) is not str for text in texts.values()):
        raise FileError(_OTHER_ARGUMENTS)
    if type(leaves) is not list or not all(map(_describes_leaf, leaves)) or type(row["shared"]) is not list:
        raise FileError(_OTHER_ARGUMENTS)
    found: dict[str, Any] = row
    return found


_OTHER_ARGUMENTS = "arguments are described in another way than they should be"


def _describes_leaf(row: Any) -> bool:
    if type(row) is not list or len(row) != 2 or type(row[0]) is not str or type(row[1]) is not dict:
        return False
    return type(row[1].get("tensor")) is dict or {"value", "type"} <= row[1].keys()


def leaves_of(named: Iterable[tuple[str, Any]]) -> list[Any]:
    """All leaves of the arguments, in order.

    >>> leaves_of([("x", [1, {"k": 2}]), ("y", None)])
    [1, 2, None]
    """
    return [leaf for name, value in named for _, leaf in _leaves(name, value)]


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    yield from ((name + path, leaf) for path, leaf in tree_leaves_with_path(value))


def _describe_leaf(path: str, leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return {"tensor": describe_tensor(leaf)}
    if not _can_encode(leaf):
        raise TypeError(f"{path} is of type {type(leaf).__qualname__}")
    return {"value": encode_value(leaf), "type": type(leaf).__name__}


def describe_tensor(tensor: torch.Tensor) -> dict[str, Any]:
    """All of a tensor that a program depends on, but for its values."""
    strided = tensor.layout is torch.strided
    return {
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "shape": list(tensor.shape),
        "stride": list(tensor.stride()) if strided else None,
        "device": str(tensor.device),
        "layout": "zeros" if is_zero_tensor(tensor) else str(tensor.layout).removeprefix("torch."),
        "requires_grad": tensor.requires_grad,
        "leaf": bool(is_leaf(tensor)),
        "inference": tensor.is_inference(),
        "class": type(tensor).__name__,
        "conjugate": [tensor.is_conj(), tensor.is_neg()],
    }


def differences_of(saved: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """In what a call differs from a saved one, each as `x.shape [3] -> [4]`."""
    told = [
        f"{name}: {before} -> {found['containers'].get(name, 'not passed')}"
        for name, before in saved["containers"].items()
        if found["containers"].get(name) != before
    ]
    told += [f"{name} is passed" for name in found["containers"] if name not in saved["containers"]]
    if told:
        return told
    orders = [[path for path, _ in one["leaves"]] for one in (saved, found)]
    if orders[0] != orders[1]:
        return [f"the order of the arguments: {', '.join(orders[0])} -> {', '.join(orders[1])}"]
    for (path, before), (_, after) in zip(saved["leaves"], found["leaves"], strict=False):
        # 0.0 and -0.0 are equal, and other arguments.
        if before != after or repr(before.get("value")) != repr(after.get("value")):
            told += _leaf_differences(path, before, after)
    if not told and saved["shared"] != found["shared"]:
        told.append("other arguments share memory")
    return told


def _leaf_differences(path: str, before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    if "tensor" in before and "tensor" in after:
        old, new = before["tensor"], after["tensor"]
        return [f"{path}.{name} {old[name]} -> {new[name]}" for name in old if old[name] != new.get(name)]
    one, other = (("a tensor" if "tensor" in x else f"{x['value']!r} ({x['type']})") for x in (before, after))
    return [f"{path} {one} -> {other}"]


def encode_parameters(
    parameters: Iterable[inspect.Parameter] | None, unread: Container[str], blobs: Blobs
) -> Any:
    """How a function takes its arguments, and which it reads; None of one that does not say."""
    if parameters is None:
        return None
    return [
        [one.name, int(one.kind), _encode_default(one, unread, blobs), one.name not in unread]
        for one in parameters
    ]


def _encode_default(parameter: inspect.Parameter, unread: Container[str], blobs: Blobs) -> Any:
    default = parameter.default
    if default is parameter.empty:
        return None
    if parameter.name in unread:
        return ["value", encode_value(None)]  # whatever it is
    if type(default) is torch.Tensor and not default.requires_grad:
        try:
            return ["tensor", blobs.add(default)]
        except TypeError:
            return None
    return ["value", encode_value(default)] if _can_encode(default) else None


def decode_parameters(rows: Any, reader: Reader) -> tuple[inspect.Signature, frozenset[str]]:
    """The same as a signature that binds calls, and the names of the parameters that are not read."""
    if rows is None:
        kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        names = ("args", "kwargs")
        made = [inspect.Parameter(*one) for one in zip(names, kinds, strict=True)]
        return inspect.Signature(made), frozenset()
    made = []
    unread: set[str] = set()
    for name, kind, default, read in rows:
        made.append(
            inspect.Parameter(str(name), list(_KINDS)[kind], default=_decode_default(default, reader))
        )
        unread.update(() if read else (str(name),))
    return inspect.Signature(made), frozenset(unread)


def _decode_default(row: Any, reader: Reader) -> Any:
    if row is None:
        return inspect.Parameter.empty
    kind, value = row
    if kind not in ("value", "tensor"):
        raise FileError(f"a default is of kind {kind!r:.80}")
    return decode_value(value) if kind == "value" else reader.tensor(value)


_KINDS = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.VAR_POSITIONAL,
    inspect.Parameter.KEYWORD_ONLY,
    inspect.Parameter.VAR_KEYWORD,
)

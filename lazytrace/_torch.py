"""The only file that names what is private in torch, each with the reason why it is needed."""

from __future__ import annotations

import builtins
import hashlib
import logging
import os
import sys
from collections.abc import Callable, Iterable
from types import CodeType, FunctionType, GetSetDescriptorType, MethodDescriptorType
from typing import Any, Final

import torch
import torch._library.custom_ops as _custom_ops
import torch.autograd.graph
import torch.utils.checkpoint
from torch.autograd.function import Function
from torch.nn.modules._functions import BackwardHookFunction as BackwardHookFunction
from torch.utils.hooks import BackwardHook, RemovableHandle

_originals: Any = dict(vars(builtins))
__builtins__ = _originals  # as in `originals.py`, which this file may not import

# Every backward pass that Python asks for goes through it.
run_backward = torch.autograd.graph._engine_run_backward


def level_of_loggers() -> Callable[..., Any] | None:
    """What it asks its logger with; None where somebody has replaced that.

    >>> level_of_loggers() is logging.Logger.getEffectiveLevel
    True
    """
    found = logging.Logger.getEffectiveLevel
    code = getattr(found, "__code__", None)
    return found if code is not None and code.co_filename == logging.__file__ else None


# What optimizers call before each step.
check_capture: Any = torch.optim.Optimizer._accelerator_graph_capture_health_check


def opaque_codes() -> list[CodeType]:
    """Code objects of torch whose calls must stay whole in a program.

    `Function.apply` keeps the backward that its class defines; the operators inside would be differentiated
    by themselves.

    >>> [code.co_name for code in opaque_codes()]
    ['apply']
    """
    return [Function.apply.__func__.__code__]  # type: ignore[attr-defined]


def whole_functions() -> list[FunctionType]:
    """Functions of torch whose calls must stay whole in a program, wherever Python calls them.

    A custom `autograd.Function` keeps the backward that its class defines.

    >>> [function.__qualname__ for function in whole_functions()]
    ['Function.apply']
    """
    return [Function.apply.__func__]  # type: ignore[attr-defined]


def checkpoint_function() -> FunctionType:
    """What activation checkpointing is called by, which runs its function again in the backward pass.

    >>> checkpoint_function().__qualname__
    'checkpoint'
    """
    return torch.utils.checkpoint.checkpoint.__wrapped__  # type: ignore[attr-defined,no-any-return]


# What says for all of its calls how activation checkpointing works, in its module.
CHECKPOINT_SWITCHES = (
    "_checkpoint_debug_enabled",
    "_enable_checkpoint_early_stop",
    "_checkpoint_without_reentrant_generator",
)


# Says whether torch.jit.trace is at work, and changes nothing.
tracing_state: Callable[[], Any] = torch._C._get_tracing_state


def _digest(code: CodeType) -> str:
    constants = [value for value in code.co_consts if not isinstance(value, CodeType)]
    parts = (code.co_names, code.co_varnames, code.co_cellvars, code.co_freevars, constants)
    return hashlib.sha256(code.co_code + repr(parts).encode()).hexdigest()[:16]


# What lazytrace knows by heart. Code that torch has changed is watched like any other.
_KNOWN_CODE = {
    "__getattr__": "39660c10810cd4f2",
    "_wrapped_call_impl": "4825b2ba37a6aba8",
    "_call_impl": "88007c697451b12f",
    "setup_input_hook": "356af0ea1396ed55",
    "setup_output_hook": "7f298896264185f3",
    "_apply_on_tensors": "ebe9f722eee5639c",
    "forward": "317f3bfd70042634",
    "setup_context": "93848172fec96189",
    "BackwardHookFunction.forward": "e02ce75991f7b1f5",
    "BackwardHookFunction.backward": "3f98164eaa2bcc45",
    "BackwardHookFunction.forward.<listcomp>": "82a2a30d71f6dc4f",
}


def _known_code(owner: type, name: str) -> CodeType | None:
    code = getattr(getattr(owner, name, None), "__code__", None)
    return code if isinstance(code, CodeType) and _digest(code) == _KNOWN_CODE[name] else None


def plain_index_function() -> type | None:
    """The custom function by which masks of attention index tensors under vmap, if it is known.

    Its forward method calls one operator, and what it keeps is for a backward pass alone. Importing its
    module would import torch's compiler.

    >>> import torch._dynamo._trace_wrapped_higher_order_op
    >>> plain_index_function().__name__
    'ModIndex'
    """
    found = getattr(sys.modules.get("torch._dynamo._trace_wrapped_higher_order_op"), "ModIndex", None)
    if not isinstance(found, type):
        return None
    known = all(_known_code(found, name) for name in ("forward", "setup_context"))
    return found if known and found.generate_vmap_rule is True else None  # type: ignore[attr-defined]


def belongs_to_plain_vmap(tensor: torch.Tensor) -> bool:
    """Whether no transform but vmap has to do with a tensor, and nobody will ask for its gradient.

    >>> belongs_to_plain_vmap(torch.ones(2)), belongs_to_plain_vmap(torch.ones(2, requires_grad=True))
    (True, False)
    """
    functorch = torch._C._functorch
    while functorch.is_batchedtensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    return not (functorch.is_functorch_wrapped_tensor(tensor) or tensor.requires_grad)


def plain_module_codes() -> tuple[CodeType | None, CodeType | None, CodeType | None]:
    """The code of `Module.__getattr__`, of `Module.__call__` and of what that calls, as far as it is known.

    >>> [code.co_name for code in plain_module_codes()]
    ['__getattr__', '_wrapped_call_impl', '_call_impl']
    """

    module = torch.nn.Module
    return (
        _known_code(module, "__getattr__"),
        _known_code(module, "_wrapped_call_impl"),
        _known_code(module, "_call_impl"),
    )


register_hook: Callable[[torch.Tensor, Any], Any] = torch.Tensor.register_hook

retain_grad: Callable[[torch.Tensor], None] = torch.Tensor.retain_grad


def keep_gradient(tensor: torch.Tensor) -> None:
    """What a program does where `Tensor.retain_grad` was called.

    >>> x = torch.ones(2, requires_grad=True) * 2
    >>> keep_gradient(x)
    >>> x.sum().backward()
    >>> x.grad
    tensor([1., 1.])
    """
    retain_grad(tensor)


def add_hook(tensor: torch.Tensor, hook: Callable[[torch.Tensor], torch.Tensor | None]) -> Any:
    """What a program does where `Tensor.register_hook` was called; gives its handle.

    >>> x = torch.ones(2, requires_grad=True)
    >>> handle = add_hook(x, lambda gradient: gradient * 2)
    >>> x.sum().backward()
    >>> x.grad
    tensor([2., 2.])
    """
    return register_hook(tensor, hook)


remove_handle: Callable[[RemovableHandle], None] = RemovableHandle.remove


def hook_place(tensor: torch.Tensor, handle: RemovableHandle) -> int:
    """Which of the hooks of a tensor that of a handle is; -1 where it has gone, -2 where it is elsewhere.

    >>> x = torch.ones(2, requires_grad=True)
    >>> first, second = (x.register_hook(lambda gradient: gradient * 2) for _ in range(2))
    >>> hook_place(x, second), first.remove(), hook_place(x, second), hook_place(x, first)
    (1, None, 0, -1)
    """
    hooks, of_tensor = handle.hooks_dict_ref(), tensor._backward_hooks
    if hooks is None or handle.id not in hooks:
        return -1
    return list(of_tensor).index(handle.id) if of_tensor is not None and of_tensor is hooks else -2


def remove_hook(tensor: torch.Tensor, place: int) -> None:
    """What a program does where `remove` of a handle was called.

    >>> x = torch.ones(2, requires_grad=True)
    >>> handle = add_hook(x, lambda gradient: gradient * 2)
    >>> remove_hook(x, 0)
    >>> x.sum().backward()
    >>> x.grad
    tensor([1., 1.])
    """
    hooks = tensor._backward_hooks or {}
    del hooks[list(hooks)[place]]


def module_hook_calls() -> tuple[Callable[..., Any], ...]:
    """What `Module.__call__` sets the backward hooks of a module with, around its inputs, then its outputs.

    Nothing where torch has changed these.

    >>> [call.__name__ for call in module_hook_calls()]
    ['setup_input_hook', 'setup_output_hook']
    """
    names = "setup_input_hook", "setup_output_hook", "_apply_on_tensors"
    known = all(_known_code(BackwardHook, name) for name in names)
    return (BackwardHook.setup_input_hook, BackwardHook.setup_output_hook) if known else ()


def passes_on(function: type) -> bool:
    """Whether it is torch's custom function that gives backward hooks of modules a node, as it is known.

    >>> passes_on(BackwardHookFunction), passes_on(torch.autograd.Function)
    (True, False)
    """
    if function is not BackwardHookFunction:
        return False
    name = function.__name__
    codes = {f"{name}.{one}": getattr(function, one).__code__ for one in ("forward", "backward")}
    inner = _constants(function.forward, "<listcomp>")
    codes |= {f"{name}.forward.<listcomp>": code for code in inner}
    return all(_digest(code) == _KNOWN_CODE[one] for one, code in codes.items())


def _node_of(tensors: tuple[torch.Tensor, ...]) -> Any:
    return next(tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None)


def set_input_hook(hook: Any, made: tuple[torch.Tensor, ...]) -> None:
    """What `BackwardHook.setup_input_hook` does once `BackwardHookFunction` has made the tensors."""
    hook._set_user_hook(_node_of(made))


def set_output_hook(hook: Any, made: tuple[torch.Tensor, ...]) -> None:
    """The same of `BackwardHook.setup_output_hook`, whose own code makes the hook."""
    about = hook.n_outputs, hook.output_tensors_index
    hook._apply_on_tensors = lambda set_on, tensors: (set_on(_node_of(tensors)), (tensors, None))[1]
    hook.setup_output_hook(made)
    del hook._apply_on_tensors
    hook.n_outputs, hook.output_tensors_index = about


def link_module_hooks(
    module: torch.nn.Module,
    hooks: list[Callable[..., Any]],
    pre_hooks: list[Callable[..., Any]],
    inputs: tuple[torch.Tensor, ...],
    outputs: tuple[torch.Tensor, ...],
    about: tuple[int, list[int] | None, int, list[int] | None],
) -> None:
    """Set backward hooks of a module on the nodes that have made its `inputs` and its `outputs`.

    Each comes from one call of `BackwardHookFunction`; there are no inputs where none requires gradients.
    `about` says how many arguments there were and which of them are tensors, and the same of the results.

    >>> import torch.nn.modules._functions as functions
    >>> x = torch.ones(2, requires_grad=True)
    >>> inputs = functions.BackwardHookFunction.apply(x)
    >>> outputs = functions.BackwardHookFunction.apply(inputs[0] * 3)
    >>> doubled = lambda module, given, got: (given[0] * 2,)
    >>> link_module_hooks(torch.nn.Identity(), [doubled], [], inputs, outputs, (1, [0], 1, [0]))
    >>> outputs[0].sum().backward()
    >>> x.grad
    tensor([6., 6.])
    """
    hook: Any = BackwardHook(module, hooks, pre_hooks)
    hook.n_inputs, hook.input_tensors_index, hook.n_outputs, hook.output_tensors_index = about
    if inputs:
        set_input_hook(hook, inputs)
    set_output_hook(hook, outputs)


# What `torch.manual_seed` calls, whoever has wrapped that: torch's compiler does, once it is imported.
seed_defaults: Callable[..., torch.Generator] = torch.random._manual_seed_impl
# The name of the module of devices that are none of torch's, which nobody else may ask for.
backend_of_others: Callable[[], str] = torch._C._get_privateuse1_backend_name

GPU_IS_BUILT: bool = torch.backends.cuda.is_built()  # type: ignore[no-untyped-call]


def seeds_default_generators() -> bool:
    """Whether `torch.manual_seed` seeds the default generators of the CPU and of the GPUs in use, no more.

    Other devices have seeds of their own, and a GPU that is not set up yet is seeded when it is.

    >>> seeds_default_generators() or GPU_IS_BUILT
    True
    """
    if torch.backends.mps.is_built() or torch.xpu._is_compiled() or torch.mtia._is_compiled():
        return False
    cuda: Any = torch.cuda
    return not GPU_IS_BUILT or bool(cuda.is_initialized() and not cuda._is_in_bad_fork())


def scripted_classes() -> tuple[type, ...]:
    """The classes of what TorchScript has compiled or traced: functions, and methods of modules.

    >>> type(torch.jit.trace(torch.neg, torch.ones(1))) in scripted_classes()
    True
    """
    return torch._C.ScriptFunction, torch._C.ScriptMethod


def custom_operator_classes() -> tuple[type, ...]:
    """What a custom operator is called by: its definition, its overload, and the packet of that.

    >>> type(torch.ops.aten.neg) in custom_operator_classes()
    True
    """
    return _custom_ops.CustomOpDef, torch._ops.OpOverload, torch._ops.OpOverloadPacket


_OWN_OPERATORS: Final = ("aten", "prims", "rngprims")


def is_custom_operator(called: Any) -> bool:
    """Whether `torch.library.custom_op` has made it, or what it leads to, for a user: its kernels are Python.

    torch makes its `prims` so, too; these come to other operators.

    >>> is_custom_operator(torch.ops.aten.neg), is_custom_operator(torch.ops.aten.neg.default)
    (False, False)
    """
    if isinstance(called, _custom_ops.CustomOpDef):
        return True
    name = name_of_operator(called)
    return name in _custom_ops.OPDEFS and name.partition("::")[0] not in _OWN_OPERATORS


def has_python_kernel(called: Any) -> bool:
    """Whether `torch.library.Library.impl` has given an operator that is none of torch's a kernel.

    >>> has_python_kernel(torch.ops.aten.neg)
    False
    """
    space, _, name = name_of_operator(called).removesuffix(".default").partition("::")
    registered = torch.library._impls.copy()  # other threads may add to it
    kernels = [one.split("/") for one in registered if one.startswith(f"{space}/{name}")]
    # The others are of no tensor with values.
    found = any(one[1].split(".")[0] == name.split(".")[0] and one[2] != "Meta" for one in kernels)
    return found and space not in _OWN_OPERATORS


def name_of_operator(called: Any) -> str:
    """What torch's registry has it under.

    >>> name_of_operator(torch.ops.aten.neg), name_of_operator(torch.ops.aten.add.Tensor)
    ('aten::neg', 'aten::add.Tensor')
    """
    if isinstance(called, _custom_ops.CustomOpDef):
        return called._qualname
    name: str = called._name if isinstance(called, torch._ops.OpOverload) else called._qualified_op_name
    return name


def overload_of(called: Any) -> Any:
    """The overload that a call of such an operator runs; None of anything else, and where there are several.

    >>> overload_of(torch.neg) is None
    True
    """
    if not isinstance(called, custom_operator_classes()):
        return None
    if not is_custom_operator(called) and not has_python_kernel(called):
        return None
    if isinstance(called, _custom_ops.CustomOpDef):
        return called._opoverload
    if isinstance(called, torch._ops.OpOverload):
        return called
    assert isinstance(called, torch._ops.OpOverloadPacket)
    names: list[str] = called.overloads()  # type: ignore[no-untyped-call]
    return getattr(called, names[0]) if len(names) == 1 else None


def runs_python(scripted: Any) -> bool:
    """Whether a call of something that TorchScript has compiled does more than its arguments and result show.

    Methods can write to the tensors of their module; functions have no state, but can print or call Python.

    >>> runs_python(torch.jit.trace(torch.neg, torch.ones(1)))
    False
    """
    if not isinstance(scripted, torch._C.ScriptFunction):
        return True
    graph = str(scripted.inlined_graph)
    return any(name in graph for name in ("prim::Print", "^", "aten::warn"))


def registered_kernels() -> set[str]:
    """The set in which `torch.library` keeps what Python has registered; always the same set.

    The core looks at it to know whether kernels of torch's own operators were replaced.

    >>> type(registered_kernels())
    <class 'set'>
    """
    return torch.library._impls


def _constants(function: object, prefix: str) -> list[CodeType]:
    """The code objects of the functions inside a function whose names begin so."""
    constants = function.__code__.co_consts  # type: ignore[attr-defined]
    return [code for code in constants if isinstance(code, CodeType) and code.co_name.startswith(prefix)]


_OWN_HOOKS = [
    code
    for maker in (
        torch.utils.checkpoint._checkpoint_hook,
        torch.utils.checkpoint._recomputation_hook,
        torch.autograd.graph.save_on_cpu,
    )
    for code in _constants(maker.__init__, "pack_")
]


def default_tensors_device() -> str:
    """Where `torch.Tensor(...)` makes its tensors: on a GPU after `torch.set_default_tensor_type`.

    >>> default_tensors_device()
    'cpu'
    """
    return str(torch._C._get_default_device())


def default_device() -> torch.device:
    """Where functions that make tensors do so, unless they are told a device.

    >>> with torch.device("meta"):
    ...     default_device()
    device(type='meta')
    """
    # There is no context as long as nobody has imported the module.
    kind = getattr(sys.modules.get("torch.utils._device"), "DeviceContext", ())
    for i in reversed(range(torch._C._len_torch_function_stack())):
        mode = torch._C._get_function_stack_at(i)
        if isinstance(mode, kind):
            device: torch.device = mode.device
            return device
    return torch.device(default_tensors_device())


def is_own_saved_hook(pack: object) -> bool:
    """Whether a hook for saved tensors is torch's own: of activation checkpointing or of `save_on_cpu`.

    These read and write nothing of the user's, so operators may be replayed while they are active.

    >>> is_own_saved_hook(torch.autograd.graph.save_on_cpu().pack_hook)
    True
    >>> is_own_saved_hook(lambda t: t)
    False
    """
    if type(pack) is not FunctionType:
        return False
    compiler = sys.modules.get("torch._dynamo.eval_frame")
    if compiler is not None:
        # The hook of a recomputation is wrapped by `torch._dynamo.disable`.
        for code in _constants(compiler.DisableContext.__call__, "_fn"):
            if code is pack.__code__ and "fn" in code.co_freevars:
                inner = pack.__closure__[code.co_freevars.index("fn")].cell_contents  # type: ignore[index]
                return is_own_saved_hook(inner)
    return any(code is pack.__code__ for code in _OWN_HOOKS)


def torch_folder() -> str:
    """The folder of the installed torch, with a separator at its end.

    >>> torch_folder().endswith("torch" + os.sep)
    True
    """
    return os.path.dirname(os.path.abspath(torch.__file__)) + os.sep


def is_zero_tensor(tensor: torch.Tensor) -> bool:
    """Whether autograd has made it in place of zeros, without memory."""
    return tensor._is_zerotensor()


def is_jit_tracing() -> bool:
    """Whether `torch.jit.trace` is at work in this thread; `torch.jit` does not export its own question.

    >>> is_jit_tracing()
    False
    """
    return torch._C._get_tracing_state() is not None


def is_dynamo_tracing() -> bool:
    """Whether torch's compiler is reading the code that asks.

    `torch.compiler.is_dynamo_compiling` is the public question, and a Python function of torch: a recording
    that is under way would see it run. The compiler calls this one instead of reading it.

    >>> is_dynamo_tracing()
    False
    """
    translator = sys.modules.get("torch._dynamo.symbolic_convert")
    # Another thread may be importing it.
    return getattr(getattr(translator, "tls", None), "current_tx", None) is not None


setattr(is_dynamo_tracing, "_dynamo_marked_constant", True)  # noqa: B010 (mypy: functions have none)


def stands_for_others(tensor: torch.Tensor) -> bool:
    """Whether it belongs to a transform of `torch.func`: it has no memory, and gradients of its own.

    >>> seen = []
    >>> _ = torch.vmap(lambda x: seen.append(stands_for_others(x)) or x)(torch.ones(2))
    >>> seen, stands_for_others(torch.ones(2))
    ([True], False)
    """
    return torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def has_hooks(tensor: torch.Tensor) -> bool:
    """Whether a backward pass would call a hook of this tensor.

    >>> x = torch.ones(1, requires_grad=True)
    >>> hook = x.register_hook(lambda gradient: None)
    >>> has_hooks(x), hook.remove(), has_hooks(x)
    (True, None, False)
    """
    return bool(tensor._backward_hooks) or bool(getattr(tensor, "_post_accumulate_grad_hooks", None))


def copy_hooks(tensor: torch.Tensor, to: torch.Tensor) -> None:
    """Set the hooks of one tensor on another that requires gradients, too.

    >>> x, y = torch.ones(1, requires_grad=True), torch.ones(1, requires_grad=True)
    >>> _ = x.register_hook(lambda gradient: gradient * 2)
    >>> copy_hooks(x, y)
    >>> y.sum().backward()
    >>> y.grad
    tensor([2.])
    """
    for hook in (tensor._backward_hooks or {}).values():
        to.register_hook(hook)  # type: ignore[no-untyped-call]
    for hook in (getattr(tensor, "_post_accumulate_grad_hooks", None) or {}).values():
        to.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]


class Inlined:
    """What torch's compiler looks into in place of a wrapper, which says that it is a function and has no
    cells that could be guarded. Not a property: `torch.jit.script` compiles those of a module.

    >>> import wrapt
    >>> class Wrapper(wrapt.ObjectProxy):
    ...     _torchdynamo_inline = Inlined()
    >>> Wrapper(len)._torchdynamo_inline is len
    True
    """

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        compiler = sys.modules.get("torch._dynamo.utils")
        # What has a `cache_info` is taken for a `functools.lru_cache`, and is warned of.
        allow = getattr(compiler, "allow_lru_cache_wrapper_trace_without_warning", None)
        if allow is not None and is_dynamo_tracing():
            allow(instance)
        return instance.__wrapped__


def fake_mode() -> Any:
    """A mode in which tensors have looks and no memory: what fx tools expect to find in `meta["val"]`.

    >>> with fake_mode():
    ...     torch.ones(2, 3).shape
    torch.Size([2, 3])
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode()


def fake_of(mode: Any, tensor: torch.Tensor) -> torch.Tensor:
    """A tensor without memory that looks like `tensor`.

    >>> fake_of(fake_mode(), torch.ones(2)).shape
    torch.Size([2])
    """
    found: torch.Tensor = mode.from_tensor(tensor, static_shapes=True)
    return found


def tree_flatten(value: Any) -> tuple[list[Any], Any]:
    """(leaves, spec) by torch's own table of containers, which has no public name for Python.

    >>> tree_flatten({"a": [1, 2]})[0]
    [1, 2]
    """
    from torch.utils import _pytree

    return _pytree.tree_flatten(value)


def tree_unflatten(leaves: Iterable[Any], spec: Any) -> Any:
    """What `tree_flatten` took apart, with other leaves.

    >>> tree_unflatten([3, 4], tree_flatten({"a": [1, 2]})[1])
    {'a': [3, 4]}
    """
    from torch.utils import _pytree

    return _pytree.tree_unflatten(leaves, spec)


def tree_leaves_with_path(value: Any) -> list[tuple[str, Any]]:
    """The leaves, each with the path from the value.

    >>> tree_leaves_with_path({"a": [1, 2]})
    [("['a'][0]", 1), ("['a'][1]", 2)]
    """
    from torch.utils import _pytree

    return [(_pytree.keystr(path), leaf) for path, leaf in _pytree.tree_leaves_with_path(value)]


def pytree_codegen(names: list[str], in_spec: Any, out_spec: Any) -> Any:
    """How a graph takes and gives containers: `torch.export` uses it, fx has no public name for it.

    >>> type(pytree_codegen(["x"], tree_flatten(((1,), {}))[1], tree_flatten(1)[1])).__name__
    '_PyTreeCodeGen'
    """
    from torch.fx.graph import _PyTreeCodeGen, _PyTreeInfo

    return _PyTreeCodeGen(_PyTreeInfo(names, in_spec, out_spec))


def takers_of_floats() -> dict[Any, tuple[str, str]]:
    """Functions of torch that hand floats to one operator as they are: its name and overload.

    >>> takers_of_floats()[torch.dropout]
    ('aten::dropout', '')
    """
    functions = [*("_fused_adam_", "_fused_adamw_", "_fused_sgd_", "_fused_adagrad_", "dropout", "dropout_")]
    functions += ["alpha_dropout", "feature_dropout", "layer_norm", "group_norm", "batch_norm", "nan_to_num"]
    found = {getattr(torch, name): (f"aten::{name}", "") for name in functions}
    of_nn = ("smooth_l1_loss", "huber_loss", "cross_entropy_loss", "scaled_dot_product_attention")
    found |= {getattr(torch._C._nn, name): (f"aten::{name}", "") for name in of_nn}
    methods = ("normal_", "uniform_", "exponential_", "log_normal_", "cauchy_", "geometric_", "nan_to_num")
    found |= {getattr(torch.Tensor, name): (f"aten::{name}", "") for name in methods}
    found[torch.Tensor.bernoulli_] = ("aten::bernoulli_", "float")
    for name in ("quantile", "nanquantile"):
        found[getattr(torch, name)] = found[getattr(torch.Tensor, name)] = (f"aten::{name}", "scalar")
    return found


pad: Final = torch._C._nn.pad
pad_sequence: Final = torch._C._nn.pad_sequence


def takers_of_scales() -> dict[Any, str]:
    """Functions of torch that are given a tensor, a size, and a list of floats as the last: the operator.

    >>> torch._C._nn.upsample_nearest2d in takers_of_scales()
    True
    """
    found = [f"{name}{n}d" for name in ("upsample_nearest", "_upsample_nearest_exact") for n in (1, 2, 3)]
    found += ["upsample_linear1d", "upsample_bilinear2d", "upsample_bicubic2d", "upsample_trilinear3d"]
    found += [f"_upsample_{name}2d_aa" for name in ("bilinear", "bicubic", "lanczos")]
    return {getattr(torch._C._nn, name): f"aten::{name}" for name in found}


def neg_view(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory, of which the values are the opposite ones.

    >>> neg_view(torch.ones(1))
    tensor([-1.])
    """
    return torch._neg_view(tensor)


def assert_function() -> Any:
    """The function that fx graphs assert Python values with; fx never leaves a call of it out.

    >>> assert_function()(True, "never seen")
    """
    return torch._assert


def copy_storage(storage: Any) -> Any:
    """The same bytes in memory of their own; torch gives no types for it.

    >>> x = torch.ones(1)
    >>> copy_storage(x.untyped_storage()).data_ptr() == x.data_ptr()
    False
    """
    return storage.clone()


def training_verifier() -> Any:
    """What checks an exported program that may write to its buffers, as torch.export gives one for training.

    >>> training_verifier().dialect
    'TRAINING'
    """
    from torch._export.verifier import TrainingIRVerifier

    return TrainingIRVerifier


def tree_spec_text(value: Any) -> str:
    """The containers of a value, by their types and keys; equal exactly for equal structures.

    >>> tree_spec_text({"a": [1, (2,)]})
    "dict['a'](list(*, tuple(*)))"
    """
    from torch.utils import _pytree

    return spec_text(_pytree.tree_flatten(value)[1])


def spec_text(spec: Any) -> str:
    """The same of what `tree_flatten` gives.

    >>> spec_text(tree_flatten((1, [2]))[1])
    'tuple(*, list(*))'
    """
    if spec.is_leaf():
        return "*"
    context = spec.context.__qualname__ if isinstance(spec.context, type) else spec.context
    shown = "" if context is None else f"{context!r}" if isinstance(context, list) else f"[{context!r}]"
    inner = ", ".join(spec_text(spec.child(i)) for i in range(spec.num_children))
    return f"{spec.type.__name__}{shown}({inner})"


# What torch asks of the class of a custom function, beside what is asked of any class.
NAMES_OF_FUNCTIONS = (
    *("apply", "forward", "setup_context", "backward", "vjp", "jvp", "vmap", "generate_vmap_rule"),
    *("clear_saved_tensors_on_access", "boxed_grads_call", "_backward_cls"),
)


def has_own(backward_class: type, name: str) -> bool:
    """Whether what the context of a custom function has under this name is still torch's, or C code.

    >>> from torch.autograd.function import BackwardCFunction
    >>> has_own(BackwardCFunction, "save_for_backward"), has_own(BackwardCFunction, "saved_tensors")
    (True, True)
    """
    found = next((vars(cls)[name] for cls in backward_class.__mro__ if name in vars(cls)), None)
    if isinstance(found, FunctionType):
        return found.__code__.co_filename == torch.autograd.function.__file__
    return isinstance(found, GetSetDescriptorType)


def backward_class(function: type) -> type | None:
    """The class of the nodes of a custom function; None of a class that is no custom function.

    >>> backward_class(torch.autograd.Function).__name__, backward_class(int)
    ('FunctionBackward', None)
    """
    plain = type(function) is type(Function)  # others may have code that is asked for attributes
    found = next(
        (vars(cls)["_backward_cls"] for cls in function.__mro__ if "_backward_cls" in vars(cls)), None
    )
    return found if plain and isinstance(found, type) else None


_CONSTANTS_OF_ONCE = torch.autograd.function.once_differentiable.__code__.co_consts
_ONCE = next(code for code in _CONSTANTS_OF_ONCE if isinstance(code, CodeType))


def differentiated_once(function: Any) -> Any:
    """What `once_differentiable` was put around; None of any other function.

    >>> differentiated_once(torch.autograd.function.once_differentiable(len)), differentiated_once(len)
    (<built-in function len>, None)
    """
    if not isinstance(function, FunctionType) or function.__code__ is not _ONCE or not function.__closure__:
        return None
    return dict(zip(_ONCE.co_freevars, function.__closure__, strict=True))["fn"].cell_contents


# Functions that write to an argument though their schema does not say so, or make tensors of other memory.
_ODD_FUNCTIONS = frozenset(
    (
        *("batch_norm", "native_batch_norm", "instance_norm", "fused_moving_avg_obs_fake_quant"),
        *("from_file", "tensor", "as_tensor"),
    )
)


# Ordinary operators that custom functions, those of torch.distributions among them, call for a backward pass.
_OF_BACKWARD = frozenset(
    (
        *("_dirichlet_grad", "_sample_dirichlet", "_standard_gamma_grad"),
        *("_softmax_backward_data", "_log_softmax_backward_data"),
    )
)
# Made of other operators, of which the last gives new memory whatever it is given.
_MADE_OF_NEW = frozenset(
    (
        *("softmax", "log_softmax", "where", "sort", "topk", "max", "min", "std", "var", "outer", "matmul"),
        *("square", "linear", "conv1d", "conv2d", "conv3d"),
    )
)


def is_native_function(name: str, value: Any) -> bool:
    """Whether this is torch's binding of the operator with this name, and nothing that was put in its place.

    >>> is_native_function("sigmoid", torch.sigmoid), is_native_function("sigmoid", torch.tanh)
    (True, False)
    """
    odd = name in _ODD_FUNCTIONS or (name.startswith("_") and name not in _OF_BACKWARD)
    if odd or not hasattr(torch.ops.aten, name):
        return False
    homes = (torch._C._VariableFunctions, torch._C._nn)
    return value is not None and any(getattr(home, name, None) is value for home in homes)


_BINDINGS: Any = torch._C
# Where Python code around operators finds what it runs, beside methods of tensors.
MODULES_UNDER_PYTHON: Final[tuple[Any, ...]] = (torch, torch.jit, _BINDINGS, _BINDINGS._nn)
_HOMES_OF_MODULES: Final[Any] = {
    torch.linalg: (_BINDINGS._linalg, "linalg_"),
    torch.special: (_BINDINGS._special, "special_"),
    torch.fft: (_BINDINGS._fft, "fft_"),
}


def native_name_in(module: Any, name: str, value: Any) -> str | None:
    """The operator whose binding a module has under a name, if it is what torch has put there.

    >>> native_name_in(torch.linalg, "qr", torch.linalg.qr), native_name_in(torch.linalg, "qr", torch.qr)
    ('linalg_qr', None)
    """
    home, prefix = _HOMES_OF_MODULES.get(module, (None, ""))
    known = home is not None and value is not None and getattr(home, prefix + name, None) is value
    return prefix + name if known else None


def is_native_method(name: str) -> bool:
    """Whether tensors have a method of this name that is an operator.

    >>> is_native_method("sum"), is_native_method("tolist"), is_native_method("split")
    (True, False, False)
    """
    method = vars(torch._C.TensorBase).get(name)
    public = not name.startswith("_") and getattr(torch.Tensor, name, None) is method
    return public and isinstance(method, MethodDescriptorType) and hasattr(torch.ops.aten, name)


def makes_new(name: str) -> bool:
    """Whether what the operator of this name gives is new memory, and never that of an argument.

    >>> makes_new("clone"), makes_new("mm"), makes_new("view"), makes_new("contiguous"), makes_new("add_")
    (True, True, False, False, False)
    """
    if name in _MADE_OF_NEW:
        return True
    packet = getattr(torch.ops.aten, name, None)
    if packet is None:
        return False
    kinds = [getattr(packet, kind) for kind in packet.overloads() if "out" not in kind]
    kinds = [
        kind for kind in kinds if torch._C._dispatch_has_kernel(kind.name())
    ]  # others are of TorchScript
    composite = torch._C.DispatchKey.CompositeImplicitAutograd
    return bool(kinds) and not any(
        kind.has_kernel_for_dispatch_key(composite) or any(one.alias_info for one in kind._schema.returns)
        for kind in kinds
    )

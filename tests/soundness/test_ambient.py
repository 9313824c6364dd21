"""Every switch of torch that Python code can read: another value is another signature, and says so."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import lazytrace
from lazytrace import traced
from lazytrace._native import core
from tests.soundness.runner import X

TABLE = Path(lazytrace.__file__).parent / "csrc" / "signature" / "ambient.def"
B = torch.backends
C = torch._C


@contextlib.contextmanager
def switched(get, put, value):
    """A switch with another value, put back afterwards."""
    old = get()
    put(value)
    try:
        yield
    finally:
        put(old)


def attribute(owner, name, value):
    return lambda: switched(lambda: getattr(owner, name), lambda v: setattr(owner, name, v), value)


def functions(get, put, value):
    return lambda: switched(get, put, value)


# That of a backend of one's own has another name in each process.
AUTOCAST_DEVICES = ("cpu", "cuda", "mtia", "maia", "xpu", "ipu", "hpu", "xla", "mps")


def autocast_dtype(device):
    return functions(
        lambda: torch.get_autocast_dtype(device), lambda v: torch.set_autocast_dtype(device, v), torch.float64
    )


@contextlib.contextmanager
def replaced_kernel():
    """A kernel of one of torch's operators, put in from Python."""
    library = torch.library.Library("aten", "IMPL")
    library.impl("special_erfcx", lambda x: x * 0, "CPU")
    try:
        yield
    finally:
        library._destroy()


# Name in words -> how to switch it, and what Python code reads of it.
SWITCHES = {
    "grad_mode": (torch.no_grad, torch.is_grad_enabled),
    "inference_mode": (torch.inference_mode, torch.is_inference_mode_enabled),
    "forward_grad_mode": (
        functions(C._is_fwd_grad_enabled, C._set_fwd_grad_enabled, False),
        C._is_fwd_grad_enabled,
    ),
    "autograd.multithreading": (
        lambda: torch.autograd.set_multithreading_enabled(False),
        C._is_multithreading_enabled,
    ),
    "autograd.view_replay": (
        lambda: torch.autograd._force_original_view_tracking(True),
        C._is_view_replay_enabled,
    ),
    "autograd.grad_layout_enforcement": (
        functions(C._is_grad_layout_enforcement_enabled, C._set_grad_layout_enforcement_enabled, False),
        C._is_grad_layout_enforcement_enabled,
    ),
    "anomaly_mode": (lambda: torch.autograd.set_detect_anomaly(True), torch.is_anomaly_enabled),
    "anomaly_mode.check_nan": (
        lambda: torch.autograd.set_detect_anomaly(True, check_nan=False),
        torch.is_anomaly_check_nan_enabled,
    ),
    "autocast_cache": (
        functions(torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled, False),
        torch.is_autocast_cache_enabled,
    ),
    "deterministic_algorithms": (
        functions(torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True),
        torch.are_deterministic_algorithms_enabled,
    ),
    "deterministic_algorithms.warn_only": (
        functions(lambda: False, lambda v: torch.use_deterministic_algorithms(v, warn_only=v), True),
        torch.is_deterministic_algorithms_warn_only_enabled,
    ),
    "deterministic.fill_uninitialized_memory": (
        attribute(torch.utils.deterministic, "fill_uninitialized_memory", False),
        C._get_deterministic_fill_uninitialized_memory,
    ),
    "cudnn.enabled": (attribute(B.cudnn, "enabled", False), C._get_cudnn_enabled),
    "cudnn.benchmark": (attribute(B.cudnn, "benchmark", True), C._get_cudnn_benchmark),
    "cudnn.deterministic": (attribute(B.cudnn, "deterministic", True), C._get_cudnn_deterministic),
    "mkldnn.enabled": (attribute(B.mkldnn, "enabled", False), C._get_mkldnn_enabled),
    "mkldnn.deterministic": (
        functions(C._get_mkldnn_deterministic, C._set_mkldnn_deterministic, True),
        C._get_mkldnn_deterministic,
    ),
    "nnpack.enabled": (lambda: B.nnpack.flags(False), C._get_nnpack_enabled),
    "sdp.flash": (
        functions(B.cuda.flash_sdp_enabled, B.cuda.enable_flash_sdp, False),
        C._get_flash_sdp_enabled,
    ),
    "sdp.mem_efficient": (
        functions(B.cuda.mem_efficient_sdp_enabled, B.cuda.enable_mem_efficient_sdp, False),
        C._get_mem_efficient_sdp_enabled,
    ),
    "sdp.math": (functions(B.cuda.math_sdp_enabled, B.cuda.enable_math_sdp, False), C._get_math_sdp_enabled),
    "sdp.math_fp16_bf16_reduction": (
        functions(C._get_math_sdp_allow_fp16_bf16_reduction, C._set_math_sdp_allow_fp16_bf16_reduction, True),
        C._get_math_sdp_allow_fp16_bf16_reduction,
    ),
    "sdp.cudnn": (
        functions(B.cuda.cudnn_sdp_enabled, B.cuda.enable_cudnn_sdp, False),
        C._get_cudnn_sdp_enabled,
    ),
    "sdp.priority_order": (
        functions(C._get_sdp_priority_order, C._set_sdp_priority_order, [0, 1, 2, 3, 4]),
        C._get_sdp_priority_order,
    ),
    "sdp.overrideable": (
        functions(C._get_overrideable_sdp_enabled, C._set_sdp_use_overrideable, False),
        C._get_overrideable_sdp_enabled,
    ),
    "cpu.fp16_reduction": (None, None),  # torch 2.13 lets Python neither read nor switch it on this build
    "sparse.check_invariants": (
        torch.sparse.check_sparse_tensor_invariants,
        torch.sparse.check_sparse_tensor_invariants.is_enabled,
    ),
    "sparse.check_invariants_set": (None, None),  # switched with the one above, and never back
    "warn_always": (functions(torch.is_warn_always_enabled, torch.set_warn_always, True), C._get_warnAlways),
    "replaced_kernels": (replaced_kernel, None),
    "torch_function": (C.DisableTorchFunctionSubclass, C._is_torch_function_enabled),
    "default_dtype": (
        functions(torch.get_default_dtype, torch.set_default_dtype, torch.float64),
        torch.get_default_dtype,
    ),
    "default_tensor_device": (None, None),  # another one needs a device that is none of the CPU
    "autograd.torchs_saved_tensor_hooks": (torch.autograd.graph.save_on_cpu, None),
    "default_device": (lambda: torch.device("cpu"), None),
    **{
        f"autocast_dtype({device})": (
            autocast_dtype(device),
            lambda device=device: torch.get_autocast_dtype(device),
        )
        for device in AUTOCAST_DEVICES
    },
    "region_without_autocast": (lambda: torch.autocast("cpu", enabled=False), None),
    "autocast(cpu)": (lambda: torch.autocast("cpu"), torch.is_autocast_cpu_enabled),
}
CAN_BE_SWITCHED = [name for name, (switch, _) in SWITCHES.items() if switch is not None]


ROW = re.compile(r'^AMBIENT_(PROCESS|FLAG|NUMBER)(\(".*?)(?=^AMBIENT_|^#)', re.MULTILINE | re.DOTALL)


def rows():
    """(words, readers) of each row of the table."""
    text = re.sub(r"//.*", "", TABLE.read_text())
    for kind, row in ROW.findall(text):
        words, *others = re.findall(r'"([^"]*)"', row)
        readers = "".join(others[kind == "NUMBER" :])  # what a number usually is comes first
        yield words, [name for name in readers.split(",") if name]


def test_the_usual_values_are_those_that_torch_starts_with():
    code = """if True:
        from lazytrace._native import core
        now, usual = core.describe_ambient(), core.usual_ambient()
        assert usual, usual
        assert usual == {name: now[name] for name in usual}, (usual, now)
    """
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_row_has_a_switch_here():
    # There is no second device to switch to.
    assert {words for words, _ in rows()} - {"cuda.device"} <= SWITCHES.keys()
    assert {words for words, _ in rows()} <= core.describe_ambient().keys()


@pytest.mark.parametrize("name", [name for _, readers in rows() for name in readers])
def test_readers_exist(name):
    if name.startswith("_cuda_get") and torch.version.cuda is None:
        pytest.skip("torch for the CPU has no functions for CUDA")
    assert callable(getattr(torch._C, name))
    assert core.reads_ambient(name)


def test_other_functions_read_something_else():
    assert not core.reads_ambient("_get_cudnn_allow_tf32")
    assert not core.reads_ambient("")


@pytest.mark.parametrize("name", CAN_BE_SWITCHED)
def test_a_switch_is_named(name):
    switch, _ = SWITCHES[name]
    fn = traced(lambda x: x * 2, name="step")
    x = X()
    fn(x)
    fn(x)
    before = core.describe_ambient()
    with switch():
        after = core.describe_ambient()
        explained = str(fn.explain(x))
        fn(x)
    changed = [f"{path} {before[path]} -> {after[path]}" for path in before if before[path] != after[path]]
    assert any(text.startswith(f"{name} ") for text in changed)
    reason = fn.stats().retrace_reasons[0]
    assert set(changed) <= set(reason.text.split("; "))
    assert all(text in explained for text in changed)
    assert not fn.stats().eager


@pytest.mark.parametrize("name", [name for name in CAN_BE_SWITCHED if SWITCHES[name][1] is not None])
def test_a_switch_that_is_read(name):
    switch, read = SWITCHES[name]

    def function(x):
        return x + 1 if read() else x - 1, str(read())

    fn = traced(function)
    x = X()
    for _ in range(3):
        assert str(fn(x)) == str(function(x))
    with switch():
        for _ in range(3):
            assert str(fn(x)) == str(function(x))
    assert str(fn(x)) == str(function(x))


def other_thread(function):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


@pytest.mark.parametrize("device", AUTOCAST_DEVICES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.uint8, torch.complex64], ids=str)
def test_dtypes_of_autocast_are_those_that_torch_gives(device, dtype):
    """They are read where torch keeps them, in memory of the thread's own."""
    assert core.found_autocast_dtypes()
    fresh = other_thread(lambda: core.autocast_dtypes(True))
    with switched(
        lambda: torch.get_autocast_dtype(device), lambda v: torch.set_autocast_dtype(device, v), dtype
    ):
        assert core.autocast_dtypes(False) == core.autocast_dtypes(True)
        assert other_thread(lambda: core.autocast_dtypes(False)) == fresh


def test_a_description_has_all_that_a_key_holds():
    """Whatever switch makes another key makes other words."""
    keys, words = set(), set()
    signature = core.Signature(["x"], 0, 1, False, False, None)
    for name in CAN_BE_SWITCHED:
        with SWITCHES[name][0]():
            keys.add(signature.bind(None, (1,), {}, {}).key)
            words.add(str(core.describe_ambient()))
    assert len(keys) == len(words) == len(CAN_BE_SWITCHED)

"""Builds the native part, `lazytrace._core`, from `lazytrace/csrc`; everything else is in setup.cfg.

Environment:
    LAZYTRACE_PURE=1            install the Python part only (every call then runs eagerly)
    LAZYTRACE_SANITIZE=address  compile and link with that sanitizer
    MAX_JOBS=N                  files compiled at once (default: one per processor)
    CXX=clang++                 the compiler (default: g++ or whatever `c++` is)
"""

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup

ROOT = Path(__file__).resolve().parent
SOURCES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("lazytrace/csrc/**/*.cpp"))
PRELUDE = ROOT / "lazytrace/csrc/prelude.h"
FILES_PER_UNIT = 10
SANITIZERS = ("address", "undefined", "thread")


def missing_for_build() -> str | None:
    """What is missing to compile the extension, and what to do about it; None where nothing is."""
    compiler = shlex.split(os.environ.get("CXX", "c++"))[0]
    if shutil.which(compiler) is None:
        return f"no C++ compiler ({compiler}) was found; install one (Debian and Ubuntu: apt install g++)"
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        return "Python.h was not found; install Python's headers (Debian and Ubuntu: apt install python3-dev)"
    try:
        import torch  # noqa: F401
    except ImportError:
        return (
            "torch cannot be imported while building; install it first, "
            "then build against it with: pip install --no-build-isolation ."
        )
    return None


def shout(problem: str) -> None:
    """Say on stderr that the package goes without its extension."""
    bar = "*" * 88
    print(
        f"{bar}\nlazytrace: {problem}\nlazytrace: installing the Python part only, "
        f"EVERY TRACED CALL WILL RUN EAGERLY until it is rebuilt.\n{bar}",
        file=sys.stderr,
        flush=True,
    )


def sanitizer_flags() -> list[str]:
    """The flags for `LAZYTRACE_SANITIZE`, for the compiler and for the linker."""
    name = os.environ.get("LAZYTRACE_SANITIZE", "")
    if not name:
        return []
    if name not in SANITIZERS:
        raise SystemExit(f"lazytrace: LAZYTRACE_SANITIZE={name!r}: expected one of {', '.join(SANITIZERS)}")
    # Torch keeps the type information of some of its classes to itself, which a check of vtables asks for.
    without = ["-fno-sanitize=vptr"] if name == "undefined" else []
    # gcc's analysis of instrumented code warns of std::vector<bool> in torch's own headers.
    return [f"-fsanitize={name}", *without, "-fno-omit-frame-pointer", "-Wno-maybe-uninitialized"]


def core_extension() -> Extension:
    """The extension, with torch's and Python's headers as system headers: warnings are about our files."""
    import torch
    from torch.utils import cpp_extension

    system = [*cpp_extension.include_paths(), sysconfig.get_path("include")]
    sanitize = sanitizer_flags()
    return cpp_extension.CppExtension(
        "lazytrace._core",
        SOURCES,
        define_macros=[("LAZYTRACE_TORCH_VERSION", f'"{torch.__version__}"')],
        extra_compile_args=[
            *("-iquote", str(ROOT / "lazytrace/csrc")),
            *(flag for path in system for flag in ("-isystem", path)),
            *("-std=c++17", "-O2", "-g1" if sanitize else "-g0", "-fvisibility=hidden"),
            *("-Wall", "-Wextra", "-Werror=return-type", f"-fmacro-prefix-map={ROOT}/="),
            *sanitize,
        ],
        extra_link_args=["-Wl,--strip-debug"] * (not sanitize) + sanitize,
    )


def build_command() -> type:
    """torch's `build_ext`: ninja where it is, and objects that outlive an editable install's own folder."""
    from torch.utils.cpp_extension import BuildExtension

    class Build(BuildExtension):
        def finalize_options(self) -> None:
            super().finalize_options()
            self.build_temp = str(ROOT / "build" / f"temp.{sys.implementation.cache_tag}")

        def build_extension(self, extension: Extension) -> None:
            # torch has added its own flags by now. Most of the time of compiling goes into its headers.
            macros = [f"-D{name}={value}" for name, value in extension.define_macros]
            flags = [*self.compiler.compiler_so[1:], *macros, *extension.extra_compile_args]
            extension.extra_compile_args += ["-include", str(precompiled(flags, Path(self.build_temp)))]
            extension.depends = extension.sources
            extension.sources = units(extension.sources, Path(self.build_temp))
            super().build_extension(extension)

    return Build.with_options(use_ninja=prepare_ninja(), no_python_abi_suffix=False)


def precompiled(flags: list[str], folder: Path) -> Path:
    """A copy of the prelude, precompiled beside it; the compiler takes the copy itself if the flags differ.

    Raises:
        subprocess.CalledProcessError: the compiler failed, and has said why.
    """
    command = [*shlex.split(os.environ.get("CXX", "c++")), *flags, "-x", "c++-header"]
    text = PRELUDE.read_bytes()
    header = folder / f"prelude-{hashlib.sha256(text + repr(command).encode()).hexdigest()[:16]}.h"
    if not header.with_suffix(".h.gch").exists():
        folder.mkdir(parents=True, exist_ok=True)
        header.write_bytes(text)
        subprocess.check_call([*command, str(header), "-o", str(header.with_suffix(".h.gch"))])
    return header


def units(sources: list[str], folder: Path) -> list[str]:
    """Files that include some sources of a folder each: most of the time goes into what they all include.

    Folders with few sources share theirs.
    """
    by_folder: dict[Path, list[Path]] = {}
    for source in map(Path, sources):
        by_folder.setdefault(source.parent, []).append(source)
    small = [place for place, files in by_folder.items() if len(files) < FILES_PER_UNIT // 3]
    by_folder[Path("small")] = [file for place in small for file in by_folder.pop(place)]
    written = []
    for place, files in by_folder.items():
        for start in range(0, len(files), FILES_PER_UNIT):
            unit = folder / "units" / place / f"unit_{start // FILES_PER_UNIT}.cpp"
            text = "".join(f'#include "{ROOT / file}"\n' for file in files[start : start + FILES_PER_UNIT])
            if not unit.exists() or unit.read_text() != text:
                unit.parent.mkdir(parents=True, exist_ok=True)
                unit.write_text(text)
            written.append(os.path.relpath(unit, ROOT))
    return written


def prepare_ninja() -> bool:
    """Put the ninja of this environment on PATH (a venv need not be activated); say whether there is one."""
    try:
        import ninja
    except ImportError:
        return shutil.which("ninja") is not None
    os.environ["PATH"] = os.pathsep.join([ninja.BIN_DIR, os.environ.get("PATH", "")])
    return True


def build_arguments() -> dict:
    """What `setup` needs to build the extension, or nothing where it cannot or shall not be built."""
    if os.environ.get("LAZYTRACE_PURE", "0") not in ("", "0"):
        return {}
    problem = missing_for_build() if SOURCES else "no C++ sources in lazytrace/csrc"
    if problem is not None:
        shout(problem)
        return {}
    os.environ.setdefault("MAX_JOBS", str(os.cpu_count() or 1))
    return {"ext_modules": [core_extension()], "cmdclass": {"build_ext": build_command()}}


setup(**build_arguments())

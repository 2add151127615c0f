"""Stub libraries that let ``torch_npu`` be imported without Ascend's runtime: ``python -m tests.npu.stubs FOLDER``.

The runtime's six libraries are built from what the wheel's own libraries lack. A stub function returns 0, and an error
where it would compute, copy or communicate, so that nothing is taken for a result; a stub object is 512 zero bytes.
"""

import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

LIBRARIES = ("hccl", "ascendcl", "acl_op_compiler", "ge_runner", "graph", "acl_tdt_channel")
COMPUTES = re.compile(
    r"^aclop(Execute|CompileAndExecute)|^aclnn|^aclblas|^rtKernelLaunch|^aclrt(LaunchKernel|Mem(cpy|set))|RunGraph"
    r"|^Hccl(AllReduce|AllGather|ReduceScatter|Reduce|Broadcast|Send|Recv|Scatter|AlltoAll|BatchSendRecv|Barrier)"
)
ERROR = 500000  # an internal error


def symbols(files: Iterable[Path], which: str) -> set[str]:
    """Names in the dynamic tables of libraries, without versions; weak ones that are undefined do not count."""
    found = set()
    for file in files:
        done = subprocess.run(["nm", "-D", which, str(file)], capture_output=True, text=True, check=True)
        for line in done.stdout.splitlines():
            *_, kind, name = line.split()
            if which == "--defined-only" or kind == "U":
                found.add(name)
    return {name.partition("@")[0] for name in found}


def system(library: Path) -> list[Path]:
    """The libraries of the system that a library loads: libc and its like."""
    done = subprocess.run(["ldd", str(library)], capture_output=True, text=True, check=True)
    return [Path(path) for path in re.findall(r"(/\S+) \(0x", done.stdout)]


def missing() -> list[str]:
    """What the wheel's libraries need and neither they, torch, Python nor the system define."""
    npu, torch = (Path(importlib.util.find_spec(name).origin).parent for name in ("torch_npu", "torch"))
    wheel, cpu = [*npu.glob("*.so"), *npu.glob("lib/*.so")], [*torch.glob("lib/*.so")]
    known = symbols({*wheel, *cpu, *system(torch / "lib" / "libtorch_cpu.so")}, "--defined-only")
    # its bridge to another package's operators is loaded on request alone
    wanted = symbols([file for file in wheel if "atb" not in file.name], "--undefined-only")
    return sorted(name for name in wanted - known if not name.startswith(("Py", "_Py")))


def source(names: list[str]) -> str:
    """C text of all stubs. A C++ name that demangles to something without arguments is an object."""
    done = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True)
    lines = []
    for name, plain in zip(names, done.stdout.splitlines(), strict=True):
        if name.startswith("_Z") and "(" not in plain:
            lines.append(f"char {name}[512] __attribute__((aligned(64)));")
        else:
            lines.append(f"long {name}(void) {{ return {ERROR if COMPUTES.search(name) else 0}; }}")
    return "\n".join(lines) + "\n"


def build(folder: Path) -> int:
    """Write the libraries, all stubs in the first one; the number of stubs."""
    folder.mkdir(parents=True, exist_ok=True)
    names = missing()
    for at, library in enumerate(LIBRARIES):
        text = folder / f"{library}.c"
        text.write_text(source(names) if at == 0 else "")
        target = folder / f"lib{library}.so"
        subprocess.run(["gcc", "-shared", "-fPIC", "-w", "-fno-builtin", "-o", str(target), str(text)], check=True)
    return len(names)


if __name__ == "__main__":
    where = Path(sys.argv[1])
    print(f"{build(where)} stubs in {where}")

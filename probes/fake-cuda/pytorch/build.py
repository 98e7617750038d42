#!/usr/bin/env python3
"""Builds the stand-ins and puts them where PyTorch looks for NVIDIA's libraries: build.py SITE-PACKAGES

Of the maths libraries, what PyTorch's files import is generated: functions named Create give a handle, those that compute
launch a kernel, all others do nothing. `maths/NAME.c` has those that must do more.
"""

import collections
import concurrent.futures
import hashlib
import pathlib
import re
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
# Functions begin with `push`, as NVIDIA's do: the kernel single-steps other first instructions of probed functions.
FLAGS = ["-O2", "-g1", "-std=gnu11", "-Wall", "-fPIC", "-shared", "-fvisibility=hidden", "-fno-omit-frame-pointer",
         "-fno-optimize-sibling-calls", "-fcf-protection=none"]
LIBRARIES = {  # soname: folder, prefix of its functions
    "libcublasLt.so.13": ("cu13", "cublasLt"),
    "libcublas.so.13": ("cu13", "cublas"),
    "libcudnn.so.9": ("cudnn", "cudnn"),
    "libcusparseLt.so.0": ("cusparselt", "cusparseLt"),
    "libcusparse.so.12": ("cu13", "cusparse"),
    "libcusolver.so.12": ("cu13", "cusolver"),
    "libcufft.so.12": ("cu13", "cufft"),
    "libcufile.so.0": ("cu13", "cuFile"),
    "libcupti.so.13": ("cu13", "cupti"),
    "libnccl.so.2": ("nccl", "nccl"),
    "libnvrtc.so.13": ("cu13", "nvrtc"),
    "libnvshmem_host.so.3": ("nvshmem", "nvshmem"),
}
COMPUTING = ("cublas", "cusparse", "cusolver", "cufft", "cudnn")
NOT_COMPUTING = re.compile(r"Create|Destroy|Set|Get|Info|Alloc|Free|Status|String|Version|[bB]ufferSize|Desc|Init")
WRITTEN = re.compile(r"^(?:API [\w\s*]+?\b(\w+)\(|CALL\((\w+),)", re.M)


def compile_c(target, sources, *options):
    target.parent.mkdir(parents=True, exist_ok=True)
    soname = f"-Wl,-soname,{target.name}"
    subprocess.run(["cc", *FLAGS, f"-I{HERE}/maths", "-o", target, *sources, soname, *options], check=True)


def symbols(library, which):
    command = ["nm", "-D", which, "--with-symbol-versions", library]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return [line.split()[-1].partition("@") for line in lines]


def imported(folder):
    """Returns the symbols that the libraries of a folder import from others: versions by name."""
    wanted, defined = collections.defaultdict(set), set()
    for library in sorted(folder.glob("*.so*")):
        defined.update(name for name, _, _ in symbols(library, "--defined-only"))
        for name, _, version in symbols(library, "--undefined-only"):
            wanted[name].add(version.lstrip("@"))
    return {name: versions for name, versions in wanted.items() if name not in defined}


def generated(name, prefix):
    if re.search(r"Create(?!.*Program)", name) and prefix not in ("cufft", "nvrtc"):
        return f"CALL({name}, (ptr *out), *out = calloc(1, 256), 0)"
    if prefix in COMPUTING and not NOT_COMPUTING.search(name.removeprefix(prefix)):
        return f"CALL({name}, (ptr handle), compute(handle))"
    return f"CALL({name}, (), 0)"


def maths_library(soname, names, versions, site, work):
    folder, prefix = LIBRARIES[soname]
    by_hand = HERE / f"maths/{prefix}.c"
    written = {a or b for a, b in WRITTEN.findall(by_hand.read_text())} if by_hand.exists() else set()
    source = work / f"{prefix}.c"
    source.write_text("\n".join(['#include "maths.h"', *(generated(name, prefix) for name in names if name not in written), ""]))
    options = [f"-L{site}/nvidia/cu13/lib", "-l:libcuda.so.1", "-Wl,-rpath,$ORIGIN:$ORIGIN/../../cu13/lib"]
    if versions:
        [version] = versions
        script = work / f"{prefix}.map"
        script.write_text(f"{version} {{ global: *; }};\n")
        options.append(f"-Wl,--version-script={script}")
    sources = [source, HERE / "maths/maths.c", *([by_hand] if by_hand.exists() else [])]
    compile_c(site / "nvidia" / folder / "lib" / soname, sources, *options)


def build(site, work):
    shutil.rmtree(site / "nvidia", ignore_errors=True)
    work.mkdir(parents=True, exist_ok=True)
    libraries = site / "nvidia/cu13/lib"
    compile_c(libraries / "libcuda.so.1", sorted((HERE / "driver").glob("*.c")), "-lpthread")
    script = work / "cudart.map"
    script.write_text("libcudart.so.13 { global: *; };\n")
    compile_c(libraries / "libcudart.so.13", sorted((HERE / "runtime").glob("*.c")), f"-Wl,--version-script={script}",
              f"-L{libraries}", "-l:libcuda.so.1", "-Wl,-rpath,$ORIGIN")
    wanted, taken = imported(site / "torch/lib"), set()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        results = []
        for soname, (_, prefix) in LIBRARIES.items():
            names = [name for name in sorted(wanted) if re.match(prefix + r"(?:[A-Z_]|id_|x_)", name) and name not in taken]
            taken.update(names)
            versions = {version for name in names for version in wanted[name]} - {""}
            results.append(pool.submit(maths_library, soname, names, versions, site, work))
        for result in results:
            result.result()


def main():
    site = pathlib.Path(sys.argv[1]).resolve()
    work = site.parent / "stand-ins"
    sources = sorted(path for path in HERE.rglob("*") if path.suffix in (".c", ".h", ".py"))
    version = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    mark = work / "version"
    if mark.exists() and mark.read_text() == version:
        return
    mark.unlink(missing_ok=True)
    build(site, work)
    mark.write_text(version)


if __name__ == "__main__":
    main()

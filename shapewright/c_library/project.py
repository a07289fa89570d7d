"""A library as C programs use it: a shared library, a header, files for CMake and pkg-config, and an example."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from importlib.resources import files as resources
from pathlib import Path

from shapewright.c_library.source import C_TYPES, CSource
from shapewright.download import write
from tuner.library import package
from tuner.program.language.workload import Tensor

TEMPLATES = {
    "lib/cmake/shapewright_{name}/shapewright_{name}Config.cmake": "config.cmake.in",
    "lib/pkgconfig/shapewright_{name}.pc": "pkgconfig.pc.in",
    "example/CMakeLists.txt": "example.cmake.in",
}
"""Files of a project, by the files that they are made of."""


def write_project(files: Mapping[str, bytes], directory: str | Path, name: str) -> Path:
    """Write the C form of a library into ``directory``; its functions are called ``shapewright_NAME``.

    Needs a C compiler and the TVM that built the library. What is there is replaced only once all is made. Returns the
    shared library's path. Raises ShapewrightError, InvalidInput, OSError.
    """
    from shapewright.c_library.build import link, object_file  # noqa: PLC0415 - TVM, for those who want it

    manifest = package.check_files(files)
    dispatcher = package.dispatcher_of(files, manifest)
    texts = CSource(name, manifest, dispatcher)
    library = f"lib/libshapewright_{name}.so"
    made = {
        f"include/shapewright/{name}.h": texts.header(),
        "example/main.c": _example(texts),
        **{path.format(name=name): _filled(source, name) for path, source in TEMPLATES.items()},
    }
    with tempfile.TemporaryDirectory(prefix="shapewright-c-") as scratch:
        folder = Path(scratch)
        for path, text in made.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        kernels = folder / "src" / f"{name}_kernels.o"
        kernels.parent.mkdir()
        object_file(files, manifest, dispatcher, kernels)
        (folder / f"src/{name}.c").write_text(texts.source(kernels.read_bytes()))
        link([folder / f"src/{name}.c", kernels], folder / "include", folder / library, texts.function)
        written = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    write({**written, package.MANIFEST: files[package.MANIFEST]}, Path(directory))
    return Path(directory) / library


def _filled(source: str, name: str) -> str:
    return resources(__package__).joinpath(source).read_text().replace("@NAME@", name)


def _example(texts: CSource) -> str:
    """A program that packs the constants, calls the library at one size, and prints the first element."""
    workload, dispatcher = texts.workload, texts.dispatcher
    dims = workload.dims(dispatcher.task.instances[0].shape)
    lines = [f"  const int64_t {texts.symbols[symbol]} = {dims[symbol]};" for symbol in workload.symbols]
    for tensor in workload.operands:
        kind, count = C_TYPES[tensor.dtype], " * ".join(f"({texts.text(dim)})" for dim in tensor.dims) or "1"
        fill = "1" if tensor in workload.inputs and tensor.dtype in ("float32", "float64") else "0"
        lines.append(f"  {kind} *{_local(texts, tensor)} = filled(sizeof({kind}), {count}, {fill});")
    for tensor in workload.inputs:
        if tensor.name in texts.layouts:
            sizes = ", ".join(texts.symbols[s] for s in workload.symbols if any(s in d.variables for d in tensor.dims))
            local, more = _local(texts, tensor), f", {sizes}" if sizes else ""
            size = f"{texts.function}_packed_{tensor.name}_bytes({sizes})"
            lines.append(f"  void *packed_{tensor.name} = filled(1, (int64_t){size}, 0);")
            lines.append(f"  check({texts.function}_pack_{tensor.name}({local}, packed_{tensor.name}{more}));")
    passed = [f"packed_{t.name}" if t.name in texts.layouts else _local(texts, t) for t in workload.operands]
    lines.append(f"  check({texts.function}({', '.join([*passed, *texts.symbols.values()])}));")
    first = workload.outputs[0]
    lines.append(f'  printf("{first.name}[0] = %g\\n", (double){_local(texts, first)}[0]);')
    frees = [_local(texts, each) for each in workload.operands] + [
        name for name in passed if name.startswith("packed_")
    ]
    lines += [f"  free({name});" for name in dict.fromkeys(frees)]
    template = resources(__package__).joinpath("example.c.in").read_text()
    return template.replace("@NAME@", texts.name).replace("@BODY@", "\n".join(lines))


def _local(texts: CSource, tensor: Tensor) -> str:
    return f"{texts.operands[tensor.name]}_values"

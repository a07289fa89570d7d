"""C projects: the example builds with CMake and with pkg-config, runs, and is clean under AddressSanitizer."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

import shapewright as sw
from shapewright.c_library.project import write_project
from shapewright.lock import write_lock
from tests.shapewright.c_library.calling import files_of
from tests.shapewright.conftest import Shapewright
from tuner.errors import InvalidInput, ShapewrightError
from tuner.library.package import MANIFEST, SEAL, seal_of
from tuner.program.job.task import SearchTask
from tuner.program.target import native

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not here: C programs cannot be built")

T = sw.ShapeVar("T", range(1, 65))
DENSE = SearchTask("dense", {"m": 16 * T, "n": 45, "k": 24}, (T,), instances=[2], target=native(), threads=2)

FORKS = r"""
#include <dirent.h>
#include <shapewright/qkv.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ROWS = 64, K = 24, N = 45, FORKS = 300 };
static float x[ROWS * K], weights[N * K], out[ROWS * N];
static void *w;

static int call(void) {
  out[ROWS * N - 1] = 0;
  return shapewright_qkv(x, w, out, ROWS) || out[ROWS * N - 1] != K;
}

static int threads(void) {
  int count = 0;
  DIR *tasks = opendir("/proc/self/task");
  while (tasks && readdir(tasks)) count++;
  return count - 2;  // but for . and ..
}

int main(void) {
  for (int i = 0; i < ROWS * K; i++) x[i] = 1;
  for (int i = 0; i < N * K; i++) weights[i] = 1;
  w = malloc(shapewright_qkv_packed_w_bytes());
  if (shapewright_qkv_pack_w(weights, w)) return 1;
  for (int i = 0; i < FORKS; i++) {
    if (call()) return 1;
    for (volatile int wait = 0; wait < i * 300; wait++) continue;  // other threads go to sleep about now
    pid_t child = fork();
    if (child == 0) {
      alarm(20);
      _exit(call() || call() || threads() != 2);
    }
    int status;
    if (child < 0 || waitpid(child, &status, 0) < 0 || status) return printf("child %d: %d\n", i, status), 2;
  }
  return 0;
}
"""
"""Calls in processes that were forked as threads of their parent ended a loop."""


@pytest.fixture(scope="module")
def files() -> Mapping[str, bytes]:
    return files_of(DENSE)


@pytest.fixture(scope="module")
def project(files: Mapping[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("project") / "c"
    write_project(files, directory, "qkv")
    return directory


def run(*line: object, **environment: str) -> str:
    done = subprocess.run(
        [str(part) for part in line],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def wanted() -> str:
    """What the example prints: the first sum of products of the values that it fills tensors with."""
    values = ((np.arange(24) * 7919 % 1999) / 1000.0 - 1.0).astype(np.float32)
    return f"out[0] = {np.dot(values.astype(np.float64), values):g}\n"


def close(printed: str) -> bool:
    one, other = (float(text.split("=")[1]) for text in (printed, wanted()))
    return abs(one - other) < 1e-3


def test_the_example_builds_with_cmake(project: Path, tmp_path: Path) -> None:
    if shutil.which("cmake") is None:
        pytest.skip("cmake is not here")
    run("cmake", "-S", project / "example", "-B", tmp_path / "build")
    run("cmake", "--build", tmp_path / "build")
    assert close(run(tmp_path / "build" / "example"))


def test_the_example_builds_with_pkg_config_and_the_project_may_be_moved(project: Path, tmp_path: Path) -> None:
    if shutil.which("pkg-config") is None:
        pytest.skip("pkg-config is not here")
    moved = shutil.copytree(project, tmp_path / "elsewhere")
    asked = ("pkg-config", "--cflags", "--libs", "shapewright_qkv")
    flags = run(*asked, PKG_CONFIG_PATH=str(moved / "lib" / "pkgconfig")).split()
    strict = ("-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror")
    run("gcc", *strict, moved / "example" / "main.c", "-o", tmp_path / "example", *flags)
    assert close(run(tmp_path / "example"))


def test_all_of_it_is_clean_under_the_sanitizers(project: Path, tmp_path: Path) -> None:
    sources = (project / "example" / "main.c", project / "src" / "qkv.c", project / "src" / "qkv_kernels.o")
    checks = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g", "-O1", "-Wall", "-Werror", "-pthread")
    run("gcc", "-std=c11", *checks, f"-I{project / 'include'}", *sources, "-o", tmp_path / "example", "-lm")
    assert close(run(tmp_path / "example", ASAN_OPTIONS="detect_leaks=1:abort_on_error=0"))


def test_a_process_that_is_forked_after_a_call_has_threads_of_its_own(project: Path, tmp_path: Path) -> None:
    (tmp_path / "forks.c").write_text(FORKS)
    library = project / "lib"
    run("gcc", "-Wall", "-Werror", f"-I{project / 'include'}", tmp_path / "forks.c", f"-L{library}", "-o",
        tmp_path / "forks", "-lshapewright_qkv", f"-Wl,-rpath,{library}", "-pthread")  # fmt: skip
    assert run(tmp_path / "forks") == ""


def test_the_header_is_one_for_cpp_too(project: Path, tmp_path: Path) -> None:
    if shutil.which("g++") is None:
        pytest.skip("g++ is not here")
    (tmp_path / "a.cpp").write_text("#include <shapewright/qkv.h>\n#include <shapewright/qkv.h>\n")
    run("g++", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", f"-I{project / 'include'}", tmp_path / "a.cpp")


def test_locked_libraries_are_pulled_in_their_c_form(
    shapewright: Shapewright, files: Mapping[str, bytes], tmp_path: Path
) -> None:
    from shapewright.download import write  # noqa: PLC0415

    write(files, tmp_path / "libs" / "my-layer")
    write_lock(tmp_path / "x.lock", [tmp_path / "libs" / "my-layer"])
    line = ("pull", "--locked", tmp_path / "x.lock", "--from", tmp_path / "libs", "--format", "c")

    ran = shapewright(*line, "-o", tmp_path / "c", "--json")

    (made,) = ran.json["libraries"]
    assert (ran.code, made["name"]) == (0, "my_layer"), ran.err
    assert Path(made["library"]) == tmp_path / "c" / "libs" / "my-layer" / "lib" / "libshapewright_my_layer.so"
    assert Path(made["library"]).is_file()
    for more, field in ((("--lock", "y.lock"), "--lock"), (("--name", "a b"), "--name")):
        refused = shapewright(*line, "-o", tmp_path / "d", *more, "--json")
        assert (refused.code, refused.error["field"]) == (2, field)
    assert not (tmp_path / "d").exists()


def test_what_cannot_be_made_says_why(
    files: Mapping[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = json.loads(files[MANIFEST]) | {"toolchain": {"tvm": "0.1", "llvm": "9"}}
    other = {**files, MANIFEST: json.dumps(manifest | {SEAL: seal_of(manifest)}).encode()}
    with pytest.raises(ShapewrightError, match=r"was built by llvm 9, tvm 0\.1, here is"):
        write_project(other, tmp_path / "c", "qkv")
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(ShapewrightError, match=r"no C compiler is on the PATH: .* or set CC"):
        write_project(files, tmp_path / "c", "qkv")
    with pytest.raises(InvalidInput, match="is no name of C"):
        write_project(files, tmp_path / "c", "1;rm")
    assert not (tmp_path / "c").exists()

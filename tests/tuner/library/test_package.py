"""Libraries as files: the digests that name them, and what is refused."""

from __future__ import annotations

import gzip
import hashlib
import json

import pytest

from tests.fakes import TASK
from tuner.errors import ShapewrightError
from tuner.library.dispatcher import Dispatcher, Leaf
from tuner.library.package import (
    DISPATCH,
    FILES,
    IR,
    KERNELS,
    LIBRARY,
    MANIFEST,
    SEAL,
    check_files,
    digest_of,
    kernel_scripts,
    package,
)
from tuner.schedule import default_kernel

SAFE = default_kernel(TASK)
FOUND = package(Dispatcher(TASK, (SAFE,), 0, Leaf(0)), b"binary", '{"ir": 1}', {"tvm": "1"}, "j", ["for i in ä"])


def test_the_manifest_names_everything_that_the_library_depends_on() -> None:
    manifest = FOUND.manifest
    assert set(FOUND.files) == set(FILES) == {LIBRARY, DISPATCH, MANIFEST, IR, KERNELS}
    assert manifest["files"] == {
        name: hashlib.sha256(FOUND.files[name]).hexdigest() for name in (LIBRARY, DISPATCH, IR, KERNELS)
    }
    assert manifest["workload_key"] == TASK.workload.key
    assert TASK.target is not None
    assert manifest["target_fingerprint"] == TASK.target.fingerprint
    assert (manifest["threads"], manifest["job_id"], manifest["toolchain"]) == (1, "j", {"tvm": "1"})
    assert manifest["packed_layouts"] == {"w": {"kind": "panels", "panel": 16}}
    assert [kernel["id"] for kernel in manifest["kernels"]] == [SAFE.id]
    assert json.loads(FOUND.files[MANIFEST]) == json.loads(json.dumps(manifest))
    assert gzip.decompress(FOUND.files[IR]) == b'{"ir": 1}'


def test_the_digest_names_code_and_dispatch_and_nothing_else() -> None:
    dispatcher = Dispatcher(TASK, (SAFE,), 0, Leaf(0))
    again = package(dispatcher, b"binary", "other ir", {"tvm": "2"}, None, ["other script"])
    assert again.manifest["digest"] == FOUND.manifest["digest"] == digest_of(FOUND.files)
    assert package(dispatcher, b"other", "", {}, None).manifest["digest"] != FOUND.manifest["digest"]


@pytest.mark.parametrize("name", [name for name in FOUND.manifest if name not in ("digest", "files", "format")])
def test_a_manifest_that_was_changed_since_is_noticed(name: str) -> None:
    without = {key: value for key, value in FOUND.manifest.items() if key != name}
    # Without its seal it is one of an earlier release.
    for changed in (FOUND.manifest | {name: None}, *([without] if name != SEAL else [])):
        with pytest.raises(ShapewrightError):
            check_files({**FOUND.files, MANIFEST: json.dumps(changed).encode()})
    other = FOUND.manifest | {"packed_layouts": {"w": {"kind": "panels", "panel": 1}}}
    with pytest.raises(ShapewrightError, match=r"manifest\.json is not what was built"):
        check_files({**FOUND.files, MANIFEST: json.dumps(other).encode()})


def test_a_manifest_without_a_seal_is_one_of_an_earlier_release() -> None:
    earlier = {name: value for name, value in FOUND.manifest.items() if name != SEAL}
    assert check_files({**FOUND.files, MANIFEST: json.dumps(earlier).encode()}) == earlier


def test_the_source_of_each_kernel_is_kept_by_its_id() -> None:
    assert kernel_scripts(FOUND.files) == {SAFE.id: "for i in ä"}
    data = json.loads(gzip.decompress(FOUND.files[KERNELS]))
    assert data == {"format": 1, "kernels": {SAFE.id: {"script": "for i in ä"}}}


def test_a_library_from_before_there_was_source_is_whole_without() -> None:
    old = package(Dispatcher(TASK, (SAFE,), 0, Leaf(0)), b"binary", "{}", {"tvm": "1"}, "j")
    assert KERNELS not in old.files
    assert check_files(old.files) == old.manifest
    assert kernel_scripts(old.files) == {}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "cannot be read"),
        (b"not compressed", "cannot be read"),
        (gzip.compress(b"{}", mtime=0)[:-9], "cannot be read"),
        (gzip.compress(b"not JSON", mtime=0), "cannot be read"),
        (gzip.compress(b"[]", mtime=0), "format None"),
        (gzip.compress(b'{"format": 2, "kernels": {}}', mtime=0), "format 2"),
    ],
)
def test_source_that_cannot_be_read_is_refused_with_a_reason(content: bytes, says: str) -> None:
    with pytest.raises(ShapewrightError, match=says):
        kernel_scripts({KERNELS: content})


def test_whole_files_pass_and_any_other_byte_does_not() -> None:
    assert check_files(FOUND.files) == json.loads(FOUND.files[MANIFEST])
    for name in (LIBRARY, DISPATCH, IR, KERNELS):
        with pytest.raises(ShapewrightError, match=f"{name} is not what was built"):
            check_files({**FOUND.files, name: FOUND.files[name] + b" "})
        with pytest.raises(ShapewrightError, match=f"{name} is not what was built"):
            check_files({other: content for other, content in FOUND.files.items() if other != name})


@pytest.mark.parametrize("change", [{"files": []}, {"files": None}, {"files": {}}, {"digest": None}])
def test_a_manifest_that_is_not_one_is_refused(change: dict[str, object]) -> None:
    manifest = json.dumps(FOUND.manifest | change).encode()
    with pytest.raises(ShapewrightError, match=r"manifest.json (does not name|is not what was built)"):
        check_files({**FOUND.files, MANIFEST: manifest})


def test_a_manifest_without_its_fields_is_refused() -> None:
    for name in ("files", "digest"):
        manifest = {key: value for key, value in FOUND.manifest.items() if key != name}
        with pytest.raises(ShapewrightError, match="pull the library again"):
            check_files({**FOUND.files, MANIFEST: json.dumps(manifest).encode()})

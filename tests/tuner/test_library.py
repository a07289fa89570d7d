"""Libraries as files: the digests that name them, and what is refused."""

from __future__ import annotations

import gzip
import hashlib
import json

import pytest

from tests.fakes import TASK
from tuner.dispatcher import Dispatcher, Leaf
from tuner.errors import ShapewrightError
from tuner.library import DISPATCH, IR, LIBRARY, MANIFEST, check_files, digest_of, package
from tuner.rules import rule_for

SAFE = rule_for(TASK.workload).safe_kernel(TASK)
FOUND = package(Dispatcher(TASK, (SAFE,), 0, Leaf(0)), b"binary", '{"ir": 1}', {"tvm": "1"}, "j")


def test_the_manifest_names_everything_that_the_library_depends_on() -> None:
    manifest = FOUND.manifest
    assert set(FOUND.files) == {LIBRARY, DISPATCH, MANIFEST, IR}
    assert manifest["files"] == {
        name: hashlib.sha256(FOUND.files[name]).hexdigest() for name in (LIBRARY, DISPATCH, IR)
    }
    assert manifest["workload_key"] == TASK.workload.key
    assert TASK.target is not None
    assert manifest["target_fingerprint"] == TASK.target.fingerprint
    assert (manifest["threads"], manifest["job_id"], manifest["toolchain"]) == (1, "j", {"tvm": "1"})
    assert manifest["packed_layout"] == {"kind": "panels", "panel": 16 * SAFE["nv"]}
    assert [kernel["id"] for kernel in manifest["kernels"]] == [SAFE.id]
    assert json.loads(FOUND.files[MANIFEST]) == json.loads(json.dumps(manifest))
    assert gzip.decompress(FOUND.files[IR]) == b'{"ir": 1}'


def test_the_digest_names_code_and_dispatch_and_nothing_else() -> None:
    dispatcher = Dispatcher(TASK, (SAFE,), 0, Leaf(0))
    again = package(dispatcher, b"binary", "other ir", {"tvm": "2"}, None)
    assert again.manifest["digest"] == FOUND.manifest["digest"] == digest_of(FOUND.files)
    assert package(dispatcher, b"other", "", {}, None).manifest["digest"] != FOUND.manifest["digest"]


def test_whole_files_pass_and_any_other_byte_does_not() -> None:
    assert check_files(FOUND.files) == json.loads(FOUND.files[MANIFEST])
    for name in (LIBRARY, DISPATCH, IR):
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

"""What the roles of the storage are held to, method by method."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

import pytest

from tuner.storage.sql import ClientStorage, DeviceStorage, OperatorStorage, Storage, WorkerStorage

ROLES = (ClientStorage, WorkerStorage, DeviceStorage, OperatorStorage)


def methods_of(role: type) -> dict[str, Callable[..., Any]]:
    return {name: each for name, each in inspect.getmembers(role, inspect.isfunction) if not name.startswith("_")}


def test_every_method_belongs_to_a_role() -> None:
    of_roles = {name for role in ROLES for name in methods_of(role)}
    assert set(methods_of(Storage)) - of_roles == {"check", "close"}


@pytest.mark.parametrize("role", [*ROLES, Storage])
def test_every_method_says_what_it_does(role: type) -> None:
    assert [name for name, each in methods_of(role).items() if not each.__doc__] == []


@pytest.mark.parametrize("role", [*ROLES, Storage])
def test_no_method_takes_or_gives_what_is_sqlalchemys(role: type) -> None:
    hints = {name: repr(get_type_hints(each)) for name, each in methods_of(role).items()}
    assert hints
    assert [name for name, types in hints.items() if "sqlalchemy" in types] == []


def test_only_who_works_under_a_lease_has_the_methods_that_take_one() -> None:
    def take_one(role: type) -> set[str]:
        return {name for name, each in methods_of(role).items() if "lease" in inspect.signature(each).parameters}

    assert "append_results" in take_one(WorkerStorage)
    assert [take_one(role) for role in (ClientStorage, DeviceStorage, OperatorStorage)] == [set(), set(), set()]

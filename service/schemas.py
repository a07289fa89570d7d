"""What the answers of several routes are made of."""

from __future__ import annotations

from dataclasses import fields
from operator import methodcaller
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Item = TypeVar("Item")
AsJson = Annotated[dict[str, Any], BeforeValidator(methodcaller("to_json"))]
"""Read from an object by its ``to_json``."""


class FromAttributes(BaseModel):
    """``model_validate`` reads it from the attributes of an object, and what is nested in it likewise."""

    model_config = ConfigDict(from_attributes=True)


class PageOut(FromAttributes, Generic[Item]):
    """A ``tuner.storage.Page``."""

    items: list[Item]
    cursor: str | None


def fields_of(row: DataclassInstance) -> dict[str, Any]:
    """The fields of a dataclass by name; unlike ``asdict``, what they hold stays as it is."""
    return {each.name: getattr(row, each.name) for each in fields(row)}

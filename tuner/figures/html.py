"""The Jinja2 environment of the HTML pages around figures: the service's and the report's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

NO_FILTERS: Mapping[str, Callable[..., object]] = {}


def html_environment(*folders: Path, filters: Mapping[str, Callable[..., object]] = NO_FILTERS) -> Environment:
    """An environment with the templates of ``folders``. Values are escaped; an undefined one is an error."""
    environment = Environment(
        loader=FileSystemLoader(folders),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(filters)
    return environment

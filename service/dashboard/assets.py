"""Styles, scripts and the icon, and Plotly's script from the installed package: nothing from other hosts."""

from __future__ import annotations

import gzip
import hashlib
from functools import cache
from typing import Annotated, Any

from fastapi import APIRouter, Header, Response
from fastapi.staticfiles import StaticFiles

from service.access.scopes import READ
from service.compression import accepts_gzip
from service.dashboard.templating import FOLDER
from tuner import figures

router = APIRouter(include_in_schema=False, dependencies=[READ])

JAVASCRIPT = "text/javascript; charset=utf-8"
REVALIDATE = {"Cache-Control": "no-cache"}
"""A browser keeps what it has and checks each time, by ETag, whether that is still current: names have no version."""


class Assets(StaticFiles):
    """Static files that browsers revalidate: none keeps a script of the release before."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers.update(REVALIDATE)
        return response


files = Assets(directory=FOLDER / "static")


@router.get("/static/plotly.min.js")
def plotly(
    if_none_match: Annotated[str | None, Header()] = None, accept_encoding: Annotated[str, Header()] = ""
) -> Response:
    """Plotly's script, gzipped where the browser accepts that (1.5 MB of 4.5 MB)."""
    etag = f'"{_digest()}"'
    headers = {"ETag": etag, **REVALIDATE, "Vary": "Accept-Encoding"}
    if if_none_match == etag:
        return Response(status_code=304, headers=headers)
    if accepts_gzip(accept_encoding):
        return Response(_packed(), media_type=JAVASCRIPT, headers=headers | {"Content-Encoding": "gzip"})
    return Response(figures.script(), media_type=JAVASCRIPT, headers=headers)


@router.get("/static/figures.json")
def figure_settings(response: Response) -> dict[str, Any]:
    """Plotly's options for every figure, and the colours of text by theme."""
    response.headers.update(REVALIDATE)
    return {"config": dict(figures.PAGE_CONFIG), "light": dict(figures.LIGHT), "dark": dict(figures.DARK)}


@cache
def _digest() -> str:
    return hashlib.sha256(figures.script().encode()).hexdigest()[:32]


@cache
def _packed() -> bytes:
    return gzip.compress(figures.script().encode(), 6, mtime=0)

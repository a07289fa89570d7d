"""Styles, scripts and the icon, and Plotly's script from the installed package: nothing comes from elsewhere."""

from __future__ import annotations

import gzip
import hashlib
from functools import cache
from typing import Annotated, Any

from fastapi import APIRouter, Header, Response
from fastapi.staticfiles import StaticFiles

from service.dashboard.templating import FOLDER
from tuner import figures

router = APIRouter(include_in_schema=False)
files = StaticFiles(directory=FOLDER / "static")

JAVASCRIPT = "text/javascript; charset=utf-8"


@router.get("/static/plotly.min.js")
def plotly(
    if_none_match: Annotated[str | None, Header()] = None, accept_encoding: Annotated[str, Header()] = ""
) -> Response:
    """Packed where the browser takes that: four and a half megabytes become one and a half."""
    etag = f'"{_digest()}"'
    headers = {"ETag": etag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
    if if_none_match == etag:
        return Response(status_code=304, headers=headers)
    if "gzip" in accept_encoding:
        return Response(_packed(), media_type=JAVASCRIPT, headers=headers | {"Content-Encoding": "gzip"})
    return Response(figures.script(), media_type=JAVASCRIPT, headers=headers)


@router.get("/static/figures.json")
def looks() -> dict[str, Any]:
    """What a page does with every figure: Plotly's options, and the colours of text by theme."""
    return {"config": dict(figures.PAGE_CONFIG), "light": dict(figures.LIGHT), "dark": dict(figures.DARK)}


@cache
def _digest() -> str:
    return hashlib.sha256(figures.script().encode()).hexdigest()[:32]


@cache
def _packed() -> bytes:
    return gzip.compress(figures.script().encode(), 6, mtime=0)

"""What is not part of every installation, and what brings it: ``pip install 'shapewright[tune]'``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec

from tuner.errors import ShapewrightError

EXTRAS: Mapping[str, Sequence[str]] = {
    "": ("tvm_ffi", "yaml", "httpx", "click", "rich", "psutil"),
    "arrays": ("numpy", "ml_dtypes"),
    "tune": (
        "tvm",
        "xgboost",
        "scipy",
        "sqlalchemy",
        "orjson",
        "alembic",
        "psycopg",
        "plotly",
        "jinja2",
        "tornado",
        "threadpoolctl",
    ),
    "server": ("fastapi", "starlette", "pydantic", "uvicorn", "ray", "limits", "prometheus_client"),
    "models": ("torch", "onnx"),
    "gpu": ("triton",),
}
"""The modules that each extra of pyproject.toml brings, of those that the code imports. What "" brings is missing only
where this was installed without its dependencies."""
PURPOSES: Mapping[str, str] = {
    "": "the client",
    "arrays": "packed constants, and what rules say of a job",
    "tune": "a search in this process, records, and figures",
    "server": "the service and its workers",
    "models": "models of PyTorch and ONNX",
    "gpu": "kernels for GPUs",
}


class MissingExtra(ShapewrightError, ImportError):
    """Something needs an extra that is not installed; the message says how it is."""

    def __init__(self, extra: str, problem: str) -> None:
        name = f"'shapewright[{extra}]'" if extra else "shapewright"
        super().__init__(f"{problem}: pip install {name}, for {PURPOSES[extra]}")
        self.extra = extra


def of_error(error: ModuleNotFoundError, wanted: str | None = None) -> MissingExtra | None:
    """What to say of a module that was not found; None for one that no extra brings, which is a defect. ``wanted``: the
    extra that is needed in any case, and brings ``arrays``, too."""
    module = (error.name or "").partition(".")[0]
    extra = next((extra for extra, modules in EXTRAS.items() if module in modules), None)
    if extra == "arrays" and wanted is not None:
        extra = wanted
    return None if extra is None else MissingExtra(extra, f"this needs {module}, which is not installed")


def is_installed(extra: str) -> bool:
    """Whether all modules of an extra are there; none is imported."""
    return all(find_spec(module) is not None for module in EXTRAS[extra])


def require(extra: str) -> None:
    """Raise MissingExtra where a module of an extra is missing, before a command begins with those that are there."""
    for module in EXTRAS[extra]:
        if find_spec(module) is None:
            raise MissingExtra(extra, f"this needs {module}, which is not installed")

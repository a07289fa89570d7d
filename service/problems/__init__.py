"""Errors as problem documents (RFC 9457): what went wrong, with which input, and what to do about it."""

from service.problems.documents import (
    ProblemResponse,
    invalid_input,
    not_found,
    problem,
    problem_of,
    storage_unavailable,
)
from service.problems.handlers import Refusal, install
from service.problems.pages import asks_for_page

__all__ = [
    "ProblemResponse",
    "Refusal",
    "asks_for_page",
    "install",
    "invalid_input",
    "not_found",
    "problem",
    "problem_of",
    "storage_unavailable",
]

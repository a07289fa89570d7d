"""Errors as problem documents (RFC 9457): what went wrong, with which input, and what to do about it."""

from service.problems.documents import ProblemResponse, problem, storage_unavailable
from service.problems.handlers import install
from service.problems.pages import asks_for_page

__all__ = ["ProblemResponse", "asks_for_page", "install", "problem", "storage_unavailable"]

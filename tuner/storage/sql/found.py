"""What a search of the list of jobs finds, as conditions."""

from __future__ import annotations

from sqlalchemy import ColumnElement, and_, func, literal, not_, or_, select

from tuner.storage.filters import Term, parse_filter
from tuner.storage.sql.schema import api_keys, jobs


def found_by(text: str) -> list[ColumnElement[bool]]:
    """Raises InvalidInput on field ``q``."""
    return [not_(_holds(term)) if term.absent else _holds(term) for term in parse_filter(text)]


def _holds(term: Term) -> ColumnElement[bool]:
    def holds(name: str) -> ColumnElement[bool]:
        return and_(jobs.c[name].icontains(term.text, autoescape=True))

    match term.field:
        case None:
            # The digits of an id are random: a word of the letters a to f, as "ada", would find jobs by chance.
            begins = jobs.c.id.istartswith(term.text, autoescape=True)
            return or_(holds("name"), begins, _owned(term.text), holds("tags"))
        case "owner":
            return _owned(term.text)
        case "tag":
            # Not LIKE, which takes small letters for capital ones in SQLite alone.
            return func.replace(jobs.c.tags, literal(f",{term.text},", jobs.c.tags.type), "") != jobs.c.tags
        case "state":
            return jobs.c.state == term.text.upper()
        case field:
            return holds(field)


def _owned(text: str) -> ColumnElement[bool]:
    """By the owner's name, or by its key's."""
    owners = select(api_keys.c.id).where(api_keys.c.name.icontains(text, autoescape=True))
    return or_(jobs.c.owner.icontains(text, autoescape=True), jobs.c.owner.in_(owners))

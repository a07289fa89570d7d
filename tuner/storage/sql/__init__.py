"""The tuning database in SQL. Nothing outside this package imports SQLAlchemy."""

from tuner.storage.sql.migrate import upgrade
from tuner.storage.sql.storage import SqlStorage, open_storage

__all__ = ["SqlStorage", "open_storage", "upgrade"]

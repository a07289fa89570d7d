"""The tuning database in SQL. Nothing outside this package imports SQLAlchemy."""

from tuner.storage.sql.migrate import upgrade
from tuner.storage.sql.storage import (
    ClientStorage,
    DeviceStorage,
    OperatorStorage,
    Storage,
    WorkerStorage,
    open_storage,
)

__all__ = ["ClientStorage", "DeviceStorage", "OperatorStorage", "Storage", "WorkerStorage", "open_storage", "upgrade"]

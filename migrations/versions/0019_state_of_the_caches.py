"""How timed calls find their operands in the caches: of search tasks, libraries and their names.

What is stored was all measured with warm caches. Records name it in their protocol.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

PLACE = ["workload_id", "target_id", "threads", "cache", "name"]


def upgrade() -> None:
    for table in ("search_tasks", "artifacts", "alias_history", "library_aliases"):
        op.add_column(table, sa.Column("cache", sa.Text(), nullable=False, server_default="warm"))
    # SQLite changes no primary key: the table, which is small, is written again.
    with op.batch_alter_table("library_aliases") as aliases:
        aliases.drop_constraint("pk_library_aliases", type_="primary")
        aliases.create_primary_key("pk_library_aliases", PLACE)

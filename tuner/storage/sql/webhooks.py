"""Deliveries of webhooks: stored with the end of a job, claimed by whoever sends them."""

from __future__ import annotations

from sqlalchemy import select, update

from tuner.storage.sql._rows import Part
from tuner.storage.sql.columns import later, now
from tuner.storage.sql.schema import api_keys, webhook_deliveries
from tuner.storage.webhooks import Delivery, signing_key

_deliveries = webhook_deliveries.c
_DUE = _deliveries.next_at <= now()
_ANY_DUE = select(_deliveries.id).where(_DUE).limit(1)
_FIRST_DUE = select(_deliveries.id).where(_DUE).order_by(_deliveries.next_at).limit(1).with_for_update(skip_locked=True)


class Webhooks(Part):
    def claim_delivery(self, hold_s: float) -> Delivery | None:
        # Senders poll, mostly in vain: read first, and write only if something is due.
        with self._database.read() as connection:
            if connection.scalar(_ANY_DUE) is None:
                return None
        with self._database.write() as connection:
            number = connection.scalar(_FIRST_DUE)
            if number is None:
                return None
            claimed = update(webhook_deliveries).where(_deliveries.id == number)
            values = {"next_at": later(hold_s), "attempts": _deliveries.attempts + 1}
            row = connection.execute(claimed.values(**values).returning(webhook_deliveries)).one()
            secret = connection.scalar(select(api_keys.c.secret_sha256).where(api_keys.c.id == row.api_key_id))
        return Delivery(row.id, row.job_id, row.url, row.payload, row.attempts, signing_key(secret or ""))

    def finish_delivery(self, delivery: Delivery) -> None:
        self._settle(delivery, {"next_at": None, "delivered_at": now(), "error": ""})

    def retry_delivery(self, delivery: Delivery, error: str, after_s: float | None) -> None:
        self._settle(delivery, {"next_at": None if after_s is None else later(after_s), "error": error})

    def _settle(self, delivery: Delivery, values: dict[str, object]) -> None:
        # A sender that was late says nothing of the attempt of the next one; what was delivered stays so.
        ours = (_deliveries.id == delivery.id, _deliveries.attempts == delivery.attempts)
        with self._database.write() as connection:
            connection.execute(update(webhook_deliveries).where(*ours).values(**values))

"""Build actors are shared by searches, and follow the size of the cluster."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from tuner.measure import BuilderLost
from worker.building import actor_pool
from worker.building.actor_pool import ActorPool, Slot

USES = 3


class Cluster:
    """So many cores, and the actors that were made and killed on it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cores: int) -> None:
        self.cores, self.is_alive = cores, True
        self.made: list[Any] = []
        self.killed: list[Any] = []
        kill = lambda actor, no_restart: self.killed.append(actor)  # noqa: E731
        monkeypatch.setattr(actor_pool, "ray", SimpleNamespace(is_initialized=lambda: True, kill=kill))
        self.pool = ActorPool(self._create, lambda: self.cores, uses=USES, alive=lambda: self.is_alive)

    def _create(self) -> Any:
        self.made.append(SimpleNamespace(ready=SimpleNamespace(remote=lambda: None)))
        return self.made[-1]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(monkeypatch, 2)


def taken(pool: ActorPool) -> Slot:
    slot = pool.take(0.0)
    assert slot is not None
    return slot


def test_there_are_as_many_actors_as_cores_and_each_has_one_user(cluster: Cluster) -> None:
    cluster.pool.start()
    assert len(cluster.made) == 2
    first, second = taken(cluster.pool), taken(cluster.pool)
    assert first is not second
    assert cluster.pool.take(0.0) is None
    cluster.pool.give(first)
    assert taken(cluster.pool) is first
    assert len(cluster.made) == 2


def test_who_waits_gets_what_is_given_back(cluster: Cluster) -> None:
    slots = [taken(cluster.pool), taken(cluster.pool)]
    waiting: list[Slot | None] = []
    thread = threading.Thread(target=lambda: waiting.append(cluster.pool.take(20.0)))
    thread.start()
    cluster.pool.give(slots[1])
    thread.join(20)
    assert waiting == [slots[1]]


def test_the_pool_grows_and_shrinks_with_the_cluster(cluster: Cluster) -> None:
    slots = [taken(cluster.pool), taken(cluster.pool)]
    cluster.cores = 3
    slots.append(taken(cluster.pool))
    assert len(cluster.made) == 3
    cluster.cores = 1
    assert cluster.pool.is_too_large()
    for slot in slots:
        cluster.pool.give(slot)
    assert not cluster.pool.is_too_large()
    assert len(cluster.killed) == 2
    assert taken(cluster.pool).actor not in cluster.killed


def test_an_old_actor_is_replaced(cluster: Cluster) -> None:
    slot = taken(cluster.pool)
    slot.uses, old = USES, slot.actor
    cluster.pool.give(slot)
    again = [taken(cluster.pool), taken(cluster.pool)]
    assert old in cluster.killed
    assert old not in [each.actor for each in again]


def test_a_dead_cluster_hands_out_nothing(cluster: Cluster) -> None:
    slot = taken(cluster.pool)
    cluster.is_alive = False
    with pytest.raises(BuilderLost, match="has died"):
        cluster.pool.take(0.0)
    cluster.pool.drop(slot)
    assert cluster.killed == []


def test_closing_kills_every_actor(cluster: Cluster) -> None:
    cluster.pool.start()
    slot = taken(cluster.pool)
    cluster.pool.close()
    assert sorted(cluster.killed, key=id) == sorted(cluster.made, key=id)
    assert slot.actor is None

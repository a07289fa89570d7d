"""Models with rotary embeddings are one chain, in which nothing is copied."""

from __future__ import annotations

import pytest
import torch

from shapewright.torch.chain import Chain
from tests.shapewright.libraries import OnDemand
from tests.shapewright.models.test_heads import HEADS, WIDTH
from tests.shapewright.models.test_rotary import Turned
from tests.shapewright.torch.models import close
from tests.shapewright.torch.replacing import Replacing, exported
from tests.shares import every

pytestmark = pytest.mark.usefixtures("made")


@pytest.mark.parametrize("keys", every(2, [HEADS // 2, HEADS]))
def test_turned_heads_are_of_the_chain(keys: int, replacing: Replacing, made: dict[str, Chain]) -> None:
    model = Turned(keys=keys, joined=keys < HEADS).eval()
    with torch.no_grad():
        fast = replacing.compiled(model, rest="inductor")
        for batch, length in ((2, 7), (3, 5), (2, 13)):
            x = torch.rand(batch, length, WIDTH)
            assert close(fast(x), model(x))
    replaced = replacing.report.replaced
    names = [each.workload.partition("(")[0].strip() for each in replaced]
    assert (names.count("rotary"), names.count("attention")) == (2, 1)
    assert not any(each.strided for each in replaced)
    assert not any(each.copies for each in replaced)
    # Of cosines and sines of positions, and of the rest.
    assert max(len(each.calls) for each in made.values()) >= len(names) - 2


def test_an_exported_program_is_one_chain(built: OnDemand, made: dict[str, Chain]) -> None:
    exported(Turned().eval(), built, WIDTH)
    assert len(made) == 1

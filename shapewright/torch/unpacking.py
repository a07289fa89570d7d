"""``sw.torch.unpacked``: a model that PyTorch has quantised dynamically, in a form that its compilers read."""

from __future__ import annotations

from torch import nn

from shapewright.models.copies import copied
from shapewright.models.quantised import unpacked_layers
from shapewright.sources.reports import NotReplaced
from shapewright.torch.reports import Report, note_shared
from tuner.errors import InvalidInput


def unpacked(model: nn.Module) -> nn.Module:
    """A copy of a model of ``torch.ao.quantization.quantize_dynamic`` whose Linear layers hold tensors.

    PyTorch packs the weights of these layers into objects that neither ``torch.compile`` nor ``torch.export`` reads:
    the first leaves such a layer out of its graphs, and with it so does the backend; the second refuses the model. The
    copy computes the same by operators of ATen, which libraries take the place of: int8 as FBGEMM rounds and scales,
    and float16. Its weights are copies, under other names; everything else is shared with ``model``.

    ``sw.torch.report`` of it tells which layers stay packed (LSTM, GRU, embeddings, layers of quantised tensors), and
    why. Where an input has NaN or infinity, no number of a result of int8 is finite; PyTorch raises, or gives any.
    Raises InvalidInput for what is no model, and for one that cannot be copied.
    """
    if not isinstance(model, nn.Module):
        raise InvalidInput("model", f"{type(model).__name__} is none", "a torch.nn.Module")
    report = Report()
    made, kept = unpacked_layers(model)
    result = copied(model, note_shared(report), made)
    report.kept += [NotReplaced(name or "the model", *why) for name, why in kept.items()]
    result.shapewright_report = report
    return result

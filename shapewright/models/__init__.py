"""The workloads of models.

    from shapewright.models.fx import lift           # a torch.fx.GraphModule as a Lifting

One lifter (``lifting``) works on a small neutral graph (``graph``); ``fx``, ``onnx_model`` and ``relax_model`` are thin
frontends, each of which imports its framework where a model of it is at hand. ``lifted`` is what comes out.
"""

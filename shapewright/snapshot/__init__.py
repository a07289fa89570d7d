"""Snapshots: one file with libraries for many workloads and targets, which a build reads without a service.

    snapshot = sw.Snapshot("all.snapshot")                     # checks the file's list; reads no library yet
    found = snapshot.find(task)                                # or (key or workload, target, threads, ranges)
    if isinstance(found, Missing):
        print(found.reason)                                    # why there is none; found.kind for programs
    else:
        found(x, found.pack(w), out)                           # a Library, loaded

``find`` raises ShapewrightError for what is there and damaged. Reading needs NumPy; a library that is loaded needs
TVM's runtime; nothing here needs a compiler, a service or PyTorch.
"""

from shapewright.snapshot.entries import Entry
from shapewright.snapshot.reading import Missing, Snapshot
from shapewright.snapshot.writing import Offer, merge, offers_of, write_snapshot

__all__ = ["Entry", "Missing", "Offer", "Snapshot", "merge", "offers_of", "write_snapshot"]

from tuner import without_torch

__version__ = "0.2.0"
"""The version of all of Shapewright: what is installed, `shapewright --version`, and the manifests of libraries."""

without_torch.install_if_asked()

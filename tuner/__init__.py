from tuner import without_torch

without_torch.install_if_asked()

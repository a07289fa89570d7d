"""What runs on a GPU host: copied into a bundle, it needs PyTorch, Triton and NumPy alone."""

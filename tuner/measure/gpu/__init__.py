"""What a device does on an NVIDIA GPU, by its driver alone: memory, calls, times, clocks. Nothing here needs CUDA."""

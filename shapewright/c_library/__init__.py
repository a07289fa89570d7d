"""`shapewright pull --format c`: libraries for C programs, which need neither Python nor TVM."""

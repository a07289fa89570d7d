"""What in a program is a product, by its stages and axes. No compiler needed."""

"""Programs: the notation, checked stages over named axes, their shapes and dtypes, and workloads made of them."""

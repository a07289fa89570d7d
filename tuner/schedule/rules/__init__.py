"""The rules: what each program is, a folder for each kind."""
